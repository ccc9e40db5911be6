"""An attempt's outer life: signals, stops while it loads, its place on the disk, one end. No torch.

Exactly one of RunFinished, RunStopped and RunFailed ends an attempt; a process that dies without one
leaves a run that is found unlocked, and is shown as interrupted.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from trainer_backend.journal import JournalWriter
from trainer_backend.protocol import AnyEvent, PhaseEntered, RunEnded, RunStopped
from trainer_backend.trainer.no_journal import NoJournal
from trainer_backend.trainer.steering import StopReason
from trainer_backend.trainer_lock import TrainerLock
from trainer_backend.watching.notifier import Notifier

LAST_RESORT_S: Final = 10.0
"""How long a stop waits for code that does not return: a user's loader, a driver."""
LOOK_S: Final = 1.0
"""Time between two looks at where the run lies, and how far a save is."""
EXIT_S: Final = 10.0
"""How long the interpreter may take to end once the run has: a user's thread may hold it."""


class TrainingProgress(Protocol):
    """Where the run stands; the engine, once there is one."""

    step: int
    samples_seen: int


class Stoppable(Protocol):
    """What is told of a stop: `Steering`, or what stands for it on one of several ranks."""

    due_at: float
    checkpoints: Callable[[], list[int]]

    @property
    def stopping(self) -> StopReason:
        """Whether, and how urgently, the run was asked to end."""
        ...

    def stop(self, reason: StopReason) -> None:
        """Ask for the end from inside."""
        ...

    def tick(self) -> None:
        """Look into the inbox."""
        ...

    def end(self) -> None:
        """No window will come."""
        ...


class StopAskedError(BaseException):
    """Raised in the training thread while it loads, so that a stop need not wait for it."""


class _Nowhere:
    step = 0
    samples_seen = 0


class Lifecycle:
    """The end of an attempt: asked for by command or signal, told once.

    `grace_s`: how long the sender of a SIGTERM waits before it kills.
    """

    def __init__(
        self, lock: TrainerLock | None = None, *, grace_s: float = math.inf, is_ranked: bool = False
    ) -> None:
        self._is_ranked = is_ranked
        """Whether other ranks wait for this one: no signal interrupts it, and stops wait for a border."""
        self.lock = lock
        """None: the run is nobody's directory that could be moved (a benchmark's)."""
        self._grace_s = grace_s
        self._saving: tuple[Path, int] | None = None
        """What is being written, and how many bytes it will have."""
        self._looked_at = 0.0
        self._has_stopped = False
        self.progress: TrainingProgress = _Nowhere()
        self.loading = False
        """Whether a stop may interrupt the training thread anywhere."""
        self.steering: Stoppable | None = None
        self.writer: JournalWriter | NoJournal | None = None
        self.notifier: Notifier | None = None
        self._ended = threading.Lock()
        self._waking = False
        self._timers: list[threading.Timer] = []

    def put(self, event: AnyEvent) -> None:
        """Queue an event for the journal."""
        assert self.writer is not None
        self.writer.put(event)
        if self.notifier is not None:
            self.notifier.take(event)

    def checkpoint_step(self, *, until: int | None = None) -> int | None:
        """The newest step that can be gone back to; `until`: the last that was good, if one such is there."""
        steps = self.steering.checkpoints() if self.steering is not None else []
        good = [step for step in steps if until is None or step <= until]
        return next(iter(reversed(good or steps)), None)

    def end(self, fact: RunEnded) -> None:
        """Write the attempt's last fact, and close the journal. Only the first call does."""
        assert self.writer is not None
        if not self._ended.acquire(blocking=False):
            threading.Event().wait()  # the last resort is ending the process this very moment
        if self.steering is not None:
            self.steering.end()
        self.writer.put(fact)
        self.writer.close()
        self.give_time()
        if self.notifier is not None:
            self.notifier.take(fact)
            self.notifier.close()

    def leave(self) -> None:
        """Close the journal without a last fact: a rank was lost, and a launcher may start them again."""
        assert self.writer is not None
        if self.steering is not None:
            self.steering.end()
        self.writer.close()
        self.give_time()

    # -------------------------------------------------------------- the journal's thread's side

    def tick(self) -> None:
        """20 times a second: commands; once a second: where the run lies, and how far a save is."""
        assert self.steering is not None
        self.steering.tick()
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if self._saving is not None:
            self._report_saving(*self._saving)
        if not self.is_in_place():
            self.steering.stop("moved")

    def is_in_place(self) -> bool:
        """Whether the run's directory and its journal still lie at their paths."""
        return (self.lock is None or self.lock.is_in_place()) and (
            self.writer is None or self.writer.is_in_place()
        )

    def _report_saving(self, folder: Path, size_bytes: int) -> None:
        try:
            written_bytes = sum(entry.stat().st_size for entry in os.scandir(folder))
        except OSError:  # it has its name already
            return
        self.put(PhaseEntered(phase="saving", done_ratio=min(1.0, written_bytes / max(size_bytes, 1))))

    @contextmanager
    def saving(self, folder: Path, size_bytes: int) -> Iterator[None]:
        """Inside, a checkpoint is written to `folder`: nothing that happens by itself cuts it short."""
        self._looked_at = time.monotonic()
        self._saving = folder, size_bytes
        try:
            yield
        finally:
            self._saving = None

    # ------------------------------------------------------------------------------- stops

    def stop_asked(self, reason: StopReason) -> None:
        """By a command, in the journal's thread: wake the training thread, and wait for it only so long."""
        if self.loading and not self._is_ranked:
            self._wake()
        if reason == "stop-now" or self.loading:
            self._wait_only_so_long(reason)

    def give_time(self) -> None:
        """The training thread has come to a stop: what it still saves may take its time."""
        self._has_stopped = True
        for timer in self._timers:
            timer.cancel()

    def _wait_only_so_long(self, reason: StopReason) -> None:
        if self._has_stopped:
            return
        timer = threading.Timer(LAST_RESORT_S, self._last_resort, (reason,))
        timer.name = "gradacc-last-resort"
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _wake(self) -> None:
        self._waking = True
        main = threading.main_thread().ident
        if hasattr(signal, "pthread_kill") and main is not None:
            signal.pthread_kill(main, signal.SIGINT)  # also ends a system call that waits
        else:
            import _thread  # noqa: PLC0415 - Windows only

            _thread.interrupt_main(signal.SIGINT)

    def _last_resort(self, reason: StopReason) -> None:
        """The training thread does not come back: say so, and end the process as it is."""
        if self._has_stopped:
            return
        if self._saving is not None:  # it is in no user's code: wait for it, and then as long again
            self._wait_only_so_long(reason)
            return
        if not self._ended.acquire(blocking=False):
            return
        assert self.writer is not None
        where = self.progress
        self.writer.put(RunStopped(step=where.step, samples_seen=where.samples_seen, reason=reason))
        self.writer.close()
        flush_streams()
        os._exit(0)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Inside, SIGINT and SIGTERM ask for a clean stop; a second one for a stop now."""
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = [(kind, signal.signal(kind, self._signalled)) for kind in kinds]
        if hasattr(signal, "SIGHUP"):  # a terminal that closes is no reason to stop
            before.append((signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_IGN)))
        try:
            yield
        finally:
            for kind, handler in before:
                signal.signal(kind, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        del frame
        assert self.steering is not None
        if self._is_ranked:  # a launcher sends it again, which is no hurry
            self.steering.stop("signal")
            if self.loading:
                self._wait_only_so_long("signal")
            return
        if self._waking:
            self._waking = False
        else:
            reason: StopReason = "stop-now" if self.steering.stopping else "signal"
            if number == signal.SIGTERM and reason == "signal":
                self.steering.due_at = time.monotonic() + self._grace_s
            self.steering.stop(reason)
            if reason == "stop-now" or self.loading:
                self._wait_only_so_long(reason)
        if self.loading:
            raise StopAskedError

    def stopped(self) -> RunStopped:
        """The last fact of an attempt that was stopped while it was loading."""
        reason = self.steering.stopping if self.steering is not None else ""
        where = self.progress
        return RunStopped(step=where.step, samples_seen=where.samples_seen, reason=reason or "signal")


def exit_soon(code: int) -> None:
    """End the process in a few seconds even if somebody's thread or `atexit` would hold it."""

    def leave() -> None:
        flush_streams()
        os._exit(code)

    timer = threading.Timer(EXIT_S, leave)
    timer.name = "gradacc-exit"
    timer.daemon = True
    timer.start()


def flush_streams() -> None:
    """What was printed comes out; a closed pipe is nobody's concern."""
    for stream in (sys.stdout, sys.stderr):
        quietly(stream.flush)


def quietly(call: Callable[[], object]) -> None:
    """Do something with a stream that may be closed."""
    try:
        call()
    except (OSError, ValueError):
        return


def print_line(text: str) -> None:
    """A line on standard output; a reader that has gone does not end the run."""
    quietly(lambda: sys.stdout.write(f"{text}\n"))
    quietly(sys.stdout.flush)
