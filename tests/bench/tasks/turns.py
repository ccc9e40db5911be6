"""Trainers that live long and run in turns, each in a process of its own: it waits inside its own loop.

The processes are forked from one that has imported what all of them need, so they differ by what their
trainers do, and hardly by where the system has put their code. What is asked of one at a border of windows:
a number of windows to train, "weights", "peak" (bytes), or "end". While others have their turns a process
is stopped as a whole (SIGSTOP): what its threads do beside the training falls into its own turns, on the
processors where the system puts it, and into no other's.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from tests.bench.figures import peak_bytes

OPEN: Final[list[Connection]] = []
"""This process's ends of all pipes. A trainer closes its copies, so that no trainer outlives this process."""
_PR_SET_PDEATHSIG: Final = 1
CLOCKS: Final[dict[str, Callable[[], float]]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Over(BaseException):
    """Raised at a border when no more turns come: ends a trainer's loop wherever it is."""


class Trainer(Protocol):
    """One way to train. `border()` is called before the first window and after each."""

    model: torch.nn.Module

    def train(self, border: Callable[[], None]) -> None:
        """Build everything and train until `border` raises `Over`."""
        ...


class Turns:
    """A trainer's process, as seen by who gives the turns."""

    def __init__(self, name: str, run: Path, clock: str) -> None:
        """Start it. It builds its trainer; `ready` waits for that."""
        self._name = name
        self._connection, theirs = multiprocessing.Pipe()
        start = multiprocessing.get_context("fork").Process
        OPEN.append(self._connection)
        self._process = start(target=be_trainer, args=(name, run, CLOCKS[clock], theirs), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """It stands at the border before its first window."""
        self._answer()
        self._signal(signal.SIGSTOP)

    def take(self, windows: int) -> float:
        """Train; gives seconds."""
        return float(self._asked(windows))

    def weights(self) -> torch.Tensor:
        """All parameters, flat."""
        return torch.from_numpy(self._asked("weights"))

    def peak_bytes(self) -> int:
        """Its largest resident memory so far."""
        return int(self._asked("peak"))

    def end(self) -> None:
        """No more turns."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._connection.send("end")
        self._process.join()
        OPEN.remove(self._connection)
        self._connection.close()

    def _asked(self, what: int | str) -> Any:
        self._signal(signal.SIGCONT)
        self._connection.send(what)
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def _signal(self, number: int) -> None:
        if self._process.is_alive():
            assert self._process.pid is not None
            os.kill(self._process.pid, number)

    def _answer(self) -> Any:
        try:
            return self._connection.recv()
        except EOFError:
            raise SystemExit(f"The trainer {self._name} ended. What it said is above.") from None


class Border:
    """The border of windows in a trainer's process."""

    def __init__(self, trainer: Trainer, connection: Connection, clock: Callable[[], float]) -> None:
        self._trainer = trainer
        self._connection = connection
        self._clock = clock
        self._left = 1  # the border before window 1: set-up is nobody's time
        self._started_s = 0.0

    def cross(self) -> None:
        """Go on with the turn, or end it and wait for the next."""
        self._left -= 1
        if self._left == 0:
            self._connection.send(self._clock() - self._started_s)
            self._left = self._wait()
            self._started_s = self._clock()

    def _wait(self) -> int:
        """Windows of the next turn."""
        while True:
            try:
                asked = self._connection.recv()
            except EOFError:  # the process that gives the turns was killed
                raise Over from None
            match asked:
                case int(windows):
                    return windows
                case "weights":
                    self._connection.send(weights(self._trainer.model).numpy())
                case "peak":
                    self._connection.send(peak_bytes())
                case _:
                    raise Over


def weights(model: torch.nn.Module) -> torch.Tensor:
    """All parameters, flat."""
    return torch.cat([parameter.detach().flatten().double() for parameter in model.parameters()])


def be_trainer(name: str, run: Path, clock: Callable[[], float], connection: Connection) -> None:
    """What such a process does."""
    for other in OPEN:
        other.close()
    if sys.platform == "linux":  # a stopped process would never hear that the one which stopped it was killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(2, 1)  # what trainers print is no figure
    torch.set_num_threads(1)
    trainer: Trainer
    if name == "ours":
        from tests.bench.tasks.product import Product

        trainer = Product(run)
    else:
        from tests.bench.tasks.rivals import RIVALS

        trainer = RIVALS[name](run)
    with contextlib.suppress(Over):
        trainer.train(Border(trainer, connection, clock).cross)
