"""Trainers whose disk fails them: `python -m tests.bench.faults.disks [--few N]`.

Each write, sync, rename, mkdir and open under the run's directory fails once, with ENOSPC, EIO or EDQUOT in
turn (reading with EIO), at a start and at a resume; some for a while, and some from then on to the end of
the attempt. The attempt goes on and ends as an undisturbed one, or ends with a sentence and is resumed to
that end. Counted: injected_faults (and faults_at, where), faults_survived and faults_told (attempts that
went on, and that ended with a sentence), not_a_sentence, and what `kills` counts. `--few N`: so many of each.
"""

from __future__ import annotations

import argparse
import collections
import errno
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.bench.faults._campaign import ASKS, Campaign
from tests.bench.faults._outcomes import records_now
from tests.bench.faults._trainers import Hit, Kind, import_all, main_preloaded, place, train
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import RunFinished
from trainer_backend.run_directory import RunDirectory

FAILING: Final = {
    "write": Kind.WRITE, "sync": Kind.SYNC, "rename": Kind.RENAME, "mkdir": Kind.MKDIR,
    "open to write": Kind.OPEN_TO_WRITE, "open to read": Kind.OPEN_TO_READ,
}  # fmt: skip
ERRORS: Final = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
A_WHILE: Final = 12
"""Calls of a disk that is full for a moment."""
LONG_ONES: Final = 12
"""Places from which a kind of call fails for a while, and for good."""
UNTOLD: Final = "gradacc: not in the journal"
"""How a line begins that says what the disk would not take."""


class Disks(Campaign):
    """The runs whose disk fails."""

    def __init__(self, folder: Path, few: int | None) -> None:
        super().__init__(folder, few)
        self.faults_at: collections.Counter[str] = collections.Counter()
        self._errors = itertools.cycle(ERRORS)

    def starts(self) -> None:
        """A run's first attempt."""
        self._all_kinds("start", self.fresh)

    def resumes(self) -> None:
        """The attempt after a kill."""
        killed = self.copy(self.fresh)
        calls = self.calls_of(self.copy(self.fresh))
        assert train(killed, Hit(at=int(calls * 0.65)), asks=1).was_killed
        self._all_kinds("resume", killed)

    def _all_kinds(self, when: str, template: RunDirectory) -> None:
        asks = 0 if template.journal_path.exists() else ASKS
        for name, kind in FAILING.items():
            calls = self.calls_of(self.copy(template), kinds=kind, asks=asks)
            for hit in self._hits(kind, calls):
                # Who waits for an answer would wait for a disk that never takes it.
                self._try(f"{when}, {name}", self.copy(template), hit, asks if hit.count == 1 else 0)

    def _hits(self, kind: Kind, calls: int) -> Iterator[Hit]:
        for at in self.chosen(calls):
            yield Hit(kinds=kind, at=at, error=self._error(kind))
        for number in range(min(LONG_ONES, calls) if self._few is None else min(self._few, LONG_ONES, calls)):
            at = 1 + number * calls // LONG_ONES
            yield Hit(kinds=kind, at=at, error=self._error(kind), count=A_WHILE)
            yield Hit(kinds=kind, at=at, error=self._error(kind), count=0)

    def _error(self, kind: Kind) -> int:
        return errno.EIO if kind is Kind.OPEN_TO_READ else next(self._errors)

    def _try(self, kind: str, run: RunDirectory, hit: Hit, asks: int) -> None:
        what = f"{kind}, {hit}"
        before = records_now(run)
        said_before = len(run.log_path.read_bytes()) if run.log_path.exists() else 0
        end = train(run, hit, asks=asks)
        self.faults_at[kind] += 1
        self.counts["hangs"] += end.hung
        try:
            now = records_now(run)
        except GradaccError as error:
            self.wrong("unresumable", run, what, [f"a reader said: {error}"])
            now = before
        if now[: len(before)] != before:
            self.wrong("events_lost", run, what, ["what was committed went"])
        if end.code == 0 and now and isinstance(now[-1].event, RunFinished):
            self.counts["faults_survived"] += 1
        else:
            self.counts["faults_told"] += 1
            self._check_said(run, what, said_before, hit, end.code)
            end = train(run)
            self.counts["hangs"] += end.hung
        self.judge(run, what, end.code, now)

    def _check_said(self, run: RunDirectory, what: str, start: int, hit: Hit, code: int) -> None:
        """An attempt that ended says so in one line, where its log can be written at all."""
        text = run.log_path.read_bytes()[start:].decode("utf-8", "replace") if run.log_path.exists() else ""
        lines = [line for line in text.splitlines() if not line.startswith(UNTOLD)]
        said = [line for line in lines if line != f"{run.id}: {run.path}"]
        told_facts = len(lines) < len(text.splitlines())
        if code == 0 and not told_facts:
            self.wrong("not_a_sentence", run, what, [f"exit code 0 without RunFinished: {text}"])
        if code not in (0, 1, 2) or len(said) > 1 or (not said and not hit.kinds & Kind.WRITE):
            self.wrong("not_a_sentence", run, what, [f"exit code {code}", *said])

    def found(self) -> dict[str, Any]:
        """What is printed."""
        own = {name: self.counts[name] for name in ("faults_survived", "faults_told", "not_a_sentence")}
        faults = {"injected_faults": self.faults_at.total(), "faults_at": dict(self.faults_at)}
        return faults | own | super().found()


def main() -> None:
    """Inject, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--few", type=int, metavar="N", help="so many faults of each kind")
    parser.add_argument("--only", action="append", help="of starts, resumes")
    asked = parser.parse_args()
    import_all()
    with place() as folder:
        campaign = Disks(folder, asked.few)
        for name in asked.only or ("starts", "resumes"):
            began = time.monotonic()
            getattr(campaign, name)()
            print(
                f"{name}: {time.monotonic() - began:.0f} s, {campaign.found()}", file=sys.stderr, flush=True
            )
        print(json.dumps(campaign.found()))


if __name__ == "__main__":
    main_preloaded("tests.bench.faults.disks", main)
