"""The run queue on disk: one small file an entry, moved by rename; nothing else holds it.

    <GRADACC_HOME>/queue/   waiting/<place>-<run>.json   running/<run>.json   done/<run>.json
                            settings.json   runner.lock   runner.log

An entry names a run in GRADACC_HOME/runs, whose directory holds the recipe. It waits, is taken by one
rename, and is done once its run has ended. The run's own lock and journal tell whether it was started, so
that whoever finds an entry half way can go on with it: nothing is lost and nothing is started twice.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gradacc_gui.session.following import head
from trainer_backend.errors import RunDirectoryError, UsageError
from trainer_backend.private_files import check_private, home, make_private, private_opener, sync
from trainer_backend.run_directory import RunDirectory, runs_folder
from trainer_backend.run_facts import RunState

SUFFIX: Final = ".json"
GAP: Final = 1 << 20
"""Between two places: twenty entries can be put between the same two before all are numbered anew."""
LARGEST_BYTES: Final = 64 * 1024
KEPT_DONE: Final = 200
_NEVER_WAIT: Final[int] = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)

REFUSED: Final = "refused"
"""How an entry ended that never became a run; the others ended as their runs did (`RunState`)."""
GOOD: Final = frozenset((RunState.FINISHED.value, RunState.STOPPED.value))


class QueueEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that shall be started once a device is free."""

    run: str
    """Its id: a folder in GRADACC_HOME/runs."""
    python: str
    """The interpreter that will train."""
    queued_at: float
    asked_by: str = ""
    head: int = 0
    """The newest sequence number of its journal when it was queued; a start adds to it."""
    log_bytes: int = 0
    """How long its trainer.log was then."""

    @property
    def directory(self) -> RunDirectory:
        """The run's directory, whether it is there or not."""
        return RunDirectory(runs_folder() / self.run)


class EndedEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry that has left the queue."""

    run: str
    outcome: str
    """The state that its run ended in, or REFUSED."""
    done_at: float
    reason: str = ""
    """Why it was refused, or how it ended, as a sentence or one of the trainer's codes."""


class OddEntry(msgspec.Struct, frozen=True):
    """A file in the queue that is no entry."""

    path: Path
    reason: str


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the queue works."""

    paused: bool = False
    """Nothing is started; what runs goes on."""
    why_paused: str = ""
    """Who or what paused it."""
    pause_on_failure: bool = False
    """Pause when a run of the queue fails; by default the next one starts."""
    cpu_runs: int = 1
    """Runs on the CPU at once."""
    kept_free: tuple[str, ...] = ()
    """Devices on which the queue starts nothing, such as cuda:1."""


class Queue:
    """The queue of one GRADACC_HOME. Making one touches nothing."""

    def __init__(self) -> None:
        self.folder = home() / "queue"
        self._waiting, self._running = self.folder / "waiting", self.folder / "running"
        self._done = self.folder / "done"
        self.lock_path = self.folder / "runner.lock"
        self.log_path = self.folder / "runner.log"
        self._settings_path = self.folder / "settings.json"

    def make(self) -> None:
        """Make the folders that are missing, for their owner alone. Raises RunDirectoryError."""
        try:
            for folder in (self._waiting, self._running, self._done):
                make_private(folder)
        except RunDirectoryError:
            raise
        except OSError as error:
            message = (
                f"The queue cannot be kept in {self.folder}: {error.strerror}. Set GRADACC_HOME to a writable"
                " folder."
            )
            raise RunDirectoryError(message) from error

    # ------------------------------------------------------------------------------- reading

    def waiting(self) -> list[QueueEntry]:
        """What waits, in order."""
        return list(self._places())

    def running(self) -> list[QueueEntry]:
        """What was taken and has not ended, oldest first."""
        found = (self._entry(path) for path in _files(self._running))
        return sorted((entry for entry in found if isinstance(entry, QueueEntry)), key=lambda e: e.queued_at)

    def unreadable(self) -> list[OddEntry]:
        """Files that lie where entries do and are none."""
        found = (self._entry(path) for folder in (self._waiting, self._running) for path in _files(folder))
        return [entry for entry in found if isinstance(entry, OddEntry)]

    def done(self) -> list[EndedEntry]:
        """What has left the queue, newest first; the last `KEPT_DONE` are kept."""
        found = (_decoded(path, EndedEntry) for path in _files(self._done))
        return sorted((one for one in found if isinstance(one, EndedEntry)), key=lambda one: -one.done_at)

    def settings(self) -> QueueSettings:
        """How the queue works now; as at first where nothing was set, or what was set cannot be read."""
        found = _decoded(self._settings_path, QueueSettings)
        return found if isinstance(found, QueueSettings) else QueueSettings()

    def has_work(self) -> bool:
        """Whether a runner has anything to do: something runs, or waits while the queue is not paused."""
        if any(True for _ in _files(self._running)):
            return True
        return not self.settings().paused and any(True for _ in _files(self._waiting))

    def place_of(self, run: str) -> int | None:
        """At which place a run waits, from 1; None when it does not."""
        names = [entry.run for entry in self.waiting()]
        return names.index(run) + 1 if run in names else None

    def find(self, text: str) -> QueueEntry:
        """The waiting entry that `text` names: its place, or its run's id, a unique prefix of it, or name.

        Raises UsageError.
        """
        waiting = self.waiting()
        if text.isdecimal() and 1 <= int(text) <= len(waiting):
            return waiting[int(text) - 1]
        for found in (
            [entry for entry in waiting if entry.run == text],
            [entry for entry in waiting if text and entry.run.startswith(text)],
            [entry for entry in waiting if entry.directory.asked_name == text],
        ):
            if len(found) == 1:
                return found[0]
            if found:
                names = ", ".join(entry.run for entry in found[:5])
                message = f"{text!r} may be any of {len(found)} waiting runs ({names}). Give more of the id."
                raise UsageError(message)
        message = f"No waiting run is called {text!r}. `gradacc queue list` shows the queue."
        raise UsageError(message)

    # ------------------------------------------------------------------------------ changing

    def add(self, run: RunDirectory, python: str, *, asked_by: str, first: bool = False) -> QueueEntry:
        """Put a run that is not live at the queue's end, or `first`. Raises UsageError, RunDirectoryError."""
        if run.path.parent != runs_folder().absolute():
            message = f"{run.path} is not in {runs_folder()}. Only runs that are stored there can be queued."
            raise UsageError(message)
        if self.place_of(run.id) is not None:
            message = f"{run.id} waits in the queue already, at place {self.place_of(run.id)}."
            raise UsageError(message)
        if run.is_alive():
            message = f"{run.id} is running, so it cannot be queued."
            raise UsageError(message)
        self.make()
        for left in (self._running, self._done):  # of an earlier time in the queue
            (left / f"{run.id}{SUFFIX}").unlink(missing_ok=True)
        log_bytes = run.log_path.stat().st_size if run.log_path.is_file() else 0
        entry = QueueEntry(
            run=run.id, python=python, queued_at=time.time(), asked_by=asked_by, head=head(run),
            log_bytes=log_bytes,
        )  # fmt: skip
        places = [_place(path) for path in self._places().values()]
        place = (places[0] // 2 if first else places[-1] + GAP) if places else GAP
        _write(self._waiting / _name(place, run.id), entry)
        return entry

    def move(self, run: str, place: int) -> int:
        """Move a waiting run to a place, counted from 1; gives the place it has then. Raises UsageError."""
        places = self._places()
        own = next((path for entry, path in places.items() if entry.run == run), None)
        if own is None:
            raise UsageError(_not_waiting(run))
        others = [path for path in places.values() if path != own]
        index = min(max(place, 1), len(others) + 1) - 1
        before = _place(others[index - 1]) if index else 0
        after = _place(others[index]) if index < len(others) else before + 2 * GAP
        if after - before < 2:  # no number lies between
            self._renumber([*others[:index], own, *others[index:]])
        else:
            _rename(own, self._waiting / _name((before + after) // 2, run), run)
        return index + 1

    def remove(self, run: str) -> None:
        """Take a waiting run out of the queue; its directory stays. Raises UsageError: it does not wait."""
        for entry, path in self._places().items():
            if entry.run == run:
                try:
                    path.unlink()
                except FileNotFoundError as error:
                    raise UsageError(_not_waiting(run)) from error
                return
        raise UsageError(_not_waiting(run))

    def change(self, **values: object) -> QueueSettings:
        """Set some of `QueueSettings`; gives all of them. Raises RunDirectoryError."""
        self.make()
        settings = msgspec.structs.replace(self.settings(), **values)
        _write(self._settings_path, settings)
        return settings

    # ---------------------------------------------------------------------- the runner's side

    def take(self, entry: QueueEntry) -> bool:
        """Move an entry from waiting to running; False when somebody else moved or removed it meanwhile."""
        for other, path in self._places().items():
            if other == entry:
                try:
                    path.rename(self._running / f"{entry.run}{SUFFIX}")
                except FileNotFoundError:
                    return False
                return True
        return False

    def finish(self, entry: QueueEntry, outcome: str, reason: str = "") -> None:
        """An entry has ended. Killed in between, it is judged again, and written again."""
        name = f"{entry.run}{SUFFIX}"
        _write(
            self._done / name, EndedEntry(run=entry.run, outcome=outcome, done_at=time.time(), reason=reason)
        )
        (self._running / name).unlink(missing_ok=True)
        for old in self.done()[KEPT_DONE:]:
            (self._done / f"{old.run}{SUFFIX}").unlink(missing_ok=True)

    def set_aside(self, bad: OddEntry) -> None:
        """Put what is no entry out of the way; it is never deleted."""
        with suppress(OSError):
            bad.path.rename(self.folder / f"{bad.path.name}.aside")

    # ------------------------------------------------------------------------------- within

    def _places(self) -> dict[QueueEntry, Path]:
        """Waiting entries in order, each run once: two windows may have added it at the same moment."""
        found: dict[QueueEntry, Path] = {}
        seen: set[str] = set()
        for path in sorted(_files(self._waiting)):
            entry = self._entry(path)
            if isinstance(entry, QueueEntry) and entry.run not in seen:
                seen.add(entry.run)
                found[entry] = path
        return found

    @staticmethod
    def _entry(path: Path) -> QueueEntry | OddEntry:
        entry = _decoded(path, QueueEntry)
        if isinstance(entry, OddEntry):
            return entry
        if _run_of(path) != entry.run or entry.run != Path(entry.run).name or entry.run.startswith("."):
            return OddEntry(path, f"it names the run {entry.run!r}, and its file another")
        return entry

    def _renumber(self, order: list[Path]) -> None:
        """New places behind all old ones, the last first: killed at any moment, all but one are in order."""
        base = max(_place(path) for path in order)
        for number, path in reversed(list(enumerate(order, 1))):
            run = _run_of(path)
            with suppress(FileNotFoundError):  # it was taken or removed meanwhile
                path.rename(self._waiting / _name(base + number * GAP, run))


T = TypeVar("T")


def _files(folder: Path) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
            yield Path(entry.path)


def _decoded(path: Path, kind: type[T]) -> T | OddEntry:
    """A file as `kind`, whatever lies there: nothing here waits or raises."""
    try:
        handle = os.open(path, os.O_RDONLY | _NEVER_WAIT)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return OddEntry(path, "it is not a regular file")
            if os.name != "nt" and status.st_uid != os.geteuid():
                return OddEntry(path, "it belongs to another user")
            content = file.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            return OddEntry(path, f"it is larger than {LARGEST_BYTES} bytes")
        return msgspec.json.decode(content, type=kind)
    except (OSError, ValueError, RecursionError) as error:
        return OddEntry(path, str(error) or type(error).__name__)


def _write(path: Path, value: msgspec.Struct) -> None:
    """Write beside, sync and rename. Raises RunDirectoryError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        check_private(path.parent)
        with open(beside, "wb", opener=private_opener) as file:
            file.write(msgspec.json.encode(value))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync(path.parent)
    except RunDirectoryError:
        raise
    except OSError as error:
        message = (
            f"The queue cannot be written in {path.parent}: {error.strerror}. Free some disk space, or check"
            " the folder's rights."
        )
        raise RunDirectoryError(message) from error


def _rename(path: Path, to: Path, run: str) -> None:
    try:
        path.rename(to)
    except FileNotFoundError as error:
        raise UsageError(_not_waiting(run)) from error


def _not_waiting(run: str) -> str:
    return f"{run} does not wait in the queue (any more). `gradacc queue list` shows the queue."


def _name(place: int, run: str) -> str:
    return f"{place:018d}-{run}{SUFFIX}"


def _place(path: Path) -> int:
    number = path.name.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def _run_of(path: Path) -> str:
    stem = path.name.removesuffix(SUFFIX)
    number, _, rest = stem.partition("-")
    return rest if path.parent.name == "waiting" and number.isdecimal() else stem
