"""What a kill leaves beside a journal, and how it is put right before anything is read. No torch.

A kill within the milliseconds in which the journal goes into or out of WAL mode leaves a rollback journal
that is *hot*: SQLite must undo what it holds, and a read-only connection may not. So whoever finds one opens
the journal for writing once, holding the trainer's lock: nobody writes meanwhile.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from trainer_backend.errors import RunDirectoryError
from trainer_backend.private_files import sync
from trainer_backend.trainer_lock import TrainerLock, is_locked

LOCK_NAME: Final = "trainer.lock"
_WAIT_S: Final = 5.0
"""How long other readers' looks may hold it up."""


def rollback_journal_of(path: Path) -> Path:
    """The rollback journal that SQLite keeps beside a database while it is changed."""
    return path.with_name(f"{path.name}-journal")


def wal_of(path: Path) -> Path:
    """The write-ahead log that SQLite keeps beside a journal."""
    return path.with_name(f"{path.name}-wal")


def may_be_hot(path: Path) -> bool:
    """Whether something may have to be undone before the journal at `path` can be read."""
    try:
        return rollback_journal_of(path).stat().st_size > 0
    except OSError:
        return False


def mend(path: Path) -> None:
    """Undo what a killed writer left half done; the caller holds the trainer's lock. Raises sqlite3.Error."""
    if not path.exists():
        return
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_WAIT_S)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    finally:
        connection.close()


def mend_unless_locked(path: Path) -> None:
    """The same for a reader, which takes the lock itself; nothing beside a live trainer.

    Raises RunDirectoryError where that must be done and cannot: the directory is read-only, or damaged.
    """
    lock = path.with_name(LOCK_NAME)
    if not may_be_hot(path) or is_locked(lock, path.parent):
        return
    held = TrainerLock(path.parent, lock)
    try:
        held.take()
        mend(path)
    except RunDirectoryError:
        if not is_locked(lock, path.parent):  # else a trainer starts just now, and does it
            raise
    except sqlite3.Error as error:
        message = f"The journal {path} cannot be read: {error}. It is damaged or half copied."
        raise RunDirectoryError(message) from error
    finally:
        held.release()


def sync_journal(path: Path) -> None:
    """Bring all that was committed to the disk, so that a power cut does not take it."""
    for file in (path, wal_of(path), path.parent):
        with suppress(OSError):  # no WAL there, or a disk that fails: the next write tells
            sync(file)
