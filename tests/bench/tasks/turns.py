"""Trainers that live long and run in turns: one at a time, the others wait inside their own loops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import torch


class Over(BaseException):
    """Raised at a border when no more turns come: ends a trainer's loop wherever it is."""


class Trainer(Protocol):
    """One way to train. `border()` is called before the first window and after each."""

    model: torch.nn.Module

    def train(self, border: Callable[[], None]) -> None:
        """Build everything and train until `border` raises `Over`."""
        ...

    def settle(self) -> None:
        """A turn is over: finish what goes on beside the training, so that it disturbs no other's turn."""
        ...


class Turns:
    """One trainer in a thread of its own. It stands at a border whenever it has no turn."""

    def __init__(self, name: str, trainer: Trainer, clock: Callable[[], float]) -> None:
        self.trainer = trainer
        self._clock = clock
        self.windows = 0
        self._left = 1  # the border before window 1: set-up is nobody's time
        self._timed = 0
        self._started_s = 0.0
        self._ended_s = 0.0
        self._over = False
        self._error: BaseException | None = None
        self._go = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._live, name=f"bench-{name}", daemon=True)

    def begin(self) -> None:
        """Build the trainer, up to the border before its first window."""
        self._thread.start()
        self._wait()

    def take(self, untimed: int, timed: int) -> float:
        """Train `untimed + timed` windows; gives seconds a timed window."""
        self._left, self._timed = untimed + timed, timed
        self.windows += untimed + timed
        if not untimed:
            self._started_s = self._clock()
        self._go.release()
        self._wait()
        return (self._ended_s - self._started_s) / timed

    def end(self) -> None:
        """No more turns."""
        self._over = True
        self._go.release()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        self._done.acquire()
        if self._error is not None:
            raise self._error

    def _live(self) -> None:
        torch.set_num_threads(1)
        try:
            self.trainer.train(self._border)
        except Over:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again where the turns are given
            self._error = error
        self._done.release()

    def _border(self) -> None:
        self._left -= 1
        if self._left == self._timed:
            self._started_s = self._clock()
        if self._left:
            return
        self._ended_s = self._clock()
        self.trainer.settle()
        self._done.release()
        self._go.acquire()
        if self._over:
            raise Over
