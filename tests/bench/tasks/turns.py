"""Trainers that live long and run in turns, each in a process of its own: it waits inside its own loop.

`python -m tests.bench.tasks.turns NAME RUN CLOCK` is such a process. At a border of windows at which its
turn is over it answers with a line, and reads what it shall do next: `take WINDOWS`,
`weights FILE` (save them there), `peak` (bytes); the end of its input ends it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TextIO

import torch

from tests.bench.figures import peak_bytes

ROOT: Final = Path(__file__).parents[3]
CLOCKS: Final[dict[str, Callable[[], float]]] = {"wall": time.perf_counter, "cpu": time.process_time}


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
    """A trainer's process, as seen by who gives the turns."""

    def __init__(self, name: str, run: Path, clock: str) -> None:
        """Start it. It builds its trainer; `ready` waits for that."""
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.tasks.turns", name, str(run), clock],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> None:
        """It stands at the border before its first window."""
        self._answer()

    def take(self, windows: int) -> float:
        """Train; gives seconds."""
        return float(self._asked(f"take {windows}"))

    def weights(self, file: Path) -> torch.Tensor:
        """All parameters, flat; `file` is written on the way."""
        self._asked(f"weights {file}")
        weights: torch.Tensor = torch.load(file)
        return weights

    def peak_bytes(self) -> int:
        """Its largest resident memory so far."""
        return int(self._asked("peak"))

    def end(self) -> None:
        """No more turns. A process that was asked for nothing more ends by itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _asked(self, line: str) -> str:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended: its answer says so
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"The trainer {self._name} ended. What it said is above.")
        return line.strip()


class Border:
    """The border of windows in a trainer's process."""

    def __init__(self, trainer: Trainer, answers: TextIO, clock: Callable[[], float]) -> None:
        self._trainer = trainer
        self._answers = answers
        self._clock = clock
        self._left = 1  # the border before window 1: set-up is nobody's time
        self._started_s = 0.0

    def cross(self) -> None:
        """Go on with the turn, or end it and wait for the next."""
        self._left -= 1
        if self._left == 0:
            ended_s = self._clock()
            self._trainer.settle()
            self._answer(ended_s - self._started_s)
            self._wait()
            self._started_s = self._clock()

    def _wait(self) -> None:
        for line in sys.stdin:
            match line.split():
                case ["take", windows]:
                    self._left = int(windows)
                    return
                case ["weights", file]:
                    torch.save(weights(self._trainer.model), file)
                    self._answer("saved")
                case _:
                    self._answer(peak_bytes())
        raise Over

    def _answer(self, what: object) -> None:
        print(what, file=self._answers, flush=True)


def weights(model: torch.nn.Module) -> torch.Tensor:
    """All parameters, flat."""
    return torch.cat([parameter.detach().flatten().double() for parameter in model.parameters()])


def main() -> None:
    """Be such a process. Nothing is imported that its trainer does not need."""
    name, run, clock = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what trainers print is no answer
    torch.set_num_threads(1)
    trainer: Trainer
    if name == "ours":
        from tests.bench.tasks.product import Product

        trainer = Product(Path(run))
    else:
        from tests.bench.tasks.rivals import RIVALS

        trainer = RIVALS[name](Path(run))
    with contextlib.suppress(Over):
        trainer.train(Border(trainer, answers, CLOCKS[clock]).cross)


if __name__ == "__main__":
    main()
