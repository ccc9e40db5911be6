"""One line of text that a person types, with a button that empties it where empty means something."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QDragEnterEvent, QResizeEvent
from PySide6.QtWidgets import QLineEdit, QToolButton, QWidget

from gradacc_gui.theme import current_theme, icon, set_role
from gradacc_gui.words import tr


def clean(text: str) -> str:
    """Text that a file can hold: half characters (lone surrogates) and NUL become "?"."""
    return text.replace("\0", "?").encode("utf-8", "replace").decode()


class LineEdit(QLineEdit):
    """One line of text; emits `edited` when a person changed it."""

    edited = Signal(str)

    def __init__(self, *, clearable: bool = False) -> None:
        super().__init__()
        self.setMinimumWidth(60)
        self.textEdited.connect(lambda text: self.edited.emit(clean(text)))
        self._clear = ClearButton(self) if clearable else None

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Keep the clear button at the end, in the middle of the height."""
        super().resizeEvent(event)
        if self._clear is not None:
            self._clear.move(
                self.width() - self._clear.width() - 5, (self.height() - self._clear.height()) // 2
            )

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """A dropped file is no text: the page looks whether it is a recipe."""
        if event.mimeData().hasUrls():
            event.ignore()
        else:
            super().dragEnterEvent(event)

    def set_text(self, text: str) -> None:
        """Show `text` without emitting; the cursor stays where nothing changes."""
        if self.text() != text:
            self.setText(text)
            self.setCursorPosition(0)

    def set_invalid(self, invalid: bool) -> None:
        """Draw it as one that needs a look."""
        set_role(self, "invalid" if invalid else "")


class CloseButton(QToolButton):
    """A small cross in the theme's muted colour, in a square of `side` pixels."""

    def __init__(self, side: int, tip: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        set_role(self, "clear")
        self.setFixedSize(side, side)
        self.setIconSize(QSize(12, 12))
        self.setToolTip(tip)
        self._draw()

    def _draw(self) -> None:
        self.setIcon(icon("close", current_theme().muted, 12))

    def changeEvent(self, event: QEvent) -> None:
        """Draw the icon anew in a new theme."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange:
            self._draw()


class ClearButton(CloseButton):
    """Empties its line. Qt's own one sits off the middle under a style sheet."""

    def __init__(self, line: LineEdit) -> None:
        super().__init__(20, tr("Clear"), line)
        self._line = line
        self.setCursor(Qt.CursorShape.ArrowCursor)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # Ctrl+A, Delete does the same from the keyboard
        self.setAccessibleName(tr("Clear"))
        self.clicked.connect(self._clear_line)
        line.textChanged.connect(self._follow)
        self._follow(line.text())

    def _follow(self, text: str) -> None:
        self.setVisible(bool(text))
        self._line.setTextMargins(0, 0, 18 if text else 0, 0)

    def _clear_line(self) -> None:
        self._line.clear()
        self._line.edited.emit("")
        self._line.setFocus()
