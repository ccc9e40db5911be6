"""Files that others may have laid where ours belong: opened only where they are regular files. No torch.

A named pipe keeps whoever opens it waiting for ever, a device has no end, a link leads out of the run.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from trainer_backend.errors import RunDirectoryError

LARGEST_TEXT_BYTES: Final = 1024 * 1024
"""Of a file that people write by hand, such as a recipe."""
_NEVER_WAIT: Final[int] = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_KINDS: Final = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def kind_of(mode: int) -> str:
    """What a file of this mode (`st_mode`) is, in words; empty for a regular one."""
    if stat.S_ISREG(mode):
        return ""
    return next((word for is_it, word in _KINDS if is_it(mode)), "a device")


def open_regular(path: Path, *, follow: bool = False) -> BinaryIO:
    """Open a regular file for reading, without ever waiting. Raises OSError, for any other kind too.

    `follow`: a link is taken for the file that it names; for paths that a person typed.
    """
    handle = os.open(path, os.O_RDONLY | _NEVER_WAIT | (0 if follow else _NOFOLLOW))
    kind = kind_of(os.fstat(handle).st_mode)
    if kind:
        os.close(handle)
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file")
    return os.fdopen(handle, "rb")


def read_regular(path: Path, largest_bytes: int, *, follow: bool = False) -> bytes:
    """What a regular file holds. Raises OSError: another kind of file, or a larger one, too."""
    with open_regular(path, follow=follow) as file:
        content = file.read(largest_bytes + 1)
    if len(content) > largest_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {largest_bytes:,} bytes")
    return content


def check_regular(path: str) -> None:
    """Raise RunDirectoryError unless `path` is a regular file, or nothing."""
    try:
        kind = kind_of(os.lstat(path).st_mode)
    except OSError:
        return
    if kind:
        raise RunDirectoryError(strange_file(path, kind))


def strange_file(path: Path | str, kind: str) -> str:
    """The sentence for a run's file that is something else."""
    return (
        f"{path} is {kind}, not a regular file, so gradacc did not make it. Remove it, or copy the run again."
    )


def is_folder(path: Path | os.DirEntry[str]) -> bool:
    """Whether a folder lies at `path` that can be looked at, whatever the path is."""
    try:
        return path.is_dir()
    except (OSError, ValueError):  # too long, a loop of links, no right to look, a NUL in it
        return False


def is_file(path: Path) -> bool:
    """Whether a file lies at `path`, or a link to one, whatever the path is."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # as above
        return False
