"""The inbox: commands to a run, one small JSON file each, durable, ordered and audited.

A file is written beside and renamed into the folder, so it is never seen half written. Its name is
the command's id, and ids sort by the time they were made.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from trainer_backend.errors import RunDirectoryError
from trainer_backend.protocol import AnyCommand
from trainer_backend.regular_files import read_regular

SUFFIX: Final = ".json"
LARGEST_BYTES: Final = 64 * 1024
_decoder = msgspec.json.Decoder(AnyCommand)


class Malformed(msgspec.Struct, frozen=True):
    """An entry in the inbox that is no command; to be refused by this id and taken away."""

    id: str
    """Its name as text; what is no text in it is replaced."""
    reason: str
    name: str
    """Its name without the suffix, as the system gives it."""


def send(inbox: Path, command: AnyCommand) -> str:
    """Put a command into an inbox; gives its id. Raises RunDirectoryError."""
    target = inbox / f"{command.id}{SUFFIX}"
    beside = inbox / f".{command.id}.part"
    try:
        with open(beside, "wb", opener=_private) as file:
            file.write(msgspec.json.encode(command))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except OSError as error:
        message = (
            f"The command could not be put into {inbox}: {error.strerror}. Is the run directory writable?"
        )
        raise RunDirectoryError(message) from error
    return command.id


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Inbox:
    """The trainer's side of the inbox: reads commands, each once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen_at_ns = -1

    def names(self) -> list[str]:
        """What waits, by the commands' ids (for what is no command: names), oldest first."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.path) if entry.name.endswith(SUFFIX))
        except OSError:  # the folder was taken away under a live run: no commands, the run goes on
            return []
        return [name.removesuffix(SUFFIX) for name in names]

    def poll(self, answered: Container[str] = ()) -> list[AnyCommand | Malformed]:
        """Commands that wait and are not `answered`, oldest first; an unchanged folder costs one `stat`."""
        try:
            changed_at_ns = self.path.stat().st_mtime_ns
        except OSError:
            return []
        if changed_at_ns == self._seen_at_ns:
            return []
        names = self.names()
        if not names:
            # Only an empty folder is remembered: a file that comes within the clock's grain of this
            # look changes the folder's time or is found, since files are removed once answered.
            self._seen_at_ns = changed_at_ns if _is_old(changed_at_ns) else -1
            return []
        self._seen_at_ns = -1
        return [self._read(name) for name in names if name not in answered]

    def _read(self, name: str) -> AnyCommand | Malformed:
        """One entry, whatever it is: nothing here waits or raises, so none is in the way of the others."""
        try:
            command = _decoder.decode(self._content(name))
        except (OSError, ValueError, RecursionError) as error:
            return _malformed(name, str(error) or type(error).__name__)
        if command.id != name:
            return _malformed(name, "its id is not its file's name")
        return command

    def _content(self, name: str) -> bytes:
        """Raises OSError for what cannot be a command's file."""
        return read_regular(self.path / f"{name}{SUFFIX}", LARGEST_BYTES)

    def remove(self, name: str) -> None:
        """Take an answered entry away: a file is removed, anything else moved aside."""
        path = self.path / f"{name}{SUFFIX}"
        with suppress(OSError):  # it has gone already, or its folder has
            if stat.S_ISREG(path.lstat().st_mode):
                path.unlink()
                return
            path.rename(self.path / f".{uuid.uuid4().hex[:8]}.aside")


def _malformed(name: str, reason: str) -> Malformed:
    as_text = name.encode("utf-8", "replace").decode("utf-8")
    return Malformed(as_text, reason.encode("utf-8", "replace").decode("utf-8"), name)


def _is_old(changed_at_ns: int, grain_s: float = 2.0) -> bool:
    import time  # noqa: PLC0415 - only here

    return time.time_ns() - changed_at_ns > grain_s * 1e9
