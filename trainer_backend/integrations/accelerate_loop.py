"""A loop on accelerate's `accumulate()`, watched through the Accelerator's own methods."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from trainer_backend.integrations.counting import AnyWindow
from trainer_backend.integrations.libraries import BorrowedMethods
from trainer_backend.integrations.recorder import Recorder


def watch_accelerate(
    accelerator: Any,  # noqa: ANN401 - an Accelerator
    *,
    micro_batch_size: int,
    name: str = "accelerate",
    parent: Path | None = None,
) -> AccelerateWatcher:
    """Watch a loop on `accelerator.accumulate(model)`; `close()` it after.

    `micro_batch_size`: samples a micro-batch, which the Accelerator does not know.
    """
    watcher = AccelerateWatcher(accelerator, micro_batch_size, name, parent)
    watcher.borrowed.replace(accelerator, "accumulate", watcher.watched_accumulate)
    watcher.borrowed.replace(accelerator, "backward", watcher.watched_backward)
    return watcher


class AccelerateWatcher:
    """One Accelerator's recorder. Its counter starts again after each window: a new N is always exact."""

    def __init__(
        self,
        accelerator: Any,  # noqa: ANN401 - an Accelerator
        size: int,
        name: str,
        parent: Path | None,
    ) -> None:
        self._accelerator = accelerator
        self._size = size
        self._losses: list[Any] = []
        self.borrowed = BorrowedMethods()
        self.recorder = Recorder(
            name,
            micro_batch_size=size,
            accumulation_steps=accelerator.gradient_accumulation_steps,
            library="accelerate",
            rule=AnyWindow(),
            parent=parent,
        )
        self.recorder.next_accumulation_steps()  # the first window's N is the accelerator's

    @property
    def stop_asked(self) -> bool:
        """Whether the loop should end: a loop of the user's own must look."""
        return self.recorder.stop_asked

    def close(self) -> None:
        """End the run, and give the Accelerator its own methods back."""
        self.borrowed.give_back()
        self.recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        del kind, where
        self.borrowed.give_back()
        self.recorder.close(error=error)

    def watched_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """`backward` that keeps the loss of the micro-batch."""

        @functools.wraps(backward)
        def watched(loss: Any, **options: Any) -> Any:  # noqa: ANN401 - a tensor
            self._losses.append(loss.detach())
            return backward(loss, **options)

        return watched

    def watched_accumulate(self, accumulate: Callable[..., Any]) -> Callable[..., Any]:
        """`accumulate` that records its micro-batch, and the window where the library synchronises."""

        @functools.wraps(accumulate)
        @contextlib.contextmanager
        def watched(*models: Any) -> Iterator[None]:  # noqa: ANN401
            with accumulate(*models):
                yield
            losses, self._losses = self._losses, []
            self.recorder.micro_batch(sum(losses), samples=self._size)
            if self._accelerator.sync_gradients:
                self._end_window()

        return watched

    def _end_window(self) -> None:
        optimizers = self._accelerator._optimizers  # noqa: SLF001 - it has no public list
        rate = optimizers[0].param_groups[0]["lr"] if optimizers else 0.0
        self.recorder.optimizer_step(learning_rate=rate)
        # `step % N` counts on over a change of N; from 0 again, the next window is whole.
        self._accelerator.step = 0
        self._accelerator.gradient_accumulation_steps = self.recorder.next_accumulation_steps()
