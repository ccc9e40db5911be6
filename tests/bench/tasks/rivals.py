"""The other trainers, each as its own documentation shows it, without progress bars, logs and checkpoints."""

from __future__ import annotations

import logging
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch.utils.data import DataLoader

from trainer_backend.recipe import Recipe, load_recipe
from trainer_backend.run_directory import RunDirectory
from trainer_backend.tasks.making import collate_of, datasets_of, groups_of, make_task, model_of

Border = Callable[[], None]


class Rival:
    """What all of them share: the recipe's model, data and optimizer, and a loss in mean form."""

    model: torch.nn.Module

    def __init__(self, run: Path) -> None:
        self.recipe: Recipe = load_recipe(RunDirectory(run).recipe_path)
        config = self.recipe.config
        self.steps = config.accumulation_steps
        self.max_norm = config.optimizer.max_grad_norm or 1.0

    def build(self) -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
        """As `trainer_backend.trainer.assembly` does: same seed, same weights, same groups, same order."""
        config = self.recipe.config
        random.seed(config.run.seed)
        torch.manual_seed(config.run.seed)
        self.task: Any = make_task(self.recipe, lambda _code, _values: None)
        data = datasets_of(self.task).train
        torch.manual_seed(config.run.seed)
        self.model = model_of(self.task)
        self.model.train()
        asked = config.optimizer
        optimizer = torch.optim.AdamW(
            groups_of(self.task, self.model, asked.weight_decay),
            lr=asked.learning_rate,
            betas=asked.betas,
            eps=asked.eps,
            fused=True,
        )
        loader = DataLoader(
            data, batch_size=config.accumulation.micro_batch_size, collate_fn=collate_of(self.task)
        )
        self.loss = LOSSES[config.task.kind]  # type: ignore[attr-defined]
        return self.model, optimizer, loader


class Raw(Rival):
    """A loop written by hand."""

    def train(self, border: Border) -> None:
        """See `Trainer`."""
        model, optimizer, loader = self.build()
        loss_of, steps, parameters = self.loss, self.steps, list(self.model.parameters())
        batches = endless(loader)
        border()
        while True:
            running = 0.0
            for _ in range(steps):
                loss = loss_of(model, next(batches)) / steps
                loss.backward()  # type: ignore[no-untyped-call]
                running += loss.item()
            torch.nn.utils.clip_grad_norm_(parameters, self.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            border()


class Accelerate(Rival):
    """The loop of accelerate's guide to gradient accumulation."""

    def train(self, border: Border) -> None:
        """See `Trainer`."""
        from accelerate import Accelerator

        accelerator = Accelerator(gradient_accumulation_steps=self.steps, cpu=True)
        model, optimizer, loader = accelerator.prepare(*self.build())
        loss_of = self.loss
        border()
        while True:
            for batch in loader:
                with accelerator.accumulate(model):
                    loss = loss_of(model, batch)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), self.max_norm)
                    optimizer.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    border()


class Lightning(Rival):
    """A LightningModule whose training step is the loss."""

    def train(self, border: Border) -> None:
        """See `Trainer`."""
        import lightning

        model, optimizer, loader = self.build()
        loss_of = self.loss

        class Module(lightning.LightningModule):  # type: ignore[misc]  # the library's types
            def __init__(self) -> None:
                super().__init__()
                self.network = model

            def training_step(self, batch: Any, _index: int) -> torch.Tensor:
                return loss_of(self.network, batch)

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return optimizer

            def on_train_start(self) -> None:
                border()

            def optimizer_step(self, *arguments: Any, **options: Any) -> None:
                super().optimizer_step(*arguments, **options)
                border()

        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(
                accelerator="cpu",
                devices=1,
                accumulate_grad_batches=self.steps,
                gradient_clip_val=self.max_norm,
                max_epochs=-1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=folder,
            )
            trainer.fit(Module(), loader)


class HfTrainer(Rival):
    """transformers' Trainer. Its batches are the task's rows under the names of its models' arguments."""

    def train(self, border: Border) -> None:
        """See `Trainer`."""
        import transformers

        class AtBorders(transformers.TrainerCallback):  # type: ignore[misc]  # likewise
            def on_train_begin(self, *_arguments: Any, **_more: Any) -> None:
                border()

            def on_step_end(self, *_arguments: Any, **_more: Any) -> None:
                border()

        model, optimizer, loader = self.build()
        model.config.use_cache = False  # type: ignore[union-attr]
        collate = loader.collate_fn

        def named(samples: list[Any]) -> dict[str, torch.Tensor]:
            rows = collate(samples)
            return {
                "input_ids": rows.tokens,
                "attention_mask": rows.attended,
                "position_ids": rows.positions,
                "labels": rows.targets,
                "shift_labels": rows.targets,
            }

        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=loader.batch_size or 1,
                gradient_accumulation_steps=self.steps,
                max_grad_norm=self.max_norm,
                max_steps=10**9,
                lr_scheduler_type="constant",
                train_sampling_strategy="sequential",
                use_cpu=True,
                dataloader_pin_memory=False,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                remove_unused_columns=False,
            )
            trainer = transformers.Trainer(
                model,
                arguments,
                data_collator=named,
                train_dataset=loader.dataset,
                optimizers=(optimizer, None),
                callbacks=[AtBorders()],
            )
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


def token_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Mean cross-entropy over a micro-batch's tokens."""
    logits_bsv = model(
        input_ids=batch.tokens, attention_mask=batch.attended, position_ids=batch.positions, use_cache=False
    ).logits
    return F.cross_entropy(logits_bsv.flatten(0, 1), batch.targets.flatten(), ignore_index=-100)


def pixel_loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy over pixels and mean Dice over images and classes (no pixel is ignored here)."""
    logits_bkhw, masks_bhw = model(batch["images"]), batch["masks"]
    entropy = F.cross_entropy(logits_bkhw, masks_bhw, ignore_index=255)
    found_bkhw = logits_bkhw.softmax(1)
    truth_bkhw = F.one_hot(masks_bhw, logits_bkhw.shape[1]).movedim(-1, 1).float()
    overlap_bk = (found_bkhw * truth_bkhw).sum((2, 3))
    both_bk = (found_bkhw + truth_bkhw).sum((2, 3))
    loss: torch.Tensor = entropy + (1 - (2 * overlap_bk + 1) / (both_bk + 1)).mean()
    return loss


def class_loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy over images."""
    return F.cross_entropy(model(batch["images"]), batch["targets"])


LOSSES: dict[str, Callable[[torch.nn.Module, Any], torch.Tensor]] = {
    "causal-lm": token_loss,
    "segmentation": pixel_loss,
    "image-classification": class_loss,
}

RIVALS: dict[str, type[Raw | Accelerate | Lightning | HfTrainer]] = {
    "raw": Raw,
    "accelerate": Accelerate,
    "lightning": Lightning,
    "hf": HfTrainer,
}
