"""How a run is ended, from a request to a kill: a state machine that its caller's timer drives.

    ask         finish this window of micro-batches, save, exit      Stop()
    stop now    leave the window to be replayed, save, exit          Stop(now=True)
    terminate   SIGTERM (on Windows the same as kill)
    kill        SIGKILL

`Ladder` is pure: it is told the time and what was seen, and says what to do next. It never climbs while
the trainer gets on, nor by itself while a checkpoint is saved; each rung has a patience, counted from the
last sign of progress. `perform` does what it says, and touches no process but the one that holds the run's
lock.
"""

from __future__ import annotations

import enum
from contextlib import suppress
from typing import TYPE_CHECKING, Final, assert_never

import msgspec

from trainer_backend.errors import RunDirectoryError
from trainer_backend.inbox import send
from trainer_backend.protocol import Stop
from trainer_backend.run_directory import RunDirectory

if TYPE_CHECKING:
    import psutil


class Rung(enum.Enum):
    """How far a stop has gone."""

    RUNNING = "running"
    ASKED = "asked"
    ASKED_NOW = "asked-now"
    TERMINATED = "terminated"
    KILLED = "killed"
    ENDED = "ended"


class Act(enum.Enum):
    """What the caller is to do now (`perform` does it)."""

    ASK = "ask"
    ASK_NOW = "ask-now"
    TERMINATE = "terminate"
    KILL = "kill"


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds without progress before the next rung is taken."""

    asked_s: float = 180.0
    """A long window, a slow evaluation and a large checkpoint all come before a polite stop ends."""
    asked_now_s: float = 60.0
    terminated_s: float = 10.0


PATIENCE: Final = Patience()
LAUNCHER: Final = "torch.distributed.run"
"""In the command line of what starts several ranks."""


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stop stands. Immutable: each method gives the next state and what to do."""

    rung: Rung = Rung.RUNNING
    since: float = 0.0
    """When the rung was taken or progress was last seen; on the caller's monotonic clock, in seconds."""
    patience: Patience = PATIENCE

    def ask(self, now: float, *, at_once: bool = False) -> tuple[Ladder, Act | None]:
        """A person asks the run to end; a second request may be stronger, never weaker."""
        match self.rung:
            case Rung.RUNNING:
                return self._to(Rung.ASKED_NOW, now) if at_once else self._to(Rung.ASKED, now)
            case Rung.ASKED if at_once:
                return self._to(Rung.ASKED_NOW, now)
            case _:
                return self, None

    def end_by_force(self, now: float) -> tuple[Ladder, Act | None]:
        """The person was asked, and will lose what is not saved yet rather than wait: the last rung, now."""
        return (self, None) if self.rung in (Rung.KILLED, Rung.ENDED) else self._to(Rung.KILLED, now)

    def climb(self, now: float) -> tuple[Ladder, Act | None]:
        """The next rung, now."""
        match self.rung:
            case Rung.RUNNING | Rung.ASKED:
                return self._to(Rung.ASKED_NOW, now)
            case Rung.ASKED_NOW:
                return self._to(Rung.TERMINATED, now)
            case Rung.TERMINATED:
                return self._to(Rung.KILLED, now)
            case Rung.KILLED | Rung.ENDED:
                return self, None
            case _:
                assert_never(self.rung)

    def progressed(self, now: float) -> Ladder:
        """The training thread got on (a micro-batch, a phase, a checkpoint): patience starts anew."""
        if self.rung in (Rung.ASKED, Rung.ASKED_NOW):
            return msgspec.structs.replace(self, since=now)
        return self

    def look(self, now: float, *, alive: bool, saving: bool = False) -> tuple[Ladder, Act | None]:
        """A tick of the caller's timer.

        `alive`: whether the run's lock is held. `saving`: whether a checkpoint is being written, which takes
        as long as it takes.
        """
        if self.rung in (Rung.RUNNING, Rung.ENDED):
            return self, None
        if not alive:
            return msgspec.structs.replace(self, rung=Rung.ENDED, since=now), None
        if saving:
            return msgspec.structs.replace(self, since=now), None
        deadline = self.deadline()
        return self.climb(now) if deadline is not None and now >= deadline else (self, None)

    def deadline(self) -> float | None:
        """When the next rung is taken if nothing moves; None when there is none."""
        match self.rung:
            case Rung.ASKED:
                return self.since + self.patience.asked_s
            case Rung.ASKED_NOW:
                return self.since + self.patience.asked_now_s
            case Rung.TERMINATED:
                return self.since + self.patience.terminated_s
            case Rung.RUNNING | Rung.KILLED | Rung.ENDED:
                return None
            case _:
                assert_never(self.rung)

    def _to(self, rung: Rung, now: float) -> tuple[Ladder, Act | None]:
        return msgspec.structs.replace(self, rung=rung, since=now), _ACTS[rung]


_ACTS: Final = {
    Rung.ASKED: Act.ASK,
    Rung.ASKED_NOW: Act.ASK_NOW,
    Rung.TERMINATED: Act.TERMINATE,
    Rung.KILLED: Act.KILL,
}


def perform(act: Act, run: RunDirectory, *, asked_by: str) -> str:
    """Do what a ladder said; gives the command's id for a wish, else "".

    Raises RunDirectoryError when the inbox takes no file, or no process of this machine holds the lock.
    """
    match act:
        case Act.ASK:
            return send(run.inbox_path, Stop(asked_by=asked_by))
        case Act.ASK_NOW:
            return send(run.inbox_path, Stop(asked_by=asked_by, now=True))
        case Act.TERMINATE:
            holder(run).terminate()
        case Act.KILL:
            trainer = holder(run)
            _kill_launcher(trainer)
            trainer.kill()
        case _:
            assert_never(act)
    return ""


def _kill_launcher(trainer: psutil.Process) -> None:
    """End the launcher of several ranks first: it would start them again."""
    import psutil  # noqa: PLC0415 - as in `holder`

    with suppress(psutil.Error):
        parent = trainer.parent()
        if parent is not None and LAUNCHER in parent.cmdline():
            parent.kill()


def holder(run: RunDirectory) -> psutil.Process:
    """The process that holds the run's lock. Raises RunDirectoryError when it cannot be told for certain.

    A number in a file is not enough to kill by: it may be another's by now, another machine's, or another
    container's. All that the lock says must hold of the process, and it must have that very file open.
    """
    import psutil  # noqa: PLC0415 - only when a run has to be ended by force

    named = run.holder()
    if named is not None and run.is_alive() and named.is_the_process(run.lock_path):
        with suppress(psutil.Error):  # gone meanwhile
            return psutil.Process(named.pid)
    where = f" It was started as process {named.pid} on {named.host}." if named and named.host else ""
    message = (
        f"The trainer of {run.id} cannot be ended from here: no process of this machine (or container) is"
        f" certain to hold its lock.{where} End it there."
    )
    raise RunDirectoryError(message)
