"""What a run is doing, from its facts and its lock."""

from __future__ import annotations

import enum
from typing import assert_never

from trainer_backend.protocol import (
    CommandAccepted,
    OutOfMemoryRecovered,
    Paused,
    PhaseEntered,
    Record,
    Resumed,
    RunEnded,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SettingChanged,
    Stop,
)


class RunState(enum.StrEnum):
    """What a run is doing. Each attempt ends in one of the last four."""

    PENDING = "pending"
    """Its directory is there; no trainer has written anything yet."""
    LOADING = "loading"
    """A trainer lives and is not yet ready to train; `RunStore.phase` says what it does."""
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    """A stop was accepted; the window of micro-batches and the checkpoint are being finished."""
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """No trainer lives and none said how it ended: killed, crashed, or the machine went down."""

    @property
    def is_over(self) -> bool:
        """Whether nothing will come before somebody resumes the run."""
        return self in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED)


class StateTracker:
    """Follows facts in order; asks nobody."""

    def __init__(self) -> None:
        self.attempt = 0
        self.phase = ""
        """What the trainer said last that it does (`PhaseEntered.phase`); empty before that."""
        self.started: RunStarted | None = None
        """How the newest attempt began."""
        self.started_at: float | None = None
        self.ended: RunEnded | None = None
        """How the newest attempt ended; None while it has not, or never said."""
        self.micro_batch_size = 0
        self._ready = False
        self._paused = False
        self._stopping = False
        self._asked_stops: set[str] = set()

    def asked(self, command_id: str) -> None:
        """A stop was sent; a trainer of an older version accepts it without saying what it was."""
        self._asked_stops.add(command_id)

    def apply(self, record: Record) -> None:
        """Take the next fact."""
        if record.attempt != self.attempt:
            self.attempt = record.attempt
            self.ended, self.phase = None, ""
            self._ready = self._paused = self._stopping = False
        match record.event:
            case PhaseEntered(phase=phase):
                self.phase = phase
            case RunStarted() as started:
                self.started, self.started_at, self._ready = started, record.at, True
                self.micro_batch_size = started.micro_batch_size
            case SettingChanged(key="accumulation.micro_batch_size", after=int(size)):
                self.micro_batch_size = size
            case OutOfMemoryRecovered(micro_batch_size=size):
                self.micro_batch_size = size
            case Paused():
                self._paused = True
            case Resumed():
                self._paused = False
            case CommandAccepted(command_id=command_id, command=command):
                is_stop = command == Stop.__name__ or command_id in self._asked_stops
                self._stopping = self._stopping or is_stop
            case RunFinished() | RunStopped() | RunFailed() as ended:
                self.ended = ended
            case _:
                pass

    def state(self, *, alive: bool, pid: int | None) -> RunState:
        """The run's state. `alive`: the lock is held; `pid`: who wrote its id into the lock."""
        another = self.started is not None and pid is not None and pid != self.started.pid
        if alive and (not self._ready or (another and self._ready)):
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
        if self._stopping:
            return RunState.STOPPING
        return RunState.PAUSED if self._paused else RunState.RUNNING
