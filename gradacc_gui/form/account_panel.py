"""What became of each key of an imported file, group by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QScrollArea, QVBoxLayout, QWidget

from gradacc_gui.form.account_tally import Group, group_head
from gradacc_gui.importing.account import Imported, KeyLine, one_line, shown
from gradacc_gui.theme import mono_font, set_role, space
from gradacc_gui.widgets.parts import SELECTABLE, ElidedLabel, clear_widget, label, rule
from gradacc_gui.words import tr

HINTS: Final[dict[Group, str]] = {
    "taken": "same meaning, same value",
    "translated": "expressed differently here, or a default of theirs written out",
    "changes-the-run": "your result will differ from theirs",
    "harmless": "concerns their program, not the result",
}
CODE: Final = 12
"""Pixels of keys and values."""


class AccountPanel(QScrollArea):
    """Groups in the order in which they matter to whom the file belongs; empty ones are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName(tr("What became of each key"))
        self.heads: dict[Group, QWidget] = {}
        """By group, of those that are shown."""

    def show_import(self, imported: Imported) -> None:
        """All groups anew."""
        self.heads = {}
        panel = QFrame()
        set_role(panel, "panel")
        column = QVBoxLayout(panel)
        column.setContentsMargins(space(3), space(3), space(3), space(3))
        column.setSpacing(space(2))
        parts: list[tuple[Group, QWidget | None]] = [
            ("taken", _taken(imported.of("taken"))),
            ("translated", _translated(imported)),
            ("changes-the-run", _changes(imported.of("changes-the-run"))),
            ("harmless", _harmless(imported.of("harmless"))),
        ]
        for group, content in parts:
            if content is not None:
                self._add(column, group_head(group, tr(HINTS[group])), content, group)
            if group == "changes-the-run" and imported.said:
                self._add(column, label(tr("Good to know"), "title"), _said(imported.said))
        column.addStretch(1)
        self.setWidget(panel)

    def _add(self, column: QVBoxLayout, head: QWidget, content: QWidget, group: Group | None = None) -> None:
        if column.count():
            column.addWidget(rule())
        column.addWidget(head)
        column.addWidget(content)
        if group is not None:
            self.heads[group] = head

    def go_to(self, group: Group) -> None:
        """Scroll a group's head to the top."""
        head = self.heads.get(group)
        if head is not None:
            self.verticalScrollBar().setValue(head.y() - space(3))


def _code(text: str, role: str = "", mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight) -> QLabel:
    """A key or value, in one line; all of it is in the tool-tip."""
    made = ElidedLabel(one_line(text), role, mode)
    made.setFont(mono_font(CODE))
    made.setTextInteractionFlags(SELECTABLE)
    return made


def _words(text: str, role: str = "") -> QLabel:
    made = label(text, role, wrap=True)
    made.setTextInteractionFlags(SELECTABLE)
    return made


def _grid(*stretches: int) -> tuple[QWidget, QGridLayout]:
    holder = clear_widget()
    grid = QGridLayout(holder)
    grid.setContentsMargins(0, 0, 0, 0)
    grid.setHorizontalSpacing(space(3))
    grid.setVerticalSpacing(space(1))
    for column, stretch in enumerate(stretches):
        grid.setColumnStretch(column, stretch)
    return holder, grid


def _taken(lines: Sequence[KeyLine]) -> QWidget | None:
    """Key and value, two abreast."""
    if not lines:
        return None
    holder, grid = _grid(6, 4, 6, 4)
    for number, line in enumerate(lines):
        row, column = divmod(number, 2)
        grid.addWidget(_code(line.key, "muted"), row, 2 * column)
        grid.addWidget(_code(shown(line.value)), row, 2 * column + 1)
    return holder


def _translated(imported: Imported) -> QWidget | None:
    """Key and value there, key and value here, and how one became the other."""
    lines = imported.of("translated")
    if not lines and not imported.defaults:
        return None
    holder, grid = _grid(5, 7, 6)
    top = Qt.AlignmentFlag.AlignTop
    for row, line in enumerate(_in_order(imported)):
        there = f"{line.key} {tr('(absent)')}" if line.is_absent else f"{line.key}: {shown(line.value)}"
        here = f"{line.to} = {shown(line.becomes)}" if line.to and line.becomes is not None else line.to
        grid.addWidget(_code(there, "muted"), row, 0, top)
        grid.addWidget(_code(here, "code", Qt.TextElideMode.ElideMiddle), row, 1, top)
        grid.addWidget(_words(_note(line), "help"), row, 2, top)
    return holder


def _in_order(imported: Imported) -> list[KeyLine]:
    """Each translated key, with what else the same key sets below it; then defaults."""
    found: list[KeyLine] = []
    for line in imported.lines:
        if line.kind == "translated":
            found.append(line)
        if line.kind != "harmless":
            found += [further for further in imported.further if further.key == line.key]
    return [*found, *imported.defaults]


def _note(line: KeyLine) -> str:
    if not line.is_absent:
        return line.note
    return f"{tr('their default')}, {line.note}" if line.note else tr("their default")


def _changes(lines: Sequence[KeyLine]) -> QWidget | None:
    """What is missing, in words of consequence."""
    if not lines:
        return None
    holder, grid = _grid(5, 13)
    for row, line in enumerate(lines):
        key = _code(f"{line.key}: {shown(line.value)}", "code-warning")
        grid.addWidget(key, row, 0, Qt.AlignmentFlag.AlignTop)
        grid.addWidget(_words(line.note), row, 1)
    return holder


def _harmless(lines: Sequence[KeyLine]) -> QWidget | None:
    """The keys of each reason together."""
    if not lines:
        return None
    holder, grid = _grid(5, 13)
    reasons = dict.fromkeys(line.note for line in lines)
    for row, reason in enumerate(reasons):
        keys = ", ".join(line.key for line in lines if line.note == reason)
        made = _words(one_line(keys), "muted")
        made.setFont(mono_font(CODE))
        grid.addWidget(made, row, 0, Qt.AlignmentFlag.AlignTop)
        grid.addWidget(_words(reason, "help"), row, 1, Qt.AlignmentFlag.AlignTop)
    return holder


def _said(sentences: Sequence[str]) -> QWidget:
    holder = clear_widget()
    column = QVBoxLayout(holder)
    column.setContentsMargins(0, 0, 0, 0)
    column.setSpacing(space(1))
    for sentence in sentences:
        column.addWidget(_words(sentence))
    return holder
