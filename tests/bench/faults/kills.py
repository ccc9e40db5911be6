"""Trainers killed before each call that changes the disk: `python -m tests.bench.faults.kills [--few N]`.

A fresh start, a resume after a kill, a resume of a sealed run and the sealing are each killed before each of
their calls under the run's directory, from the lock to the exit; then runs that are killed three times in a
row, and cold trainers killed while they import torch. Each is then resumed, undisturbed, and compared with
the same run that nobody disturbed. Counted: kills (and kills_at, where), unresumable, not_bit_equal,
events_lost (committed ones that went, numbers that no event has, steps without their measurement),
commands_without_trace, hangs, tracebacks. `--few N`: so many of each kind, evenly spread.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.faults._campaign import ASKS, Campaign, send_and_note
from tests.bench.faults._outcomes import records_now
from tests.bench.faults._trainers import (
    End,
    Hit,
    Kind,
    forked,
    import_all,
    main_preloaded,
    place,
    sent_path,
    train,
)
from tests.support.trainers import environment
from trainer_backend.errors import GradaccError
from trainer_backend.journal import seal
from trainer_backend.protocol import Record, SaveCheckpoint, SetLearningRate, Stop
from trainer_backend.run_directory import RunDirectory

ROWS: Final = 40
"""Runs that are killed three times in a row."""
COLD: Final = 24
COLD_OPENS: Final = 900
"""Files of torch that an interpreter opens at least."""


class Kills(Campaign):
    """The runs that are killed, and what came of them."""

    def __init__(self, folder: Path, few: int | None) -> None:
        super().__init__(folder, few)
        self.kills_at: collections.Counter[str] = collections.Counter()

    # ------------------------------------------------------------------------- the kinds

    def starts(self) -> None:
        """A run's first attempt, with what a person had put into its inbox, and asks for later."""
        fresh = self.copy(self.fresh)
        for command in (SaveCheckpoint(), SetLearningRate(value=-1.0)):
            send_and_note(fresh, command)
        self._each_call("start", fresh)

    def resumes(self) -> None:
        """The attempt after a kill in the middle: a write-ahead log lies there, and a half checkpoint."""
        killed = self.copy(self.fresh)
        calls = self.calls_of(self.copy(self.fresh))
        assert train(killed, Hit(at=int(calls * 0.65)), asks=1).was_killed
        self._each_call("resume", killed)

    def resumes_of_sealed(self) -> None:
        """The attempt after a stop, when somebody has sealed the run, and left a command there."""
        stopped = self.copy(self.fresh)
        send_and_note(stopped, Stop())
        assert train(stopped).code == 0
        assert seal(stopped.journal_path)
        send_and_note(stopped, SaveCheckpoint())
        self._each_call("resume of a sealed run", stopped)

    def seals(self) -> None:
        """Who seals a run that was killed at its end is killed itself."""
        ended = self.copy(self.fresh)
        calls = self.calls_of(self.copy(self.fresh))
        assert train(ended, Hit(at=calls - 6)).was_killed
        for at in itertools.count(1):
            run = self.copy(ended)
            before = records_now(run)
            end = self._seal(run, Hit(at=at))
            if not end.was_killed:
                break
            self._count("seal", run, end, before, [])

    def _seal(self, run: RunDirectory, hit: Hit) -> End:
        def call() -> int:
            os.environ.update(hit.environment(run.path))
            return 0 if seal(run.journal_path) else 1

        return forked(call)

    def rows(self) -> None:
        """Three kills in a row, each wherever it falls; then one attempt to the end."""
        draw = random.Random(0)  # noqa: S311 - no secret
        calls = self.calls_of(self.copy(self.fresh))
        for _ in range(ROWS if self._few is None else min(self._few, ROWS)):
            run = self.copy(self.fresh)
            before: list[Record] = []
            ats = [draw.randint(1, calls), draw.randint(1, 60), draw.randint(1, calls // 2)]
            for number, at in enumerate(ats[:-1]):
                if train(run, Hit(at=at), asks=ASKS if number == 0 else 0).was_killed:
                    self.kills_at["three in a row"] += 1
                    before = self._still_there(run, before, at)
            self._count("three in a row", run, train(run, Hit(at=ats[-1])), before, ats)

    def _still_there(self, run: RunDirectory, before: list[Record], at: int) -> list[Record]:
        now = records_now(run)
        if now[: len(before)] != before:
            self.wrong("events_lost", run, f"at call {at}", ["what was committed went"])
        return now

    def cold(self) -> None:
        """New interpreters, killed while they import torch, at a start and at a resume."""
        killed = self.copy(self.fresh)
        assert train(killed, Hit(at=self.calls_of(self.copy(self.fresh)) // 2), asks=ASKS).was_killed
        import torch

        under = Path(str(torch.__file__)).parent
        count = COLD if self._few is None else min(self._few, COLD)
        for number in range(count):
            run = self.copy(killed if number % 2 else self.fresh)
            before = records_now(run)
            hit = Hit(kinds=Kind.OPEN_TO_READ, at=1 + COLD_OPENS * number // count)
            self._count("import of torch", run, cold_start(run, hit, under), before, [hit.at])

    # ------------------------------------------------------------------------- one of them

    def _each_call(self, kind: str, template: RunDirectory) -> None:
        asks = ASKS if not template.journal_path.exists() else 0
        for at in self.chosen(self.calls_of(self.copy(template), asks=asks)):
            run = self.copy(template)
            before = records_now(run)
            self._count(kind, run, train(run, Hit(at=at), asks=asks), before, [at])

    def _count(self, kind: str, run: RunDirectory, end: End, before: list[Record], at: Sequence[int]) -> None:
        """Resume what was killed, and judge it."""
        what = f"{kind}, call {at}"
        self.counts["hangs"] += end.hung
        if end.was_killed:
            self.kills_at[kind] += 1
            try:
                before = self._still_there(run, before, at[-1] if at else 0)
            except GradaccError as error:
                self.wrong("unresumable", run, what, [f"a reader said: {error}"])
            resumed = train(run)
            self.counts["hangs"] += resumed.hung
            end = resumed
        self.judge(run, what, end.code, before)

    def found(self) -> dict[str, Any]:
        """What is printed."""
        return {"kills": self.kills_at.total(), "kills_at": dict(self.kills_at), **super().found()}


def cold_start(run: RunDirectory, hit: Hit, under: Path) -> End:
    """A trainer in a new interpreter, hit at what it does under a folder."""
    settings = environment() | hit.environment(under) | {"FAULTS_SENT": str(sent_path(run))}
    command = [sys.executable, "-P", "-m", "trainer_backend", "run", str(run.path)]
    with run.log_path.open("ab") as log:
        process = subprocess.Popen(
            command, cwd=run.path, env=settings, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        return End(code=process.wait(300))


def main() -> None:
    """Kill, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--few", type=int, metavar="N", help="so many kills of each kind")
    parser.add_argument(
        "--only", action="append", help="of starts, resumes, resumes_of_sealed, seals, rows, cold"
    )
    asked = parser.parse_args()
    import_all()
    with place() as folder:
        campaign = Kills(folder, asked.few)
        for name in asked.only or ("starts", "resumes", "resumes_of_sealed", "seals", "rows", "cold"):
            began = time.monotonic()
            getattr(campaign, name)()
            print(
                f"{name}: {time.monotonic() - began:.0f} s, {campaign.found()}", file=sys.stderr, flush=True
            )
        print(json.dumps(campaign.found()))


if __name__ == "__main__":
    main_preloaded("tests.bench.faults.kills", main)
