"""Standard streams that no `print` fails on.

A trainer's output is trainer.log, on the run's own disk: a disk that is full or fails costs lines of it, not
the run. The log is UTF-8 whatever the environment says, and takes what cannot be encoded as escapes.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ESCAPES: Final = "backslashreplace"
"""What becomes of a character that a stream's encoding lacks."""


class ForgivingFile(io.FileIO):
    """What the disk does not take is dropped."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or say that all was written where the disk refused it."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def forgive_prints() -> None:
    """From here on, stdout and stderr raise neither for a full disk nor for what they cannot encode."""
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
                encoding="utf-8",
                errors=ESCAPES,
                line_buffering=True,  # the log is read while it is written
            )
    with suppress(OSError, ValueError):
        stream.reconfigure(errors=ESCAPES)  # a terminal's or pipe's encoding is its own
    return stream
