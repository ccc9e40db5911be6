"""What campaigns share: a run that is copied, its undisturbed courses, and what was found wrong."""

from __future__ import annotations

import collections
import itertools
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.faults._outcomes import Course, course_of, judge
from tests.bench.faults._trainers import Hit, Kind, copy_of, new_run, sent_path, train
from trainer_backend.inbox import send
from trainer_backend.protocol import AnyCommand, Record
from trainer_backend.run_directory import RunDirectory

ASKS: Final = 3
"""Both commands that the task can send; 1 and 2 are the one and the other."""
COUNTED: Final = (
    "unresumable", "not_bit_equal", "events_lost", "commands_without_trace", "hangs", "tracebacks",
)  # fmt: skip


class Campaign:
    """Runs that something happens to. FAULTS_KEEP names a folder for copies of those that are wrong."""

    def __init__(self, folder: Path, few: int | None) -> None:
        self.folder = folder
        self._few = few
        self._numbers = itertools.count(1)
        self.counts: collections.Counter[str] = collections.Counter()
        self.fresh = new_run(folder)
        self._courses = {asks: self._undisturbed(asks) for asks in range(ASKS + 1)}

    def _undisturbed(self, asks: int) -> Course:
        run = self.copy(self.fresh)
        end = train(run, asks=asks)
        assert end.code == 0, run.log_path.read_text("utf-8")
        return course_of(run)

    def copy(self, run: RunDirectory) -> RunDirectory:
        """Another run that is as this one."""
        copied = copy_of(run, self.folder / "runs" / f"run-{next(self._numbers)}")
        if sent_path(run).exists():
            shutil.copy(sent_path(run), sent_path(copied))
        return copied

    def chosen(self, calls: int) -> Iterable[int]:
        """Which of so many calls are hit: all, or a few of them."""
        if self._few is None or calls <= self._few:
            return range(1, calls + 1)
        return sorted({1 + place * (calls - 1) // max(self._few - 1, 1) for place in range(self._few)})

    def calls_of(self, run: RunDirectory, *, kinds: Kind = Kind.CHANGES, asks: int = 0) -> int:
        """How many calls an attempt makes that is not disturbed; the run has had it then."""
        trace = self.folder / f"trace-{next(self._numbers)}"
        end = train(run, Hit(kinds=kinds), asks=asks, trace=trace)
        assert end.code == 0, run.log_path.read_text("utf-8")
        return len(trace.read_text("utf-8").splitlines()) if trace.exists() else 0

    def judge(self, run: RunDirectory, what: str, code: int, before: list[Record]) -> None:
        """Count what is wrong with a run that has come to its end, and remove it."""
        for name, said in judge(run, code, before, self._courses).wrong().items():
            self.wrong(name, run, what, said)
        log = run.log_path.read_text("utf-8", "replace") if run.log_path.exists() else ""
        if "Traceback" in log:
            self.wrong("tracebacks", run, what, [log[-3000:]])
        shutil.rmtree(run.path)

    def wrong(self, name: str, run: RunDirectory, what: str, said: Sequence[str]) -> None:
        """Count one fault, and say what it is."""
        self.counts[name] += 1
        print(f"{name}: {what}", *said[:5], sep="\n    ", file=sys.stderr, flush=True)
        if kept := os.environ.get("FAULTS_KEEP"):
            shutil.copytree(run.path, Path(kept) / f"{name}-{what.replace(' ', '-')}", dirs_exist_ok=True)

    def found(self) -> dict[str, Any]:
        """What is printed."""
        return {name: self.counts[name] for name in COUNTED}


def send_and_note(run: RunDirectory, command: AnyCommand) -> None:
    """Put a command into a run's inbox, to be looked for in the end."""
    send(run.inbox_path, command)
    with sent_path(run).open("a", encoding="ascii") as file:
        file.write(f"{command.id}\n")
