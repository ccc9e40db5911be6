"""A run of minutes under many hands: `python -m tests.bench.faults.soak [--minutes M]`.

Commands of every kind come several times a second; the trainer is killed and resumed three times, then one
attempt lives for the rest. Printed under "soak": what happened, by the facts' names; memory_first_mib and
memory_last_mib (resident; medians of the first and the last third of the long attempt), files_first and
files_last (open ones), threads_first and threads_last; and what was wrong, all 0: unanswered,
without_effect, wrong_n (optimizer steps with another N than the facts say), gaps (numbers of no event).
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

import psutil

from tests.bench.faults._outcomes import gaps, records_now, without_trace
from tests.bench.faults._trainers import place, sent_path
from tests.support.trainers import PATIENCE_S, Trainer, make_run
from trainer_backend.inbox import send
from trainer_backend.protocol import (
    AccumulationChanged,
    AnyCommand,
    CheckpointSaved,
    OptimizerStepMeasured,
    Pause,
    Paused,
    Record,
    Resume,
    RollBack,
    RolledBack,
    RunStopped,
    SaveCheckpoint,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    SettingChanged,
    Stop,
)
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunFacts

RECIPE: Final[dict[str, Any]] = {
    "run": {"max_samples": 100_000_000, "device": "cpu", "readings_every_s": 2},
    "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
    "optimizer": {"name": "adamw", "learning_rate": 1e-3},
    "checkpoint": {"every_samples": 400, "keep": 2},
}
KILLS: Final = 3
SHORT_S: Final = 10.0
"""How long an attempt lives that is killed."""
WARM_S: Final = 15.0
"""Until memory is counted."""
LOOK_S: Final = 1.0
KINDS: Final = (
    Paused,
    AccumulationChanged,
    SettingChanged,
    CheckpointSaved,
    RolledBack,
    OptimizerStepMeasured,
)


class Look:
    """What a process holds, once a second."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._next = time.monotonic() + WARM_S
        self.seen: list[tuple[float, int, int]] = []
        """Resident MiB, open files, threads."""

    def look(self) -> None:
        """Look, if it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_S
        process = self._process
        self.seen.append((process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()))

    def found(self) -> dict[str, float]:
        """Medians of the first and the last third."""
        third = max(1, len(self.seen) // 3)
        names = ("memory_{}_mib", "files_{}", "threads_{}")
        return {
            name.format(when): round(statistics.median(part), 1)
            for when, looks in (("first", self.seen[:third]), ("last", self.seen[-third:]))
            for name, part in zip(names, zip(*looks, strict=True), strict=True)
        }


class Hands:
    """Whoever steers the run; the same commands in the same order each time."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._draw = random.Random(0)  # noqa: S311 - no secret
        self.sent: list[str] = []

    def act(self) -> None:
        """Send one command, or a pause and its end."""
        draw = self._draw
        command: AnyCommand = draw.choice(
            (
                SetAccumulation(steps=draw.randint(1, 8), learning_rate_rule=draw.choice(("none", "sqrt"))),
                SetAccumulation(steps=draw.randint(1, 8)),
                SetMicroBatchSize(size=draw.randint(1, 4), keep_effective_batch=False),
                SetLearningRate(value=draw.uniform(1e-5, 1e-2)),
                SetMaxGradNorm(value=draw.choice((None, 0.5, 1.0))),
                SaveCheckpoint(),
                Pause(),
                RollBack() if draw.random() < 0.2 else SaveCheckpoint(),
            )
        )
        self._send(command)
        if isinstance(command, Pause):
            time.sleep(draw.uniform(0.0, 0.3))
            self._send(Resume())
        time.sleep(draw.uniform(0.05, 0.4))

    def _send(self, command: AnyCommand) -> None:
        send(self._run.inbox_path, command)
        self.sent.append(command.id)
        with sent_path(self._run).open("a", encoding="ascii") as file:
            file.write(f"{command.id}\n")


def wrong_n(records: list[Record]) -> int:
    """Optimizer steps whose N is not the one that the facts before them say."""
    facts = RunFacts()
    wrong = 0
    for record in records:
        if isinstance(record.event, OptimizerStepMeasured):
            wrong += record.event.accumulation_steps != facts.accumulation_at(record.seq)
        else:
            facts.take_all([record])
    return wrong


def soak(run: RunDirectory, minutes: float) -> dict[str, Any]:
    """Steer, kill, resume, stop; what was found."""
    hands = Hands(run)
    look: Look | None = None
    for number in range(KILLS + 1):
        with Trainer(run) as trainer:
            trainer.wait_for_kind(OptimizerStepMeasured)
            look = Look(trainer.process.pid)
            lives_s = SHORT_S if number < KILLS else minutes * 60
            ends_at = time.monotonic() + lives_s
            while time.monotonic() < ends_at:
                hands.act()
                if number == KILLS:
                    look.look()
            if number == KILLS:
                send(run.inbox_path, Stop())
                assert isinstance(trainer.end(PATIENCE_S), RunStopped)
    assert look is not None
    records = records_now(run)
    counts = collections.Counter(type(record.event) for record in records)
    said = list(without_trace(run, [record.event for record in records]))
    print(*said[:10], sep="\n", file=sys.stderr)
    unanswered = sum("never answered" in each or "inbox" in each for each in said)
    return {
        "minutes": minutes,
        "kills": KILLS,
        "commands": len(hands.sent),
        **{kind.__name__: counts[kind] for kind in KINDS},
        **look.found(),
        "unanswered": unanswered,
        "without_effect": len(said) - unanswered,
        "wrong_n": wrong_n(records),
        "gaps": len(gaps(records)),
    }


def main() -> None:
    """Soak, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=4.0, help="how long the long attempt lives")
    asked = parser.parse_args()
    with place() as folder:
        run = make_run(folder / "source", RECIPE, module=Path(__file__).with_name("_endless_task.py"))
        print(json.dumps({"soak": soak(run, asked.minutes)}))


if __name__ == "__main__":
    main()
