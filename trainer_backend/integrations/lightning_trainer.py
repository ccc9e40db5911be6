"""Lightning's Trainer, watched through a callback."""

from __future__ import annotations

import importlib
import math
import time
from pathlib import Path
from typing import Any

from trainer_backend.engine.batches import size
from trainer_backend.integrations.counting import Modulo
from trainer_backend.integrations.recorder import Recorder


def watch_lightning(trainer: Any, *, name: str = "lightning", parent: Path | None = None) -> Any:  # noqa: ANN401
    """Watch a Trainer; the run starts and ends with `trainer.fit(…)`. Gives the callback."""
    package = type(trainer).__module__.partition(".")[0]
    library = importlib.import_module("lightning.pytorch" if package == "lightning" else package)
    # Both names of the package have a Callback of their own, so the base is chosen here.
    kind = type("GradaccCallback", (_Watching, library.Callback), {})
    watcher = kind(name, parent)
    trainer.callbacks.append(watcher)
    return watcher


class _Watching:
    """What the callback does, by Lightning's hooks. `recorder` is there from `fit` on."""

    def __init__(self, name: str, parent: Path | None) -> None:
        super().__init__()
        self._name = name
        self._parent = parent
        self._steps_before = 0
        self._evaluated_at = 0.0
        self.recorder: Recorder | None = None

    def close(self) -> None:
        """End the run, where `fit` has not."""
        if self.recorder is not None:
            self.recorder.close()

    def on_train_start(self, trainer: Any, module: Any) -> None:  # noqa: ANN401
        """Make the run directory."""
        self._steps_before = trainer.global_step
        self.recorder = Recorder(
            self._name,
            micro_batch_size=_batch_size(trainer),
            accumulation_steps=trainer.accumulate_grad_batches,
            library="lightning",
            rule=Modulo(),
            max_optimizer_steps=trainer.max_steps if trainer.max_steps > 0 else None,
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            parent=self._parent,
        )
        # A run that is taken up within an epoch counts on.
        done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        self.recorder.restart_counter(_micro_batches(trainer), done=done)

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:  # noqa: ANN401
        """The library's counter starts again."""
        del module
        assert self.recorder is not None
        self.recorder.restart_counter(_micro_batches(trainer))
        trainer.accumulate_grad_batches = self.recorder.next_accumulation_steps()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ANN401
        """A micro-batch, and the window when the library has stepped."""
        del module, batch_idx
        assert self.recorder is not None
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        # Lightning hands `loss` on divided by N.
        self.recorder.micro_batch(loss * trainer.accumulate_grad_batches, samples=size(batch))
        if trainer.global_step == self._steps_before:
            return
        self._steps_before = trainer.global_step
        self.recorder.optimizer_step(learning_rate=trainer.optimizers[0].param_groups[0]["lr"])
        trainer.accumulate_grad_batches = self.recorder.next_accumulation_steps()
        if self.recorder.stop_asked:
            trainer.should_stop = True

    def on_validation_start(self, trainer: Any, module: Any) -> None:  # noqa: ANN401
        """Stop counting micro-batches while Lightning validates."""
        del trainer, module
        self._evaluated_at = time.perf_counter()

    def on_validation_end(self, trainer: Any, module: Any) -> None:  # noqa: ANN401
        """Hand the evaluation's numbers on."""
        del module
        if self.recorder is None or trainer.sanity_checking:
            return
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        loss = metrics.get("val_loss")
        duration_s = time.perf_counter() - self._evaluated_at
        self.recorder.evaluation(loss, metrics, samples=0, duration_s=duration_s)

    def on_train_end(self, trainer: Any, module: Any) -> None:  # noqa: ANN401
        """Record that training ended."""
        del module
        assert self.recorder is not None
        ended_by_steps = 0 < trainer.max_steps <= trainer.global_step
        self.recorder.close("max_optimizer_steps" if ended_by_steps else "epochs")

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:  # noqa: ANN401
        """Record the error that ended training."""
        del trainer, module
        if self.recorder is not None:
            self.recorder.close(error=exception)


def _micro_batches(trainer: Any) -> int | None:  # noqa: ANN401
    """Of an epoch; None for data without a length."""
    number = trainer.num_training_batches
    return None if math.isinf(number) else int(number)


def _batch_size(trainer: Any) -> int:  # noqa: ANN401
    loader = trainer.train_dataloader
    size = getattr(loader, "batch_size", None)
    return int(size) if isinstance(size, int) else 1
