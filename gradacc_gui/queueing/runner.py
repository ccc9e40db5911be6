"""The queue's one runner: `python -m gradacc_gui.queueing.runner`, detached, there while there is work.

Any window or command that finds work and no runner starts one (`ensure_runner`). It holds runner.lock all
its life, so there is never a second one that acts; before it ends it lets go of the lock and looks again,
so that what was added at that moment is not left behind.

An entry that was taken is started unless its run was: its journal got longer, its trainer holds the lock,
or trainer.log names a process. Killed anywhere, the next runner finds the entry and answers that question
from the disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from gradacc_gui.queueing import slots
from gradacc_gui.queueing.entries import GOOD, REFUSED, Queue, QueueEntry
from gradacc_gui.session.detached_process import DetachedProcess
from gradacc_gui.session.following import head
from gradacc_gui.session.interpreter import cleaned_environment, probe
from gradacc_gui.session.launch import Launch, detached, start, tail
from gradacc_gui.session.runs import seal_ended, summarise
from trainer_backend.errors import GradaccError, RunDirectoryError
from trainer_backend.private_files import home, private_opener
from trainer_backend.run_facts import RunState
from trainer_backend.trainer_lock import TrainerLock, holder_of, is_locked

TICK_S: Final = 0.5
LARGEST_LOG: Final = 1 << 20


class _Started(NamedTuple):
    """A run that this process started."""

    launch: Launch
    device: str


class Runner:
    """Starts what waits as devices become free, and sees how it ends."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._launches: dict[str, _Started] = {}

    def tick(self) -> bool:
        """Look at everything once; False when nothing is left to do."""
        for bad in self.queue.unreadable():
            _say(f"{bad.path} is no entry and was set aside: {bad.reason}")
            self.queue.set_aside(bad)
        for entry in self.queue.running():
            self._look_after(entry)
        self._start_what_can()
        return self.queue.has_work()

    # -------------------------------------------------------------------------------- starting

    def _start_what_can(self) -> None:
        for entry in self.queue.waiting():
            if self.queue.settings().paused:  # a start that failed may have paused it
                return
            if entry.directory.is_alive() or _was_started(entry):  # somebody started it by hand
                self.queue.take(entry)
                continue
            device = self._free_device(entry)
            if device is not None and self.queue.take(entry):
                self._start(entry, device)

    def _free_device(self, entry: QueueEntry) -> str | None:
        """The device on which an entry's run can be started now; None while all of them are taken."""
        settings = self.queue.settings()
        asked = slots.wanted(entry.directory.recipe_value("run.device"))
        ours = self._started_ones(entry)
        others = [one for one in slots.taken() if all(one.run != own.run for own in ours)]
        live = [*ours, *others]
        return slots.free_device(asked, live, cpu_runs=settings.cpu_runs, kept_free=settings.kept_free)

    def _started_ones(self, besides: QueueEntry) -> list[slots.TakenDevices]:
        """Runs of the queue that have a device, also those whose trainers do not hold their locks yet."""
        found = []
        for entry in self.queue.running():
            started = self._launches.get(entry.run)
            if entry == besides:
                continue
            if started is not None:
                found.append(slots.TakenDevices(entry.directory, entry.run, (started.device,)))
            elif summarise(entry.directory).state is RunState.LOADING:  # by a runner that was killed since
                found.append(
                    slots.TakenDevices(entry.directory, entry.run, slots.devices_of(entry.directory))
                )
        return found

    def _start(self, entry: QueueEntry, device: str) -> None:
        """Start an entry's run. What cannot be started leaves the queue, with the reason."""
        run = entry.directory
        try:
            if not run.path.is_dir():
                message = f"The run {entry.run} was deleted while it waited."
                raise RunDirectoryError(message)
            by_itself = slots.wanted(run.recipe().config.run.device)[0]
            other = device if device != by_itself else None
            launch = start(run, probe(entry.python).check(), device=other)
            self._launches[entry.run] = _Started(launch, device)
        except GradaccError as error:
            self._finish(entry, REFUSED, str(error))
            return
        _say(f"started {entry.run} on {device}")

    # --------------------------------------------------------------------------- looking after

    def _look_after(self, entry: QueueEntry) -> None:
        """See how a run that was taken is doing; start it if nobody has."""
        run = entry.directory
        started = self._launches.get(entry.run)
        died = started.launch.poll() if started is not None else None  # reaps it
        if not run.path.is_dir():
            self._finish(entry, REFUSED, f"The run {entry.run} was deleted.")
            return
        summary = summarise(run)
        if summary.state.is_alive:
            return
        if not _was_started(entry):
            if started is None and (device := self._free_device(entry)) is not None:
                self._start(entry, device)
            return
        if started is not None and died is None:  # its last fact is told, and its process is about to end
            return
        if summary.state is RunState.INTERRUPTED and _went_down_with_the_machine(entry):
            if (device := self._free_device(entry)) is not None:
                _say(f"{entry.run} was interrupted when the machine went down")
                self._start(entry, device)
            return
        if summary.state is RunState.INTERRUPTED and not _has_spoken(entry):
            self._finish(
                entry, RunState.FAILED.value, died.sentence() if died is not None else summary.reason
            )
            return
        seal_ended([summary])
        self._finish(entry, _outcome(summary.state), summary.reason)

    def _finish(self, entry: QueueEntry, outcome: str, reason: str = "") -> None:
        self._launches.pop(entry.run, None)
        _say(f"{entry.run}: {outcome}" + (f": {reason}" if reason else ""))
        self.queue.finish(entry, outcome, reason)
        if outcome not in GOOD and self.queue.settings().pause_on_failure:
            self.queue.change(paused=True, why_paused=f"{entry.run}: {outcome}")


def _outcome(state: RunState) -> str:
    """How an entry ended whose trainer is gone: as its run did; interrupted if its journal has no end."""
    match state:
        case RunState.FINISHED | RunState.STOPPED | RunState.FAILED:
            return state.value
        case RunState.DAMAGED:
            return REFUSED
        case _:
            return RunState.INTERRUPTED.value


def _was_started(entry: QueueEntry) -> bool:
    """Whether a trainer was started for an entry since it was queued."""
    # The first line says that a trainer will be started, the second which process it is.
    return _has_spoken(entry) or len(tail(entry.directory.log_path, since=entry.log_bytes)) > 1


def _has_spoken(entry: QueueEntry) -> bool:
    """Whether a trainer wrote into the journal since the entry was queued."""
    try:
        return head(entry.directory) > entry.head
    except GradaccError:  # a damaged journal, which `summarise` reports
        return True


def _went_down_with_the_machine(entry: QueueEntry) -> bool:
    """Whether the trainer was another boot's of this machine: a reboot is nobody's wish."""
    named, here = entry.directory.holder(), holder_of(os.getpid())
    if named is None or not named.boot_id or not here.boot_id:
        return False
    return named.host == here.host and named.boot_id != here.boot_id


def serve(queue: Queue) -> None:
    """Work until nothing is left; gives up at once where another runner is at work."""
    queue.make()
    while queue.has_work():
        lock = TrainerLock(queue.folder, queue.lock_path)
        try:
            lock.take()
        except RunDirectoryError:
            if is_locked(queue.lock_path, queue.folder):
                return
            raise
        try:
            lock.name()
            runner = Runner(queue)
            while runner.tick():
                time.sleep(TICK_S)
        finally:
            lock.release()


def is_at_work(queue: Queue) -> bool:
    """Whether a runner is there."""
    return is_locked(queue.lock_path, queue.folder)


def ensure_runner(queue: Queue | None = None) -> bool:
    """Start a runner if there is work and none is there; gives whether one was started.

    Raises RunDirectoryError when it cannot be started.
    """
    queue = queue or Queue()
    if not queue.has_work() or is_at_work(queue):
        return False
    queue.make()
    checkout = str(Path(__file__).resolve().parents[2])
    environment = cleaned_environment() | {"PYTHONPATH": checkout, "GRADACC_HOME": str(home())}
    try:
        if queue.log_path.is_file() and queue.log_path.stat().st_size > LARGEST_LOG:
            queue.log_path.replace(queue.log_path.with_suffix(".old.log"))
        with open(queue.log_path, "ab", opener=private_opener) as log:
            process = DetachedProcess(
                [sys.executable, "-P", "-m", "gradacc_gui.queueing.runner"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=queue.folder,
                env=environment,
                close_fds=True,
                **detached(),
            )
    except OSError as error:
        message = f"The queue's runner cannot be started: {error.strerror} ({queue.folder})."
        raise RunDirectoryError(message) from error
    _runners.append(process)
    return True


_runners: list[DetachedProcess] = []
"""Runners that this process started: reaped once they have ended, and never waited for."""


def reap_runners() -> int:
    """Forget runners of this process that have ended; gives how many live."""
    _runners[:] = [process for process in _runners if process.poll() is None]
    return len(_runners)


def leave_runners() -> None:
    """Let go of the runners, which go on; for a process that ends before them."""
    reap_runners()
    for process in _runners:
        process.leave()
    _runners.clear()


def _say(line: str) -> None:
    """A line of runner.log."""
    sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
    sys.stdout.flush()


def main() -> int:
    """The process; gives its exit code."""
    try:
        serve(Queue())
    except GradaccError as error:
        _say(str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
