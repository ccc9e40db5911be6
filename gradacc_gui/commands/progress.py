"""What `gradacc run` prints: facts as lines, and a bar where there is a terminal."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import sys
import time
from typing import Final

from gradacc_gui.commands.looking import fact_line
from gradacc_gui.plain_output import beneath
from trainer_backend.journal import Slice, columns
from trainer_backend.plain_text import plain
from trainer_backend.protocol import EvaluationMeasured, OptimizerStepMeasured, PhaseEntered, RunStarted
from trainer_backend.run_directory import RunDirectory

EVERY_S: Final = 5.0
"""Between two lines of progress where there is no terminal."""


class ProgressPrinter:
    """Counts in samples, which N does not bend; a horizon that is not known is a bar without an end."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._said_at = 0.0
        self._goal: int | None = None
        self._started: RunStarted | None = None
        self._bar = _Bar() if sys.stderr.isatty() else None

    def show(self, found: Slice) -> None:
        """Print what a slice brings."""
        for record in found.facts:
            match record.event:
                case RunStarted():
                    self._started = record.event
                    self._goal = record.event.max_samples or record.event.horizon_samples
                case PhaseEntered() if self._bar is not None:
                    self._bar.phase(record.event)
            if (text := fact_line(record)) is not None:
                self._say(text)
        for row in found.rows.get(EvaluationMeasured, []):
            value = dict(zip(columns(EvaluationMeasured), row, strict=True))
            self._say(f"          validation loss {_number(value['loss'])} at step {value['step']:,}")
        steps = found.rows.get(OptimizerStepMeasured)
        if steps:
            self._step(dict(zip(columns(OptimizerStepMeasured), steps[-1], strict=True)))

    def _step(self, value: dict[str, object]) -> None:
        text = (
            f"step {value['step']:,}  loss {_number(value['loss'])}  N {value['accumulation_steps']}"
            f"  {_number(value['samples_per_s'])} samples/s"
        )
        samples = value["samples_seen"]
        assert isinstance(samples, int)
        if self._bar is not None:
            self._bar.step(text, samples, self._goal)
        elif time.monotonic() - self._said_at >= EVERY_S:
            self._said_at = time.monotonic()
            done = f"  {samples / self._goal:.0%}" if self._goal else ""
            self._say(f"          {text}{done}")

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.say(text)
        else:
            print(text, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.close()


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else "–"


class _Bar:
    """rich's progress bar on standard error."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - where there is a terminal
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn  # noqa: PLC0415
        from rich.progress import Progress as RichProgress  # noqa: PLC0415

        self._progress = RichProgress(
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=beneath(sys.stderr)),
        )
        self._task = self._progress.add_task("starting", total=None)
        self._progress.start()

    def phase(self, entered: PhaseEntered) -> None:
        from gradacc_gui import words  # noqa: PLC0415 - light, and loaded by then

        done = "" if entered.done_ratio is None else f" {entered.done_ratio:.0%}"
        self._progress.update(self._task, description=words.phase(entered.phase) + done)

    def step(self, text: str, samples: int, goal: int | None) -> None:
        self._progress.update(self._task, description=plain(text), completed=samples, total=goal)

    def say(self, text: str) -> None:
        self._progress.console.print(plain(text), markup=False, highlight=False)

    def close(self) -> None:
        self._progress.stop()
