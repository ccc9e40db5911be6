"""trainer.log as it grows: its tail, bounded; it follows unless somebody scrolls up."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QHBoxLayout, QPlainTextEdit, QVBoxLayout, QWidget

from gradacc_gui.run.log_tail import (
    MOST_LINES,
    Tail,
    clean_and_short,
)
from gradacc_gui.run.numbers import gibibytes
from gradacc_gui.theme import mono_font, set_role, space
from gradacc_gui.widgets.parts import ElidedLabel, button
from gradacc_gui.words import tr


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
        self.text.setPlaceholderText(tr("Nothing has been printed so far."))
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
                    tr("… {size} of earlier output are in the file\n").format(
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
