"""The auditor in real runs of each library: what is right is called right, what is not is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from trainer_backend.errors import UsageError
from trainer_backend.integrations.audit import AuditFinding
from trainer_backend.integrations.auditor import Auditor

VOCABULARY = 40
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
}  # fmt: skip


class Ragged(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows whose prompts have no label; 22 of them, so that the last window is short."""

    def __init__(self, *, first_label: bool = False) -> None:
        self._begin = 0 if first_label else 1

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, VOCABULARY, (10,), generator=generator)
        labels = tokens.clone()
        labels[: self._begin and self._begin + index % 8] = -100
        return {"input_ids": tokens, "labels": labels}


def audited(tmp_path: Path, model: torch.nn.Module, data: Any, **more: Any) -> list[AuditFinding]:
    """Findings over one epoch of micro-batches of 2, N = 4."""
    import transformers

    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
            num_train_epochs=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            dataloader_pin_memory=False,
        ),
        train_dataset=data,
        **more,
    )
    with Auditor.of(trainer) as audit:
        trainer.train()
    assert len(audit.windows) == 3
    assert "overhead" in {finding.code for finding in audit.findings()}
    return [finding for finding in audit.findings() if finding.level == "fault"]


def test_a_llama_under_transformers_is_right(tmp_path: Path) -> None:
    """Ragged tokens and the short last window included."""
    import transformers

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    assert audited(tmp_path, model, Ragged()) == []


def test_labels_that_no_loss_uses_are_counted_for_a_gpt2(tmp_path: Path) -> None:
    """Its first labels enter the divisor but not the loss: 9 of 10 tokens have one."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    found = audited(tmp_path, transformers.GPT2LMHeadModel(config), Ragged(first_label=True))
    assert [finding.code for finding in found] == ["divisor-wrong", "tail-wrong"]
    assert found[0].values["weight"] == pytest.approx(0.9, rel=1e-3)


def test_a_router_s_loss_is_taken_n_times_over(tmp_path: Path) -> None:
    """transformers adds it to every micro-batch undivided: N times what the model asks for."""
    import transformers

    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        **SMALL,
        num_local_experts=2,
        num_experts_per_tok=1,
        output_router_logits=True,
        router_aux_loss_coef=0.1,
    )
    found = audited(tmp_path, transformers.MixtralForCausalLM(config), Ragged())
    assert [finding.code for finding in found] == ["auxiliary-times"]
    assert found[0].values["times"] == pytest.approx(4, rel=1e-3)


def test_a_loss_of_one_s_own_that_ignores_the_window_is_a_mean_of_means(tmp_path: Path) -> None:
    """compute_loss_func without num_items_in_batch."""
    import transformers

    def mean_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        del num_items_in_batch
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()) / 4

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    found = audited(tmp_path, model, Ragged(), compute_loss_func=mean_loss)
    assert [finding.code for finding in found] == ["mean-of-means", "tail-divided-by-n"]


# -------------------------------------------------------------------------------- Lightning


def lightning_audit(folder: Path, rows: int, *, more: str = "", units: Any = None, **options: Any) -> Auditor:
    """One epoch of micro-batches of 2, N = 4, over random rows (4,)."""
    import lightning.pytorch as lightning
    from torch.utils.data import DataLoader

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.automatic_optimization = more != "manual"

        def training_step(self, batch: torch.Tensor) -> Any:
            loss = (self.layer(batch) ** 2).mean()
            return {"loss": loss} if more == "dict" else loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    trainer = lightning.Trainer(
        max_epochs=1,
        accumulate_grad_batches=1 if more == "manual" else 4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    module, callbacks = Module(), list(trainer.callbacks)
    with Auditor.of(trainer, **({} if units is None else {"units": units}), **options) as audit:
        trainer.fit(module, DataLoader(torch.rand(rows, 4), batch_size=2))  # type: ignore[arg-type]
    assert trainer.callbacks == callbacks
    assert "training_step" not in vars(module)
    return audit


QUIET = pytest.mark.filterwarnings(
    "ignore:.*num_workers.*", "ignore:.*log.*interval.*", "ignore:.*LeafSpec.*"
)


def codes_of(audit: Auditor) -> dict[str, str]:
    """What was found, with its level."""
    return {finding.code: finding.level for finding in audit.findings()}


@QUIET
@pytest.mark.parametrize("more", ["", "dict"])
def test_whole_windows_of_lightning_are_right(tmp_path: Path, more: str) -> None:
    """Its gradients are zeroed behind `training_step`, so nothing stale is found; overhead is measured."""
    audit = lightning_audit(tmp_path, 24, more=more)
    assert [len(window.micro_batches) for window in audit.windows] == [4, 4, 4]
    assert {entry.units for window in audit.windows for entry in window.micro_batches} == {2}
    assert all(window.weight == pytest.approx(1) for window in audit.windows)
    assert codes_of(audit) == {"overhead": "note", "equal-weights": "right", "schedule-per-step": "right"}
    assert all((entry.bare_s or 0) > 0 for window in audit.windows for entry in window.micro_batches)


@QUIET
def test_lightnings_short_last_window_is_divided_by_n(tmp_path: Path) -> None:
    """10 micro-batches: the last window has 2, and half of its update."""
    found = codes_of(lightning_audit(tmp_path, 20))
    assert [code for code, level in found.items() if level == "fault"] == ["tail-divided-by-n"]


@QUIET
def test_units_of_one_s_own_show_lightnings_mean_of_means(tmp_path: Path) -> None:
    """Where micro-batches have other numbers of units, each weighs the same all the same."""
    numbers = iter([3, 9, 4, 6] * 3)
    audit = lightning_audit(tmp_path, 24, units=lambda _: next(numbers))
    faults = [finding for finding in audit.findings() if finding.level == "fault"]
    assert [finding.code for finding in faults] == ["mean-of-means"]
    assert faults[0].values["ratio"] == pytest.approx(3)


@QUIET
def test_lightnings_manual_optimization_is_refused_in_words(tmp_path: Path) -> None:
    """There the loop is the user's own."""
    with pytest.raises(UsageError, match="manual_backward"):
        lightning_audit(tmp_path, 8, more="manual")


# ------------------------------------------------------------------------------- accelerate


def accelerate_audit(rows: int, *, zero: bool = True) -> Auditor:
    """One epoch of micro-batches of 2, N = 4, on `accumulate`."""
    import accelerate
    from torch.utils.data import DataLoader

    accelerator = accelerate.Accelerator(gradient_accumulation_steps=4, cpu=True)
    model: Any = torch.nn.Linear(4, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, schedule, loader = accelerator.prepare(
        model,
        optimizer,
        schedule,
        DataLoader(torch.rand(rows, 4), batch_size=2),  # type: ignore[arg-type]
    )
    backward = accelerator.backward
    with Auditor.of(accelerator) as audit:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward((model(batch) ** 2).mean())
                optimizer.step()
                schedule.step()
                if zero:
                    optimizer.zero_grad()
    assert not model._forward_pre_hooks
    assert accelerator.backward == backward
    return audit


def test_whole_windows_of_accelerate_are_right_and_overhead_is_measured() -> None:
    """Three of four micro-batches."""
    audit = accelerate_audit(24)
    assert [len(window.micro_batches) for window in audit.windows] == [4, 4, 4]
    assert codes_of(audit) == {"overhead": "note", "equal-weights": "right", "schedule-per-step": "right"}


def test_faults_of_an_accelerate_loop_are_told() -> None:
    """Its short last window is divided by N, and gradients that are not zeroed are stale."""
    found = codes_of(accelerate_audit(20))
    assert [code for code, level in found.items() if level == "fault"] == ["tail-divided-by-n"]
    assert codes_of(accelerate_audit(24, zero=False))["stale-gradients"] == "fault"


def test_a_model_that_gives_logits_is_read_there_under_accelerate_too(tmp_path: Path) -> None:
    """Each of its micro-batches is seen once; ragged tokens make a mean of means of the usual loop."""
    import accelerate
    import transformers
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=4, cpu=True)
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Ragged(), batch_size=2))
    model.train()
    with Auditor.of(accelerator, count_syncs=True) as audit:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
    assert [len(window.micro_batches) for window in audit.windows] == [4, 4, 3]
    found = codes_of(audit)
    assert found["mean-of-means"] == found["tail-divided-by-n"] == "fault"
    assert found["host-syncs"] in ("note", "right")


def test_what_is_not_prepared_or_unknown_is_refused() -> None:
    """In words."""
    import accelerate

    with pytest.raises(UsageError, match=r"after prepare"):
        Auditor.of(accelerate.Accelerator(cpu=True))
    with pytest.raises(UsageError, match="object is none of"):
        Auditor.of(object())
