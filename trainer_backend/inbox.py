"""The inbox: commands to a run, one small JSON file each, durable, ordered and audited.

A file is written beside and renamed into the folder, so it is never seen half written. Its name is
the command's id, and ids sort by the time they were made.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from trainer_backend.errors import RunDirectoryError
from trainer_backend.protocol import AnyCommand

SUFFIX: Final = ".json"
LARGEST_BYTES: Final = 64 * 1024
_decoder = msgspec.json.Decoder(AnyCommand)


class Malformed(msgspec.Struct, frozen=True):
    """A file in the inbox that is no command; to be refused by this id and removed."""

    id: str
    reason: str


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
    """The trainer's side."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen_at_ns = -1

    def poll(self) -> list[AnyCommand | Malformed]:
        """Commands that wait, oldest first; a look at an unchanged folder costs one `stat`."""
        try:
            changed_at_ns = self.path.stat().st_mtime_ns
            if changed_at_ns == self._seen_at_ns:
                return []
            names = sorted(entry.name for entry in os.scandir(self.path) if entry.name.endswith(SUFFIX))
        except OSError:  # the folder was taken away under a live run: no commands, the run goes on
            return []
        if not names:
            # Only an empty folder is remembered: a file that comes within the clock's grain of this
            # look changes the folder's time or is found, since files are removed once answered.
            self._seen_at_ns = changed_at_ns if _is_old(changed_at_ns) else -1
            return []
        self._seen_at_ns = -1
        return [self._read(name) for name in names]

    def _read(self, name: str) -> AnyCommand | Malformed:
        stem = name.removesuffix(SUFFIX)
        path = self.path / name
        try:
            if path.stat().st_size > LARGEST_BYTES:
                return Malformed(stem, f"larger than {LARGEST_BYTES} bytes")
            command = _decoder.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            return Malformed(stem, str(error))
        if command.id != stem:
            return Malformed(stem, "its id is not its file's name")
        return command

    def remove(self, command_id: str) -> None:
        """Take an answered command's file away."""
        (self.path / f"{command_id}{SUFFIX}").unlink(missing_ok=True)


def _is_old(changed_at_ns: int, grain_s: float = 2.0) -> bool:
    import time  # noqa: PLC0415 - only here

    return time.time_ns() - changed_at_ns > grain_s * 1e9
