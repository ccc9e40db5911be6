"""A mirror: the directory of a run on another machine, as far as it is known here.

    <GRADACC_HOME>/remote/<host>/<id>/   recipe.toml  run.sqlite  inbox/  trainer.lock  trainer.log
                                         mirror.json  which run on which machine it shows
                                         line/        who feeds it (lock), and how the line is (state.json)

Its journal has the same rows with the same numbers, its lock is held while the far one is, and what is put
into its inbox is handed on. So whoever shows or steers a run needs to know nothing of other machines.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final, assert_never

import msgspec

from gradacc_gui.attaching.far_hosts import host_folder
from trainer_backend.errors import GradaccError, RunDirectoryError
from trainer_backend.inbox import Inbox, Malformed
from trainer_backend.journal import JournalReader, open_for_writing, seal
from trainer_backend.journal_appending import RowAppender
from trainer_backend.private_files import make_folder_in, make_private, private_opener
from trainer_backend.protocol import MEASUREMENTS, CommandAccepted, CommandRefused
from trainer_backend.regular_files import LARGEST_TEXT_BYTES, read_regular
from trainer_backend.relaying.relay_messages import (
    AnyMessage,
    Events,
    FarStanding,
    Hello,
    LineGarbledError,
    LogText,
    RecipeText,
    rows_for_sql,
)
from trainer_backend.run_directory import MirrorOrigin, RunDirectory
from trainer_backend.trainer_lock import TrainerLock, is_locked

_KINDS: Final = {kind.__name__: kind for kind in MEASUREMENTS}
_ANSWERS: Final = frozenset((CommandAccepted.__name__, CommandRefused.__name__))
_FACT_COLUMNS: Final = 5
_BEHIND: Final = (OverflowError, sqlite3.ProgrammingError, sqlite3.InterfaceError, UnicodeError)


class LineState(msgspec.Struct, frozen=True, kw_only=True):
    """How the line that feeds a mirror is."""

    state: str = "ended"
    """connecting, connected, waiting (for the next try) or ended."""
    sentence: str = ""
    """Why it is not connected."""
    terminal: str = ""
    """What to type in a terminal first; empty where that does not help."""
    since_at: float = 0.0
    """Seconds since the epoch."""
    run: str = ""
    """The mirror's directory, once the far machine has said which run it is."""


def line_folder(run: RunDirectory) -> Path:
    """Where a mirror keeps how it is fed."""
    return run.path / "line"


def is_fed(run: RunDirectory) -> bool:
    """Whether a process feeds this mirror now."""
    folder = line_folder(run)
    return is_locked(folder / "lock", folder)


def line_state(run: RunDirectory) -> LineState:
    """How a mirror's line is; ended where nobody feeds it."""
    told = read_state(line_folder(run) / "state.json")
    if told is None or (told.state != "ended" and not is_fed(run)):
        return LineState()
    return told


def read_state(path: Path) -> LineState | None:
    """What a process told of its line; None where it has told nothing yet."""
    try:
        return msgspec.json.decode(read_regular(path, LARGEST_TEXT_BYTES), type=LineState)
    except (OSError, msgspec.DecodeError):
        return None


def write_state(path: Path, state: LineState) -> None:
    """Tell how a line is. A full disk is told elsewhere."""
    with suppress(OSError):
        _write(path, msgspec.json.encode(msgspec.structs.replace(state, since_at=time.time())))


class AttachedAlreadyError(GradaccError):
    """Another process feeds this mirror. `run` is the mirror."""

    def __init__(self, run: RunDirectory) -> None:
        super().__init__(f"{run.typed} is attached already, by another window or command of this machine.")
        self.run = run


class Mirror:
    """The writing side of one mirror, for the one process that feeds it. Raises GradaccError."""

    def __init__(self, host: str, hello: Hello) -> None:
        """Raises AttachedAlreadyError, or RunDirectoryError where nothing can be written."""
        self.origin = MirrorOrigin(host=host, run=hello.run, path=hello.path)
        self.run = RunDirectory(host_folder(host) / _folder_name(hello.run))
        self.command_ids: set[str] = set()
        """Commands that were handed on and are not answered yet."""
        self._trainer: TrainerLock | None = None
        self._holder = b""
        self._connection: sqlite3.Connection | None = None
        self._feeding = self._make()
        try:
            self._begin(hello.origin, hello.head)
        except BaseException:
            self.close()
            raise

    def _make(self) -> TrainerLock:
        run = self.run
        try:
            make_private(run.path)
            folder = make_folder_in(run.path, "line")
            if is_fed(run):
                raise AttachedAlreadyError(run)
            lock = TrainerLock(folder, folder / "lock").take()
        except OSError as error:
            raise self._full(error) from error
        try:
            lock.name()
            make_folder_in(run.path, "inbox")
            _write(run.origin_path, msgspec.json.encode(self.origin))
            if not run.recipe_path.exists():
                _write(run.recipe_path, b"")
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise self._full(error) from error
            raise
        return lock

    def _begin(self, origin: str, head: int) -> None:
        """Go on with the journal, or begin it anew where the far one is another."""
        if self.run.journal_path.exists():
            reader = JournalReader(self.run.journal_path)
            try:
                own, last = reader.origin(), reader.head()
            finally:
                reader.close()
            if (own and own != origin) or last > head:
                self._set_aside()
        self._connection = open_for_writing(self.run.journal_path)
        self._appender = RowAppender(self._connection)
        self._inbox = Inbox(self.run.inbox_path)
        self.command_ids.clear()

    def _set_aside(self) -> None:
        """The far run has begun another history, so this copy of the old one is of no use."""
        with suppress(OSError):
            for suffix in ("", "-wal", "-shm", "-journal"):
                self.run.journal_path.with_name(f"run.sqlite{suffix}").unlink(missing_ok=True)

    @property
    def last(self) -> int:
        """Number of the newest event that is here."""
        return self._appender.last

    def fits(self, hello: Hello) -> bool:
        """Whether a line that was opened again brings the same journal."""
        reader = JournalReader(self.run.journal_path)
        try:
            own = reader.origin()
        finally:
            reader.close()
        return hello.run == self.origin.run and own in ("", hello.origin) and self.last <= hello.head

    def take(self, message: AnyMessage) -> None:
        """Write down what came over the line. Raises RunDirectoryError and LineGarbledError."""
        try:
            match message:
                case Events():
                    self._append(message)
                case FarStanding():
                    self._stand(message)
                case RecipeText():
                    _write(self.run.recipe_path, message.content)
                case LogText():
                    mode = "wb" if message.begins else "ab"
                    with open(self.run.log_path, mode, opener=private_opener) as log:
                        log.write(message.content)
                case Hello():
                    raise LineGarbledError("The far machine greets twice.")
                case _:
                    assert_never(message)
        except (OSError, sqlite3.Error) as error:
            raise self._full(error) from error

    def _append(self, events: Events) -> None:
        """Rows in one transaction, so that none is there twice, nor missing, whenever the line breaks."""
        if events.last <= self.last:
            return
        unknown = events.rows.keys() - _KINDS.keys()
        if unknown:
            raise LineGarbledError(f"The far machine sends {', '.join(sorted(unknown))}, unknown here.")
        rows = {_KINDS[name]: rows_for_sql(found) for name, found in events.rows.items()}
        facts = rows_for_sql(events.facts)
        if any(len(fact) != _FACT_COLUMNS for fact in facts):
            raise LineGarbledError("Rows came from the far machine that no journal has.")
        try:
            self._appender.append(rows, facts, events.last)
        except _BEHIND as error:
            raise LineGarbledError(f"Rows came from the far machine that no journal has: {error}.") from error
        for _seq, _attempt, _at, name, body in facts:
            if name in _ANSWERS and self.command_ids:
                self._answered(str(body))

    def _answered(self, body: str) -> None:
        for command_id in [known for known in self.command_ids if known in body]:
            self.command_ids.discard(command_id)
            self._inbox.remove(command_id)

    def _stand(self, standing: FarStanding) -> None:
        if standing.alive and self._trainer is None:
            self._trainer = TrainerLock(self.run.path, self.run.lock_path).take()
            self._holder = b""
        if not standing.alive and self._trainer is not None:
            self._trainer.release()
            self._trainer = None
        if self._trainer is not None and standing.holder != self._holder:
            self._trainer.write(standing.holder)
            self._holder = standing.holder

    @property
    def alive(self) -> bool:
        """Whether the far trainer was alive when it was last heard of."""
        return self._trainer is not None

    def commands(self) -> list[bytes]:
        """What was put into the inbox since the last look, as lines for the far machine."""
        found = []
        for entry in self._inbox.poll(self.command_ids):
            if isinstance(entry, Malformed):
                self._inbox.remove(entry.name)
            else:
                self.command_ids.add(entry.id)
                found.append(msgspec.json.encode(entry))
        return found

    def say_again(self) -> None:
        """The line is another: what was not answered is handed on once more, under the same ids."""
        self.command_ids.clear()

    def tell(self, state: LineState) -> None:
        """Say how the line is, for windows and commands."""
        write_state(
            line_folder(self.run) / "state.json", msgspec.structs.replace(state, run=str(self.run.path))
        )

    def _full(self, error: Exception) -> RunDirectoryError:
        why = error.strerror if isinstance(error, OSError) else str(error)
        message = (
            f"The mirror {self.run.path} cannot be written: {why}. Free some disk space, or check its rights."
        )
        return RunDirectoryError(message)

    def close(self) -> None:
        """Let go of the mirror; it stays as it is."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            seal(self.run.journal_path)
        for lock in (self._trainer, self._feeding):
            if lock is not None:
                lock.release()
        self._trainer = None


def _folder_name(run: str) -> str:
    """A run's id as a folder's name; it comes from another machine."""
    if not run or run in (".", "..") or set(run) & set("/\\:\0") or not run.isprintable():
        raise LineGarbledError(f"The far machine calls its run {run!r}, which is no folder's name.")
    return run


def _write(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    with open(beside, "wb", opener=private_opener) as file:
        file.write(content)
    beside.replace(path)
