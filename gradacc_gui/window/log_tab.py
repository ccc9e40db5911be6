"""trainer.log as it grows: its tail, bounded; it follows unless somebody scrolls up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QHBoxLayout, QPlainTextEdit, QVBoxLayout, QWidget

from gradacc_gui.theme import mono_font, set_role, space
from gradacc_gui.window.numbers import gibibytes
from gradacc_gui.window.parts import ElidedLabel, button
from gradacc_gui.words import tr

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
            with self.path.open("rb") as file:
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


class LogTab(QWidget):
    """The log's text with its path above."""

    def __init__(self) -> None:
        super().__init__()
        self._tail: Tail | None = None
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(2))
        row = QHBoxLayout()
        self.path_words = ElidedLabel("", "help")
        self.follow = button(tr("Go to the end"), clicked=self._to_end)
        row.addWidget(self.path_words, 1)
        row.addWidget(self.follow)
        column.addLayout(row)
        self.text = QPlainTextEdit()
        set_role(self.text, "log")
        self.text.setReadOnly(True)
        self.text.setFont(mono_font())
        self.text.setMaximumBlockCount(MOST_LINES)
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setAccessibleName("trainer.log")
        self.text.setPlaceholderText(tr("The trainer has printed nothing yet."))
        column.addWidget(self.text, 1)

    def set_path(self, path: Path | None) -> None:
        """Show another run's log."""
        if (self._tail.path if self._tail else None) == path:
            return
        self._tail = Tail(path) if path else None
        self.path_words.set_full_text(str(path) if path else "")
        self.text.clear()

    def tick(self) -> None:
        """Take in what was printed since; called a few times a second while the tab is shown."""
        if self._tail is None:
            return
        new, start_over = self._tail.read()
        if start_over:
            self.text.clear()
            if self._tail.skipped_bytes:
                self._append(
                    tr("… {size} before this are in the file\n").format(
                        size=gibibytes(self._tail.skipped_bytes)
                    )
                )
        if new:
            self._append(clean_and_short(new))

    def _append(self, text: str) -> None:
        bar = self.text.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 2
        cursor = QTextCursor(self.text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text)
        if at_end:
            bar.setValue(bar.maximum())

    def _to_end(self) -> None:
        bar = self.text.verticalScrollBar()
        bar.setValue(bar.maximum())
