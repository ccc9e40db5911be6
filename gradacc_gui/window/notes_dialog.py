"""Asks for a run's label, tags, note and star; for several runs, for tags to add."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QDialog,
    QDialogButtonBox,
    QFormLayout,
    QLineEdit,
    QPlainTextEdit,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.session.about_file import AboutRun, clean_tags
from gradacc_gui.session.runs import RunSummary
from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import label
from gradacc_gui.words import tr


class NotesDialog(QDialog):
    """Opened, not executed; `noted` carries what was entered."""

    noted = Signal(list)
    """Pairs of a `RunSummary` and the `AboutRun` that it shall have."""

    def __init__(self, parent: QWidget, lines: Sequence[RunSummary], known_tags: Sequence[str]) -> None:
        super().__init__(parent)
        self._lines = list(lines)
        one = lines[0] if len(lines) == 1 else None
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setMinimumWidth(460)
        self.setWindowTitle(
            tr("Label and notes of {name}").format(name=one.name[:80])
            if one
            else tr("Add tags to {count} runs").format(count=len(lines))
        )
        about = one.about if one is not None else AboutRun()
        column = QVBoxLayout(self)
        column.setSpacing(space(3))
        form = QFormLayout()
        form.setSpacing(space(2))
        column.addLayout(form)
        self.name = _edit(about.label, tr("Label"))
        self.name.setPlaceholderText(one.run.id if one else "")
        self.tags = _edit(", ".join(about.tags), tr("Tags"))
        self.tags.setPlaceholderText(tr("separated by commas"))
        self.note = QPlainTextEdit(about.note)
        self.note.setAccessibleName(tr("Note"))
        self.note.setTabChangesFocus(True)
        self.note.setFixedHeight(90)
        self.star = QCheckBox(tr("Starred"))
        self.star.setChecked(about.starred)
        for part in (self.name, self.note, self.star):
            part.setParent(self)
            part.setVisible(one is not None)
        if one is not None:
            form.addRow(tr("Label"), self.name)
            form.addRow(
                "", label(tr("Shown in lists. The run's folder and its id stay as they are."), "help")
            )
        form.addRow(tr("Tags"), self.tags)
        if known_tags:
            words = tr("In use: {tags}").format(tags=", ".join(tag[:40] for tag in known_tags[:12]))
            form.addRow("", label(words, "help", wrap=True))
        if one is not None:
            form.addRow(tr("Note"), self.note)
            form.addRow("", self.star)
        kinds = QDialogButtonBox.StandardButton
        self.buttons = QDialogButtonBox(kinds.Save | kinds.Cancel)
        self.buttons.accepted.connect(self.accept)
        self.buttons.rejected.connect(self.reject)
        column.addWidget(self.buttons)
        self.accepted.connect(self._tell)

    def _tell(self) -> None:
        tags = clean_tags(self.tags.text().split(","))
        if len(self._lines) == 1:
            about = AboutRun(self.name.text(), tags, self.note.toPlainText(), self.star.isChecked())
            self.noted.emit([(self._lines[0], about)])
            return
        self.noted.emit(
            [
                (line, msgspec.structs.replace(line.about, tags=clean_tags((*line.about.tags, *tags))))
                for line in self._lines
            ]
        )


def _edit(text: str, name: str) -> QLineEdit:
    made = QLineEdit(text)
    made.setAccessibleName(name)
    return made
