"""The recipe that an import makes, each value with where it came from; open keys stand out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import QEvent
from PySide6.QtGui import QColor, QFont, QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QTextEdit

from gradacc_gui.importing.account import RecipeLine
from gradacc_gui.theme import current_theme, mix, mono_font, set_role
from gradacc_gui.words import tr

COMMENTS_FROM: Final = 32
"""The column in which comments begin, where the value leaves room."""
LONGEST_REMARK: Final = 62
"""Characters of a line that is only a comment; the file and the account have the whole."""


class RecipePreview(QTextEdit):
    """Read-only TOML in the theme's colours."""

    def __init__(self) -> None:
        super().__init__()
        set_role(self, "code")
        self.setReadOnly(True)
        self.setTabChangesFocus(True)
        self.setLineWrapMode(QTextEdit.LineWrapMode.NoWrap)
        self.setFont(mono_font(12))
        self.setAccessibleName(tr("Recipe"))
        self._lines: tuple[RecipeLine, ...] = ()

    def show_lines(self, lines: Sequence[RecipeLine]) -> None:
        """Another recipe, or the same with something filled in: what is looked at stays in sight."""
        if tuple(lines) == self._lines:
            return
        self._lines = tuple(lines)
        self._write()

    def _write(self) -> None:
        across, down = self.horizontalScrollBar().value(), self.verticalScrollBar().value()
        self.clear()
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()
        for number, line in enumerate(self._lines):
            if number:
                cursor.insertBlock()
            self._write_line(cursor, line)
        cursor.endEditBlock()
        self.moveCursor(QTextCursor.MoveOperation.Start)
        self.horizontalScrollBar().setValue(across)
        self.verticalScrollBar().setValue(down)

    def _write_line(self, cursor: QTextCursor, line: RecipeLine) -> None:
        theme = current_theme()
        block = QTextBlockFormat()
        if line.is_open:
            block.setBackground(QColor(mix(theme.panel, theme.warning, 0.18)))
        cursor.setBlockFormat(block)
        key, equals, value = line.text.partition(" = ")
        cursor.insertText(key, _look(theme.text if line.is_heading else theme.accent, bold=line.is_heading))
        cursor.insertText(equals, _look(theme.muted))
        cursor.insertText(value, _look(theme.text))
        if line.comment:
            gap = " " * max(2, COMMENTS_FROM - len(line.text)) if line.text else ""
            words = line.comment
            if not line.text and len(words) > LONGEST_REMARK:
                words = f"{words[: LONGEST_REMARK - 1]}…"
            colour = theme.warning if line.is_open else theme.muted
            cursor.insertText(f"{gap}# {words}", _look(colour, bold=line.is_open))

    def changeEvent(self, event: QEvent) -> None:
        """Write anew in a new theme."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange and self._lines:
            self._write()


def _look(colour: str, *, bold: bool = False) -> QTextCharFormat:
    made = QTextCharFormat()
    made.setForeground(QColor(colour))
    made.setFontWeight(QFont.Weight.DemiBold if bold else QFont.Weight.Normal)
    return made
