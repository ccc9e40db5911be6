"""trainer.log as it grows: its tail in bounded pieces, without colours and control characters. No Qt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from trainer_backend.regular_files import open_regular

TAIL_BYTES: Final = 256 * 1024
"""What is read of a long log at first, and at most in one tick."""
MOST_BEHIND_BYTES: Final = 1024 * 1024
"""What is printed faster than it can be shown is skipped from here on."""
MOST_LINES: Final = 5000
LONGEST_LINE: Final = 4000
"""Characters; an editor that lays out longer ones holds up the window."""
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1f]")


def clean(text: str) -> str:
    """Without colours and control characters; a progress bar's rewritten line keeps its last state."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(_ESCAPES.sub("", line.strip("\r").rpartition("\r")[2]) for line in lines)


def clean_and_short(text: str) -> str:
    """The same with its long lines cut."""
    return "\n".join(map(_cut, clean(text).split("\n")))


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"


class Tail:
    """Reads what is new at a file's end, a bounded piece at a time.

    It starts over when the file shrank, or grew faster than it was read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped_bytes = 0
        self._offset: int | None = None
        self._rest = b""

    def read(self) -> tuple[str, bool]:
        """New whole lines (and an unfinished one once the file rests), and whether to start over."""
        try:
            size = self.path.stat().st_size
            start_over = self._offset is None or not 0 <= size - self._offset <= MOST_BEHIND_BYTES
            if start_over:
                self._offset = max(0, size - TAIL_BYTES)
                self.skipped_bytes = self._offset
                self._rest = b""
            assert self._offset is not None
            if size == self._offset:
                return self._take_rest(), start_over
            with open_regular(self.path) as file:
                file.seek(self._offset)
                data = file.read(TAIL_BYTES)
        except OSError:  # not there yet, or its folder was taken away: nothing to show
            return "", False
        self._offset += len(data)
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest[-TAIL_BYTES:]  # a line without an end
        if start_over and self.skipped_bytes:
            whole = whole.partition(b"\n")[2]  # the first line was cut
        return (whole + newline).decode("utf-8", "replace"), start_over

    def _take_rest(self) -> str:
        rest, self._rest = self._rest, b""
        return rest.decode("utf-8", "replace")
