"""Files and folders that only their owner reads, and that no other user could have laid there. No torch.

What lies under GRADACC_HOME ends up on a trainer's import path. So every folder from there down must be
this user's own and closed to others: on a shared machine somebody else's `sitecustomize.py` would run.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from trainer_backend.errors import RunDirectoryError


class ForeignFolderError(RunDirectoryError, PermissionError):
    """A folder in GRADACC_HOME is another user's."""

    def __init__(self, folder: Path) -> None:
        sentence = (
            f"{folder} belongs to another user, who could change the code that gradacc runs from there."
            " Set GRADACC_HOME to a folder of your own."
        )
        super().__init__(errno.EPERM, sentence)  # as the system's own errors, for who expects those

    def __str__(self) -> str:
        return str(self.strerror)


_CLOSED: Final = 0o700
_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022


def expanded(path: str | Path) -> Path:
    """A path that a person typed, with ~ as their folder; ~nobody of no such user stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def home() -> Path:
    """GRADACC_HOME, or the platform's folder for a user's data."""
    asked = os.environ.get("GRADACC_HOME")
    if asked:
        return expanded(asked).absolute()
    import platformdirs  # noqa: PLC0415 - a trainer is told its home, and its interpreter need not have this

    return Path(platformdirs.user_data_dir("gradacc", appauthor=False))


def make_private(path: Path) -> Path:
    """Make a folder, and each missing one above it, for its owner alone; gives it.

    Raises OSError: also ForeignFolderError, where a folder in GRADACC_HOME is another user's.
    """
    path = path.absolute()
    missing = []
    above = path
    while not above.exists():
        missing.append(above)
        above = above.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another process was faster
            folder.mkdir(mode=_CLOSED)
    check_private(path)
    return path


def make_folder_in(parent: Path, name: str) -> Path:
    """Make one folder in one that is there, for its owner alone. Raises OSError; never makes the parent."""
    folder = parent / name
    with suppress(FileExistsError):
        folder.mkdir(mode=_CLOSED)
    return folder


def is_private(path: Path) -> bool:
    """Whether a folder is this user's own and closed to all others."""
    status = path.lstat()
    return os.name == "nt" or (
        stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _OTHERS
    )


def check_private(path: Path) -> None:
    """Close every folder from GRADACC_HOME down to `path` to other users.

    Folders elsewhere are not looked at, nor those above GRADACC_HOME. Raises ForeignFolderError where one
    belongs to another user, who could change what lies in it.
    """
    if os.name == "nt":  # a profile's folders are closed by their access lists
        return
    own, path = home(), path.absolute()
    if not path.is_relative_to(own):
        return
    _check_home(own)
    below = own
    for name in path.relative_to(own).parts:
        below /= name
        status = below.stat()
        if status.st_uid != os.geteuid():
            raise ForeignFolderError(below)
        if stat.S_ISDIR(status.st_mode) and status.st_mode & _OTHERS:
            below.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)


def _check_home(own: Path) -> None:
    """GRADACC_HOME itself may be a folder that was there before us, such as /tmp: it stays readable.

    In a sticky folder nobody but their owner moves what lies there.
    """
    status = own.stat()
    if status.st_mode & stat.S_ISVTX:
        return
    if status.st_uid != os.geteuid():
        raise ForeignFolderError(own)
    if status.st_mode & _OTHERS_WRITE:
        own.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS_WRITE)


def private_opener(path: str, flags: int) -> int:
    """For `open`: files that only their owner reads."""
    return os.open(path, flags, 0o600)


def sync(path: Path) -> None:
    """Bring a file, or a folder's names, to the disk; folders cannot be opened on Windows. Raises OSError."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
