"""Going on with a run whose journal was lost: its checkpoints are whole, and nobody has to begin anew.

A power cut, or a copy, can take the journal and leave the checkpoints. A person who asks for it gets a new
journal that says so; the run then goes on from its newest checkpoint as any interrupted one does. No torch.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from trainer_backend.errors import RunDirectoryError, UsageError
from trainer_backend.journal import JournalWriter
from trainer_backend.journal_mending import mend
from trainer_backend.journal_reader import JournalReader
from trainer_backend.protocol import Warned
from trainer_backend.regular_files import LARGEST_TEXT_BYTES, read_regular
from trainer_backend.run_directory import RunDirectory, checkpoints_in

CODE: Final = "history-lost"
_BESIDE: Final = ("", "-wal", "-shm", "-journal")


def begin_new_history(run: RunDirectory) -> None:
    """Give a run whose journal is missing, empty or unreadable a new one; the old one is kept aside.

    Raises UsageError: its journal is there, or it has no checkpoint to go on from. Raises RunDirectoryError:
    a trainer is live there, or nothing can be written.
    """
    with run.locked(named=False):
        saved = checkpoints_in(run.checkpoints_path)
        if not saved:
            message = f"{run.id} has no checkpoint to go on from. Begin anew: gradacc run {run.recipe_path}"
            raise UsageError(message)
        if _has_history(run.journal_path):
            message = f"{run.id} has its history. Resume it with it: gradacc resume {run.typed}"
            raise UsageError(message)
        _set_aside(run.journal_path)
        # The checkpoint's own attempt goes on: numbers of events in it are compared within one attempt.
        writer = JournalWriter(run.journal_path, attempt=max(_attempts(saved.values()), default=1))
        writer.put(Warned(code=CODE, values={"step": max(saved)}))
        if not writer.close() or writer.disk_error:
            message = f"{run.journal_path} cannot be written: {writer.disk_error}. Free some space."
            raise RunDirectoryError(message)


def _has_history(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        mend(path)
        reader = JournalReader(path)
    except (RunDirectoryError, sqlite3.Error):
        return False
    try:
        return bool(reader.facts())
    except RunDirectoryError:
        return False
    finally:
        reader.close()


def _set_aside(path: Path) -> None:
    """Rename the journal with what belongs to it. Raises RunDirectoryError."""
    number = next(count for count in range(1, 1000) if not _aside(path, count).exists())
    for suffix in reversed(_BESIDE):  # the journal itself last: until then it is found, and this done again
        part = path.with_name(f"{path.name}{suffix}")
        try:
            part.rename(f"{_aside(path, number)}{suffix}")
        except FileNotFoundError:
            continue
        except OSError as error:
            message = f"{part} cannot be set aside: {error.strerror}. Check the run directory's rights."
            raise RunDirectoryError(message) from error


def _aside(path: Path, count: int) -> Path:
    return path.with_name(f"{path.name}.unreadable-{count}")


def _attempts(checkpoints: Iterable[Path]) -> Iterator[int]:
    """The attempts that saved these checkpoints, as far as they say."""
    for path in checkpoints:
        try:
            state = json.loads(read_regular(path / "state.json", LARGEST_TEXT_BYTES))
            yield int(state["standing"]["journal"][0])
        except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
            continue
