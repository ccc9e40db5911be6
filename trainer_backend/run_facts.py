"""What is so now in a run, told from its facts in order: the one place where facts are folded.

    facts = RunFacts(asked)
    for record in reader.facts():
        facts.take(record)
    facts.settings, facts.state(alive=run.is_alive(), pid=run.pid()), facts.progress(newest_row)

Pure: reads no file and no clock. Measurements are not folded; of them, `progress` is shown the newest.
To add a fact: its class in `protocol`, and its case in `RunFacts.take`, which does not check without one.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterable
from typing import Final, TypeAlias, assert_never

import msgspec

from trainer_backend.goals import Mode
from trainer_backend.protocol import (
    AccumulationChanged,
    AlertRaised,
    AnyCommand,
    ArtifactSaved,
    CheckpointSaved,
    CommandAccepted,
    CommandRefused,
    DeviceSampled,
    EvaluationMeasured,
    Event,
    GateAnswered,
    HostSampled,
    MeasurementsLost,
    MicroBatchMeasured,
    NoiseScaleMeasured,
    NonFiniteSeen,
    OptimizerStepMeasured,
    OutOfMemoryRecovered,
    Pause,
    Paused,
    PhaseEntered,
    RankMeasured,
    Record,
    Resumed,
    RolledBack,
    RunEnded,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    Scalar,
    SettingChanged,
    Slept,
    Stop,
    TargetJudged,
    Warned,
)
from trainer_backend.settings import FIELDS, STEPS, Settings, with_value, with_values

CEILING: Final = "micro_batch_ceiling"
"""The key of a change that is no setting: a window that ran out of memory is split again as it was."""
REPLAY_ENDED: Final = "replay-ended"
REPLAY_DECLINED: Final = "replay-declined"
"""Codes of the warnings that void the changes recorded for their step and later ones."""


class RunState(enum.StrEnum):
    """What a run is doing. Each attempt ends in FINISHED, STOPPED, FAILED or INTERRUPTED."""

    PENDING = "pending"
    """Its directory is there; no trainer has written anything yet."""
    LOADING = "loading"
    """A trainer lives (or was just launched) and is not yet ready to train; `RunFacts.phase` says more."""
    RUNNING = "running"
    PAUSING = "pausing"
    """A pause was accepted; the window of micro-batches is being finished."""
    PAUSED = "paused"
    STOPPING = "stopping"
    """A stop was accepted; the window of micro-batches and the checkpoint are being finished."""
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """No trainer lives and none said how it ended: killed, crashed, or the machine went down."""
    WAITING = "waiting"
    """It waits in the queue. No facts tell this; the queue's own files do."""
    DAMAGED = "damaged"
    """Its directory cannot be read. No facts tell this; whoever failed to read them does."""

    @property
    def is_over(self) -> bool:
        """Whether nothing will come before somebody resumes the run."""
        return self in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED)

    @property
    def is_live(self) -> bool:
        """Whether a trainer is there to answer: it is ready, and has not said how it ended."""
        return self in (RunState.RUNNING, RunState.PAUSING, RunState.PAUSED, RunState.STOPPING)

    @property
    def is_alive(self) -> bool:
        """Whether a trainer works in it, or is about to."""
        return self is RunState.LOADING or self.is_live

    @property
    def can_resume(self) -> bool:
        """Whether a new attempt may go on from its last checkpoint."""
        return self in (RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED)


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands since a fact of this number: an attempt began there, or it went back there."""

    seq: int
    at: float
    attempt: int
    step: int
    samples: int
    tokens: int
    begins_attempt: bool
    checkpoint_seq: int | None
    """The number of the fact that told of the checkpoint it stands on; None: it is not known."""


class RecordedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A setting (the recipe's key, or CEILING) is `after` from the start of window `step` on."""

    seq: int
    attempt: int
    step: int
    key: str
    before: Scalar
    after: Scalar
    asked_by: str
    micro_batches: int | None = None
    """Of a changed N: M, over the ranks of then."""


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is: what it trained and no later attempt or roll-back went behind."""

    seq: int
    at: float
    step: int
    samples_seen: int
    tokens_seen: int
    loss: float | None
    """Of that step; None where the run has just gone back, and has measured nothing since."""


class _Saved(msgspec.Struct, frozen=True):
    """A checkpoint, and what was in force when it was saved."""

    seq: int
    settings: Settings | None
    best_value: float | None = None
    """The metric, where it was saved because that was the best so far."""


Effect: TypeAlias = Stand | RecordedChange
"""What a fact did that moves what comes after it in the journal."""


class RunFacts:
    """Follows a run's facts.

    `asked`: the settings of its recipe, for journals of older versions, which did not tell all that
    was in force when an attempt began. Newer ones do not need it.
    """

    def __init__(self, asked: Settings | None = None) -> None:
        self.attempt = 0
        """The newest, from 1; 0 before the first fact."""
        self.phase = ""
        """What the trainer said last that it does (`PhaseEntered.phase`); empty before that."""
        self.phase_done: float | None = None
        """How far a save is, from 0 to 1; None where nothing is told."""
        self.first_started_at: float | None = None
        """When the first attempt was ready to train, in seconds since the epoch."""
        self.started: RunStarted | None = None
        """How the newest attempt that was ready to train began."""
        self.started_at: float | None = None
        self.ended: RunEnded | None = None
        """How the newest attempt ended; None while it has not, or never said."""
        self.paused = False
        self.stopping = False
        self.settings: Settings | None = None
        """What is in force for the coming window; None until an attempt is ready to train."""
        self.targets: dict[tuple[str, str], TargetJudged] = {}
        """The newest verdict on each target, by its key and bound."""
        self.overridden: set[str] = set()
        """Targets that a person went on without."""
        self.asking: TargetJudged | None = None
        """The missed target that has paused the run, and waits for an answer."""
        self._missed: TargetJudged | None = None
        """The newest miss that may pause the run at the coming border."""
        self.owed: dict[str, CommandAccepted] = {}
        """Commands that were accepted and whose effect nothing has told, by id, oldest first."""
        self.stands: list[Stand] = []
        """Where attempts began and roll-backs went to, in order: what superseded earlier rows."""
        self._asked = asked
        self._first: Settings | None = None
        """What the first attempt began with."""
        self._ready = False
        self._pause = ""
        """The id of an accepted pause that has not begun yet."""
        self._unnamed_stops: set[str] = set()
        self._saved: dict[int, _Saved] = {}
        """Checkpoints by step, in the order in which they were saved."""
        self._changes: dict[tuple[int, str], RecordedChange] = {}
        self._n_seqs: list[int] = []
        self._n_values: list[int] = []

    # ---------------------------------------------------------------------------- taking facts

    def take(self, record: Record) -> Effect | None:  # noqa: C901, PLR0912 - one case a fact
        """Take the next fact; gives where the run stands since, or what it changed. No measurement counts."""
        if record.attempt != self.attempt:
            self._begin_attempt(record.attempt)
        fact = record.event
        self._settle(fact)
        match fact:
            case PhaseEntered():
                self.phase, self.phase_done = fact.phase, fact.done_ratio
            case RunStarted():
                return self._start(record, fact)
            case RolledBack():
                return self._go_back(record, fact)
            case AccumulationChanged():
                change = RecordedChange(
                    seq=record.seq, attempt=record.attempt, step=fact.step, key=STEPS, before=fact.before,
                    after=fact.after, asked_by=fact.asked_by, micro_batches=fact.micro_batches,
                )  # fmt: skip
                # The recipe's own schedule comes again by itself: a resumed run need not repeat it.
                return self._change(change, recorded=fact.asked_by != "schedule")
            case SettingChanged():
                change = RecordedChange(
                    seq=record.seq, attempt=record.attempt, step=fact.step, key=fact.key, before=fact.before,
                    after=fact.after, asked_by=fact.asked_by,
                )  # fmt: skip
                return self._change(change, recorded=fact.key in FIELDS and fact.asked_by != "schedule")
            case OutOfMemoryRecovered():
                # What the window was split to; where that changes a setting, the next facts say so.
                self._changes[fact.step, CEILING] = RecordedChange(
                    seq=record.seq, attempt=record.attempt, step=fact.step, key=CEILING,
                    before=fact.micro_batch_size_before, after=fact.micro_batch_size,
                    asked_by="out-of-memory",
                )  # fmt: skip
            case CheckpointSaved():
                self._saved.pop(fact.step, None)
                best = fact.value if fact.kept_as == "best" else None
                self._saved[fact.step] = _Saved(record.seq, self.settings, best)
            case CommandAccepted():
                self._accepted(fact)
            case CommandRefused():
                if fact.command_id == self._pause:  # it was overtaken
                    self._pause = ""
            case Paused():
                self.paused, self._pause = True, ""
                if not fact.command_id:  # the trainer's own wish
                    self.asking, self._missed = self._missed, None
            case Resumed():
                self.paused, self.asking = False, None
            case RunFinished() | RunStopped() | RunFailed():
                self.ended = fact
            case Warned():
                step = fact.values.get("step")
                if fact.code in (REPLAY_ENDED, REPLAY_DECLINED) and isinstance(step, int):
                    self._void_changes_after(step - 1)
            case TargetJudged() | GateAnswered():
                self._judged(fact)
            case NonFiniteSeen() | AlertRaised() | ArtifactSaved() | Slept() | MeasurementsLost():
                pass  # they tell what happened, and change nothing that is so now
            case (
                MicroBatchMeasured()
                | OptimizerStepMeasured()
                | RankMeasured()
                | DeviceSampled()
                | HostSampled()
                | EvaluationMeasured()
                | NoiseScaleMeasured()
            ):
                pass
            case _:
                assert_never(fact)
        return None

    def _settle(self, fact: Event) -> None:
        """Keep `owed`: any fact that names a command tells its effect, and an attempt's end settles all."""
        match fact:
            case CommandAccepted():
                if fact.asked is not None:
                    self.owed[fact.command_id] = fact
            case Warned(values=values):
                self.owed.pop(str(values.get("command_id")), None)
            case RunFinished() | RunStopped() | RunFailed():
                self.owed.clear()
            case _:
                self.owed.pop(str(getattr(fact, "command_id", None)), None)

    def take_all(self, records: Iterable[Record]) -> RunFacts:
        """Take several facts; gives itself."""
        for record in records:
            self.take(record)
        return self

    def sent(self, command: AnyCommand) -> None:
        """A command was sent from here: a trainer of an older version accepts it without naming it."""
        if isinstance(command, Stop):
            self._unnamed_stops.add(command.id)

    def _judged(self, fact: TargetJudged | GateAnswered) -> None:
        match fact:
            case TargetJudged():
                self.targets[fact.key, fact.bound] = fact
                if fact.acted and fact.act in ("pause", "roll-back"):
                    self._missed = fact
            case GateAnswered():
                self.asking = None
                if fact.answer == "continue":
                    self.overridden.add(fact.key)

    def _begin_attempt(self, attempt: int) -> None:
        self.attempt = attempt
        self.ended, self.phase, self._pause = None, "", ""
        self._ready = self.paused = self.stopping = False
        self.asking = self._missed = None
        self.targets = {}  # each attempt judges anew

    def _accepted(self, fact: CommandAccepted) -> None:
        if fact.command == Stop.__name__ or fact.command_id in self._unnamed_stops:
            self.stopping = True
        elif fact.command == Pause.__name__:
            self._pause = fact.command_id

    def _start(self, record: Record, fact: RunStarted) -> Stand:
        self.started, self.started_at, self._ready = fact, record.at, True
        if self.first_started_at is None:
            self.first_started_at = record.at
        saved = self._saved_at(fact.from_step)
        base = saved.settings if saved is not None else None
        if fact.settings is not None:
            base = _told(fact.settings)
        base = base or self._first or self._asked or Settings(accumulation_steps=1, micro_batch_size=1)
        settings = msgspec.structs.replace(
            base,
            accumulation_steps=fact.accumulation_steps,
            micro_batch_size=fact.micro_batch_size,
            world_size=_ranks_of(fact.accumulation_steps, fact.micro_batches) or fact.world_size,
            ranks=fact.world_size,
        )
        self._first = self._first or settings
        return self._stand(
            record, settings, saved, step=fact.from_step, samples=fact.from_samples, tokens=fact.from_tokens
        )

    def _go_back(self, record: Record, fact: RolledBack) -> Stand:
        self.asking = self._missed = None
        saved = self._saved_at(fact.to_step)
        settings = saved.settings if saved is not None else self._first or self._asked
        if fact.settings is not None:
            world, ranks = (
                (1, 1) if self.settings is None else (self.settings.world_size, self.settings.ranks)
            )
            settings = msgspec.structs.replace(_told(fact.settings), world_size=world, ranks=ranks)
        self._void_changes_after(fact.to_step)
        return self._stand(
            record, settings, saved, step=fact.to_step, samples=fact.to_samples, tokens=fact.to_tokens
        )

    def _saved_at(self, step: int) -> _Saved | None:
        """The checkpoint that the run stands on again; later ones are set aside."""
        self._saved = {other: saved for other, saved in self._saved.items() if other <= step}
        return self._saved.get(step)

    def _stand(
        self, record: Record, settings: Settings | None, saved: _Saved | None, *, step: int, samples: int,
        tokens: int,
    ) -> Stand:  # fmt: skip
        self._set(settings, record.seq)
        stand = Stand(
            seq=record.seq,
            at=record.at,
            attempt=record.attempt,
            step=step,
            samples=samples,
            tokens=tokens,
            begins_attempt=isinstance(record.event, RunStarted),
            checkpoint_seq=None if saved is None else saved.seq,
        )
        self.stands.append(stand)
        return stand

    def _change(self, change: RecordedChange, *, recorded: bool) -> RecordedChange:
        if recorded:
            self._changes.pop((change.step, change.key), None)  # the latest told is the last
            self._changes[change.step, change.key] = change
        if self.settings is not None:
            settings = with_value(self.settings, change.key, change.after)
            ranks = _ranks_of(change.after, change.micro_batches)
            if ranks is not None:
                settings = msgspec.structs.replace(settings, world_size=ranks)
            self._set(settings, change.seq)
        return change

    def _set(self, settings: Settings | None, seq: int) -> None:
        self.settings = settings
        if settings is not None and (not self._n_values or self._n_values[-1] != settings.accumulation_steps):
            self._n_seqs.append(seq)
            self._n_values.append(settings.accumulation_steps)

    def _void_changes_after(self, step: int) -> None:
        self._changes = {place: change for place, change in self._changes.items() if place[0] <= step}

    # ------------------------------------------------------------------------- what is so now

    def state(self, *, alive: bool, pid: int | None) -> RunState:
        """What the run is doing. `alive`: the lock is held; `pid`: who wrote its id into the lock."""
        another = self.started is not None and pid is not None and pid != self.started.pid
        if alive and (not self._ready or another):
            return RunState.LOADING  # `another`: a new attempt has the lock and has not spoken yet
        match self.ended:
            case RunFinished():
                return RunState.FINISHED
            case RunStopped():
                return RunState.STOPPED
            case RunFailed():
                return RunState.FAILED
            case None:
                pass
            case _:
                assert_never(self.ended)
        if not alive:
            return RunState.INTERRUPTED if self.attempt else RunState.PENDING
        if self.stopping:
            return RunState.STOPPING
        if self.paused:
            return RunState.PAUSED
        return RunState.PAUSING if self._pause else RunState.RUNNING

    def progress(self, newest: Record | None) -> Reached | None:
        """How far the run is; None before it began. `newest`: the journal's last optimizer step."""
        stand = self.stands[-1] if self.stands else None
        if newest is not None and (stand is None or newest.seq > stand.seq):
            row = newest.event
            assert isinstance(row, OptimizerStepMeasured)
            return Reached(
                seq=newest.seq, at=newest.at, step=row.step, samples_seen=row.samples_seen,
                tokens_seen=row.tokens_seen, loss=row.loss,
            )  # fmt: skip
        if stand is None:
            return None
        return Reached(
            seq=stand.seq, at=stand.at, step=stand.step, samples_seen=stand.samples,
            tokens_seen=stand.tokens, loss=None,
        )  # fmt: skip

    def checkpoints(self, keep: int | None = None, keep_best: int = 0, mode: Mode = "min") -> list[int]:
        """Steps of the checkpoints that should be on disk, oldest first.

        `keep`: how many of the newest are kept; `keep_best`: how many of the best by `mode`.
        """
        steps = list(self._saved)
        if keep is None:
            return steps
        kept = {*steps[-keep:], *(step for step, _ in self.best_checkpoints(mode)[:keep_best])}
        return [step for step in steps if step in kept]

    def best_checkpoints(self, mode: Mode) -> list[tuple[int, float]]:
        """Steps and values of those that were saved for being the best so far, the best first."""
        found = [
            (step, saved.best_value) for step, saved in self._saved.items() if saved.best_value is not None
        ]
        sign = 1 if mode == "min" else -1
        return sorted(found, key=lambda one: (sign * one[1], -one[0]))

    def is_superseded(self, seq: int, step: int) -> bool:
        """Whether the measurement with this number, of this step, was trained again, or went to waste."""
        return any(seq < stand.seq and step > stand.step for stand in self.stands)

    def accumulation_at(self, seq: int) -> int:
        """N in force at the event with this number; 1 before the first attempt began."""
        place = bisect.bisect_right(self._n_seqs, seq)
        return self._n_values[place - 1] if place else 1

    def accumulation(self) -> tuple[list[int], list[int]]:
        """N by sequence number: from each of the first list on, what the second says."""
        return [0, *self._n_seqs], [1, *self._n_values]

    def changes_ahead(self, step: int, place: tuple[int, int] | None = None) -> list[RecordedChange]:
        """What was recorded for windows after a checkpoint at `step`, over all attempts, in their order.

        `place`: attempt and sequence number that the checkpoint holds. What its own attempt recorded until
        then is in its settings, also what was changed for the window behind it (while paused, say). What
        earlier attempts recorded for later windows was still ahead of it.
        """
        attempt, seq = place or (0, 0)
        ahead = [
            change
            for change in self._changes.values()
            if change.step > step and not (change.attempt == attempt and change.seq <= seq)
        ]
        return sorted(ahead, key=lambda change: change.step)


def _ranks_of(steps: Scalar, micro_batches: int | None) -> int | None:
    """What N is multiplied by; None where the fact does not say."""
    return micro_batches // steps if micro_batches and isinstance(steps, int) else None


def _told(values: dict[str, Scalar]) -> Settings:
    """Settings as a fact tells them; what it leaves out is unknown."""
    return with_values(Settings(accumulation_steps=1, micro_batch_size=1), values)
