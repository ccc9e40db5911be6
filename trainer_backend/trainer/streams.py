"""Standard streams that lie in a file: a full disk costs their lines, not the run.

A trainer's output is trainer.log, on the run's own disk; a `print` in the user's code must not end a
run whose journal survives that the disk is full.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FULL: Final = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


class ForgivingFile(io.FileIO):
    """What finds no room is dropped."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or say that all was written when the disk is full."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return memoryview(data).nbytes


def forgive_full_disk() -> None:
    """From here on, stdout and stderr lose lines on a full disk instead of raising."""
    sys.stdout = _forgiving(sys.stdout)
    sys.stderr = _forgiving(sys.stderr)


def _forgiving(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # none (pythonw), or somebody's own
        return stream
    with suppress(OSError, ValueError):
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            stream.flush()
            return io.TextIOWrapper(
                io.BufferedWriter(ForgivingFile(stream.fileno(), "w", closefd=False)),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
    return stream
