"""One editor a shape of field. All speak text: what a person types is taken as it is and judged elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PySide6.QtCore import QSize, Signal
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QIcon, QWheelEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QHBoxLayout,
    QLineEdit,
    QMenu,
    QPlainTextEdit,
    QSizePolicy,
    QWidget,
)

from gradacc_gui.form.points_edit import PointsEdit
from gradacc_gui.recipe.arrangement import CHOICES
from gradacc_gui.recipe.field_specs import FieldSpec
from gradacc_gui.theme import mono_font, set_role, space
from gradacc_gui.widgets.desktop import ask_for_file, ask_for_folder
from gradacc_gui.widgets.line_edit import LineEdit, clean
from gradacc_gui.widgets.parts import button
from gradacc_gui.words import tr

FEWEST_LINES: Final = 3
MOST_LINES: Final = 14
NEEDED: Final = frozenset(
    path for choice in CHOICES if choice.key in ("length", "accumulation") for path in choice.paths
)
"""Fields of which one is always needed: a button that empties them would only make a fault."""


class ComboBox(QComboBox):
    """A choice that the mouse wheel does not change while the page is scrolled past it."""

    edited = Signal(str)

    def __init__(self, values: Sequence[str] = (), words: Sequence[str] = ()) -> None:
        super().__init__()
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setMinimumContentsLength(6)
        self.setIconSize(QSize(0, 0))
        for value, word in zip(values, words or values, strict=True):
            self.addItem(QIcon(), word, value)
        self.activated.connect(lambda _index: self.edited.emit(self.text()))

    def text(self) -> str:
        """The chosen value, as the recipe has it."""
        value = self.currentData()
        return "" if value is None else str(value)

    def set_text(self, text: str) -> None:
        """Choose a value without emitting; one that is not offered chooses nothing."""
        self.setCurrentIndex(self.findData(text))

    def set_invalid(self, invalid: bool) -> None:
        """Draw it as one that needs a look."""
        set_role(self, "invalid" if invalid else "")

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Leave the wheel to the page."""
        event.ignore()


class SuggestionBox(ComboBox):
    """A text with usual values to choose from."""

    def __init__(self, suggestions: Sequence[str]) -> None:
        super().__init__(suggestions)
        self.setEditable(True)
        self.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.setCompleter(None)  # type: ignore[arg-type]  # PySide's stub lacks the None that Qt takes
        line = self.lineEdit()
        assert line is not None
        line.textEdited.connect(lambda text: self.edited.emit(clean(text)))

    def text(self) -> str:
        """Its text."""
        return clean(self.currentText())

    def set_text(self, text: str) -> None:
        """Show `text` without emitting."""
        if self.currentText() != text:
            self.setEditText(text)


class FlagBox(QCheckBox):
    """An editor for a flag: a box that is ticked or not."""

    edited = Signal(str)

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.setMinimumHeight(30)
        self.clicked.connect(lambda _checked: self.edited.emit(self.text_value()))

    def text_value(self) -> str:
        """Either "true" or "false"."""
        return "true" if self.isChecked() else "false"

    def set_text(self, text: str) -> None:
        """Check it or not, without emitting."""
        self.setChecked(text == "true")

    def set_invalid(self, invalid: bool) -> None:
        """A check box cannot be wrong by itself; a rule across fields may say so in words."""


class TableEdit(QPlainTextEdit):
    """A table's own TOML lines."""

    edited = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._quiet = False
        self.setTabChangesFocus(True)
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setFont(mono_font(13))
        self.textChanged.connect(self._tell)
        self._fit()

    def _fit(self) -> None:
        """As high as its lines, within reason."""
        lines = min(max(self.blockCount() + 1, FEWEST_LINES), MOST_LINES)
        self.setFixedHeight(self.fontMetrics().lineSpacing() * lines + 20)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """A dropped file is no text: the page looks whether it is a recipe."""
        if event.mimeData().hasUrls():
            event.ignore()
        else:
            super().dragEnterEvent(event)

    def _tell(self) -> None:
        self._fit()
        if not self._quiet:
            self.edited.emit(clean(self.toPlainText()))

    def set_text(self, text: str) -> None:
        """Show `text` without emitting."""
        if self.toPlainText() != text:
            self._quiet = True
            self.setPlainText(text)
            self._quiet = False

    def set_invalid(self, invalid: bool) -> None:
        """Draw it as one that needs a look."""
        set_role(self, "invalid" if invalid else "")


class PathEdit(QWidget):
    """A path, typed, browsed for or dropped."""

    edited = Signal(str)

    def __init__(self, what: str) -> None:
        """`what`: "file", "folder" or "any"."""
        super().__init__()
        self._folder = Path.home()
        self.line = _DropLine()
        self.line.edited.connect(self.edited)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(space(1))
        row.addWidget(self.line, 1)
        self.setFocusProxy(self.line)
        self.browse = button(tr("Browse…"), role="browse")
        self.browse.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        if what == "any":
            menu = QMenu(self.browse)
            menu.addAction(tr("File…"), self._browse_file)
            menu.addAction(tr("Folder…"), self._browse_folder)
            self.browse.setMenu(menu)
        else:
            self.browse.clicked.connect(self._browse_file if what == "file" else self._browse_folder)
        row.addWidget(self.browse)

    def set_folder(self, folder: Path) -> None:
        """Browse from here on: relative paths start here too."""
        self._folder = folder

    def set_text(self, text: str) -> None:
        """Show `text` without emitting."""
        self.line.set_text(text)
        self.line.setToolTip(text)

    def set_invalid(self, invalid: bool) -> None:
        """Draw it as one that needs a look."""
        self.line.set_invalid(invalid)

    def _browse_file(self) -> None:
        ask_for_file(self, tr("Choose a file"), self._folder, self._take)

    def _browse_folder(self) -> None:
        ask_for_folder(self, tr("Choose a folder"), self._folder, self._take)

    def _take(self, path: Path) -> None:
        self.set_text(str(path))
        self.edited.emit(clean(str(path)))


class _DropLine(LineEdit):
    """A line that takes a file or folder dropped on it as its path."""

    def __init__(self) -> None:
        super().__init__(clearable=True)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Take one local file; anything else goes to the page."""
        if _dropped_path(event):
            event.acceptProposedAction()
        else:
            event.ignore()

    def dropEvent(self, event: QDropEvent) -> None:
        """Its path becomes the text."""
        path = _dropped_path(event)
        self.set_text(path)
        self.edited.emit(clean(path))
        event.acceptProposedAction()


def _dropped_path(event: QDropEvent) -> str:
    urls = event.mimeData().urls()
    path = urls[0].toLocalFile() if len(urls) == 1 else ""
    return "" if path.endswith(".toml") else path


Editor = LineEdit | ComboBox | FlagBox | TableEdit | PathEdit | PointsEdit


def editor_for(spec: FieldSpec) -> Editor:
    """The editor that suits a field."""
    match spec.shape:
        case "choice":
            return ComboBox(spec.choices, spec.words)
        case "flag":
            return FlagBox(spec.title)
        case "table":
            return TableEdit()
        case "points":
            return PointsEdit(spec)
        case _ if spec.suggestions:
            return SuggestionBox(spec.suggestions)
        case _ if spec.browse:
            return PathEdit(spec.browse)
        case _:
            return LineEdit(clearable=spec.optional and spec.path not in NEEDED)


def line_of(editor: QWidget) -> QLineEdit | None:
    """The line that a person types into, where the editor has one."""
    match editor:
        case QLineEdit():
            return editor
        case PathEdit():
            return editor.line
        case SuggestionBox():
            return editor.lineEdit()
        case _:
            return None


def focus_widget(editor: QWidget) -> QWidget:
    """What takes the keyboard."""
    return editor.focusProxy() or editor


def set_names(editor: QWidget, name: str, description: str) -> None:
    """What a screen reader says of an editor."""
    if isinstance(editor, PointsEdit):
        editor.set_names(name, description)
        return
    for widget in {editor, focus_widget(editor)}:
        widget.setAccessibleName(name)
        widget.setAccessibleDescription(description)
    if isinstance(editor, PathEdit):
        editor.browse.setAccessibleName(tr("{name}: browse").format(name=name))
