"""transformers' Trainer, watched through its callbacks and its `training_step`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import transformers
from transformers.trainer_utils import has_length

from trainer_backend.integrations.counting import CountedModulo
from trainer_backend.integrations.libraries import BorrowedMethods
from trainer_backend.integrations.recorder import Recorder

IGNORED: Final = -100
"""The library's own mark of a label without a loss."""


def watch_transformers(trainer: Any, *, name: str = "", parent: Path | None = None) -> TrainerCallbackWatcher:  # noqa: ANN401
    """Watch a Trainer for one `trainer.train()`, which is the run; afterwards the Trainer is as before."""
    watcher = TrainerCallbackWatcher(trainer, name or trainer.args.run_name or "transformers", parent)
    trainer.add_callback(watcher)
    watcher.borrowed.replace(trainer, "training_step", watcher.watched_step)
    watcher.borrowed.replace(trainer, "train", watcher.watched_train)
    return watcher


class TrainerCallbackWatcher(transformers.TrainerCallback):  # type: ignore[misc]  # the library ships no types
    """One Trainer's callback. `recorder` is there from `train()` on."""

    def __init__(self, trainer: Any, name: str, parent: Path | None) -> None:  # noqa: ANN401
        self._trainer = trainer
        self._name = name
        self._parent = parent
        self._learning_rate = 0.0
        self.borrowed = BorrowedMethods()
        self.recorder: Recorder | None = None

    def close(self) -> None:
        """End the run, where `train()` has not, and give the Trainer back as it was."""
        self.borrowed.give_back()
        self._trainer.remove_callback(self)
        if self.recorder is not None:
            self.recorder.close()

    # ------------------------------------------------------------------------- wrappers

    def watched_train(self, train: Callable[..., Any]) -> Callable[..., Any]:
        """`train` that ends the run and gives the Trainer back as it was, whatever happens."""

        @functools.wraps(train)
        def watched(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - the library's own
            try:
                return train(*args, **options)
            except BaseException as error:
                if self.recorder is not None:
                    self.recorder.close(error=error)
                raise
            finally:
                self.close()

        return watched

    def watched_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`training_step` that records its micro-batch."""

        @functools.wraps(step)
        def watched(model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:  # noqa: ANN401
            loss = step(model, inputs, num_items_in_batch)
            self._micro_batch(inputs, loss, num_items_in_batch)
            return loss

        return watched

    def _micro_batch(self, inputs: Any, loss: Any, num_items: Any) -> None:  # noqa: ANN401
        assert self.recorder is not None
        trainer, labels = self._trainer, inputs.get("labels")
        samples = len(next(value for value in inputs.values() if getattr(value, "ndim", 0)))
        tokens = samples
        if labels is not None and labels.ndim > 1:
            # The Trainer's own flag misses models whose class name it does not know, such as GPT-2.
            function = getattr(trainer.accelerator.unwrap_model(trainer.model), "loss_function", None)
            shifted = labels[..., 1:] if getattr(function, "__name__", "") == "ForCausalLMLoss" else labels
            tokens = int((shifted != IGNORED).sum())
        # `training_step` gives a loss that is scaled: over the window's items, or by its micro-batches.
        scaled_by_items = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
        if num_items is not None and scaled_by_items:
            mean = loss * (num_items / max(tokens, 1))
        else:
            mean = loss * trainer.current_gradient_accumulation_steps
        self.recorder.micro_batch(mean, samples=samples, tokens=tokens, weight=tokens)

    # ------------------------------------------------------------------------ callbacks

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ANN401
        """Make the run directory."""
        del control
        self.recorder = Recorder(
            self._name,
            micro_batch_size=args.per_device_train_batch_size,
            accumulation_steps=args.gradient_accumulation_steps,
            library="transformers",
            rule=CountedModulo(args.gradient_accumulation_steps),
            max_optimizer_steps=state.max_steps if state.max_steps > 0 else None,
            parameters=sum(parameter.numel() for parameter in more["model"].parameters()),
            loss_unit="token",
            parent=self._parent,
        )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ANN401
        """The library's counter starts again."""
        del state, control
        assert self.recorder is not None
        loader = more["train_dataloader"]
        self.recorder.restart_counter(len(loader) if has_length(loader) else None)
        args.gradient_accumulation_steps = self.recorder.next_accumulation_steps()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ANN401
        """The learning rate of this window; after the step the schedule has moved on."""
        del args, state, control
        self._learning_rate = more["optimizer"].param_groups[0]["lr"]

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ANN401
        """A window is whole: record it, and fix the next one's N."""
        del state, more
        assert self.recorder is not None
        self.recorder.optimizer_step(learning_rate=self._learning_rate)
        args.gradient_accumulation_steps = self.recorder.next_accumulation_steps()
        control.should_training_stop = control.should_training_stop or self.recorder.stop_asked

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ANN401
        """Hand the evaluation's numbers on."""
        del args, state, control
        if self.recorder is None:  # an evaluation before any training
            return
        given = more.get("metrics") or {}
        metrics = {name: float(value) for name, value in given.items() if isinstance(value, (int, float))}
        loss = metrics.pop("eval_loss", None)
        seconds = metrics.get("eval_runtime", 0.0)
        samples = round(seconds * metrics.get("eval_samples_per_second", 0.0))
        self.recorder.evaluation(loss, metrics, samples=samples, duration_s=seconds)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ANN401
        """Record that training ended, and give the trainer its methods back."""
        del args, control, more
        assert self.recorder is not None
        self.recorder.close("max_optimizer_steps" if state.global_step >= state.max_steps else "epochs")
