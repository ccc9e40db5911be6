"""Whether a run that was killed, or met a bad disk, ended as an undisturbed one, and has lost nothing."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.bench.faults._trainers import sent_path
from trainer_backend.errors import GradaccError
from trainer_backend.journal_reader import JournalReader
from trainer_backend.protocol import (
    AccumulationChanged,
    AnyEvent,
    CommandAccepted,
    CommandRefused,
    EvaluationMeasured,
    MeasurementsLost,
    MicroBatchMeasured,
    OptimizerStepMeasured,
    Record,
    RunFinished,
    RunStarted,
    RunStopped,
    SettingChanged,
    Warned,
)
from trainer_backend.run_directory import RunDirectory, checkpoints_in

JOURNAL: Final = ("run.sqlite", "run.sqlite-wal", "run.sqlite-shm", "run.sqlite-journal")
ALL_EVENTS: Final = 1_000_000
_TIMES: Final = ("duration_s", "data_wait_s", "samples_per_s", "tokens_per_s")
"""What two equal runs measure differently."""
_COURSE: Final = (
    "step",
    "samples_seen",
    "tokens_seen",
    "engine",
    "optimizer",
    "python_random",
    "numpy_random",
)
"""What of a checkpoint's plain values the next optimizer step depends on."""


class Course(msgspec.Struct, frozen=True):
    """What a run came to: the bits of its last checkpoint, and what was measured on the way there."""

    tensors: dict[str, bytes]
    state: dict[str, Any]
    measured: dict[tuple[str, int, int], dict[str, Any]]
    """By kind, step and micro-batch: what counts, without times."""


class Outcome(msgspec.Struct, kw_only=True):
    """What was wrong with one run after it was resumed, as sentences by kind. Empty is right."""

    unresumable: list[str] = []
    not_bit_equal: list[str] = []
    events_lost: list[str] = []
    commands_without_trace: list[str] = []

    def wrong(self) -> dict[str, list[str]]:
        """The kinds that have something."""
        return {kind: said for kind, said in msgspec.structs.asdict(self).items() if said}


def records_now(run: RunDirectory) -> list[Record]:
    """All that is committed, read from a copy, so that nothing is put right in the run itself.

    Raises RunDirectoryError where a reader would call the journal damaged.
    """
    if not run.journal_path.exists():
        return []
    with tempfile.TemporaryDirectory(prefix="gradacc-look-") as folder:
        for name in JOURNAL:
            if (run.path / name).exists():
                shutil.copy(run.path / name, folder)
        reader = JournalReader(Path(folder) / JOURNAL[0])
        try:
            return reader.read(0, ALL_EVENTS).records()
        finally:
            reader.close()


def course_of(run: RunDirectory, records: Iterable[Record] | None = None) -> Course:
    """What a run that has ended came to."""
    (path,) = list(checkpoints_in(run.checkpoints_path).values())[-1:]
    state = json.loads((path / "state.json").read_text("utf-8"))
    plain = {name: state[name] for name in _COURSE}
    plain["standing"] = {name: value for name, value in state["standing"].items() if name != "journal"}
    tensors = {name: (path / name).read_bytes() for name in ("model.safetensors", "training.safetensors")}
    return Course(tensors, plain, measured_in(records_now(run) if records is None else records))


def measured_in(records: Iterable[Record]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Measurements that no later attempt superseded."""
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for record in records:
        match record.event:
            case RunStarted(from_step=from_step):
                found = {key: value for key, value in found.items() if key[1] <= from_step}
            case MicroBatchMeasured() | OptimizerStepMeasured() | EvaluationMeasured() as event:
                values = msgspec.structs.asdict(event)
                counted = {name: value for name, value in values.items() if name not in _TIMES}
                found[type(event).__name__, event.step, values.get("index", 0)] = counted
    return found


def judge(run: RunDirectory, code: int, before: list[Record], courses: dict[int, Course]) -> Outcome:
    """What is wrong with a run that was resumed to its end.

    `code`: the last attempt's exit code. `before`: what was committed when the run was hit. `courses`: the
    undisturbed runs, by the commands that they had.
    """
    outcome = Outcome()
    try:
        records = records_now(run)
    except GradaccError as error:
        outcome.unresumable = [str(error)]
        return outcome
    events = [record.event for record in records]
    if code != 0 or not events or not isinstance(events[-1], RunFinished):
        log = run.log_path.read_text("utf-8", "replace")[-2000:]
        outcome.unresumable = [f"exit code {code}: {log}"]
        return outcome
    outcome.events_lost = [*_missing(before, records), *gaps(records)]
    outcome.commands_without_trace = list(without_trace(run, events))
    had = _had(events)
    course, right = course_of(run, records), courses[had]
    for name, value in right.tensors.items():
        if course.tensors[name] != value:
            outcome.not_bit_equal.append(f"{name} differs")
    for name, value in right.state.items():
        if course.state[name] != value:
            outcome.not_bit_equal.append(f"{name}: {course.state[name]} in place of {value}")
    for key, expected in right.measured.items():
        found = course.measured.get(key)
        if found is None:
            outcome.events_lost.append(f"{key} is missing")
        elif found != expected:
            outcome.not_bit_equal.append(f"{key}: {found} in place of {expected}")
    outcome.not_bit_equal += [f"{key} is too much" for key in course.measured.keys() - right.measured.keys()]
    return outcome


def _had(events: Iterable[AnyEvent]) -> int:
    """Which of the task's two commands had an effect, as `_steered_task` counts them."""
    had = 0
    for event in events:
        match event:
            case AccumulationChanged(command_id=str()):
                had |= 1
            case SettingChanged(command_id=str(), key="optimizer.learning_rate"):
                had |= 2
            case _:
                pass
    return had


def _missing(before: list[Record], after: list[Record]) -> list[str]:
    """What was committed, and is not there any more."""
    there = {record.seq: record for record in after}
    return [f"{record} has gone" for record in before if there.get(record.seq) != record]


def gaps(records: list[Record]) -> list[str]:
    """Sequence numbers that no event has, and none says were lost."""
    told = {
        seq
        for record in records
        if isinstance(record.event, MeasurementsLost)
        for seq in range(record.event.first, record.event.last + 1)
    }
    there = {record.seq for record in records}
    return [f"no event {seq}" for seq in range(1, max(there, default=0) + 1) if seq not in there | told]


def without_trace(run: RunDirectory, events: list[AnyEvent]) -> Iterable[str]:
    """Commands that were sent and not answered, were accepted without effect or word, or still lie there."""
    answered = {event.command_id for event in events if isinstance(event, CommandAccepted | CommandRefused)}
    effects = {
        getattr(event, "command_id", None) for event in events if not isinstance(event, CommandAccepted)
    }
    effects |= {event.values.get("command_id") for event in events if isinstance(event, Warned)}
    sent = sent_path(run).read_text("ascii").split() if sent_path(run).exists() else []
    waiting = [entry.name for entry in run.inbox_path.iterdir() if entry.suffix == ".json"]
    yield from (f"{command} was never answered" for command in sent if command not in answered)
    yield from (f"{name} still lies in the inbox" for name in waiting)
    effects |= set(_obeyed_stops(events))
    accepted = (event for event in events if isinstance(event, CommandAccepted))
    yield from (f"{event} had no effect" for event in accepted if event.command_id not in effects)


def _obeyed_stops(events: Iterable[AnyEvent]) -> Iterator[str]:
    """The effect of a stop is the end of its attempt."""
    asked: list[str] = []
    for event in events:
        match event:
            case CommandAccepted(command="Stop"):
                asked.append(event.command_id)
            case RunStopped():
                yield from asked
            case RunStarted():
                asked = []
            case _:
                pass
