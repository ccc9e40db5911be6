"""A few rows of words and numbers, laid out as labels: no scroll bars, selectable, read out cell by cell."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QLabel, QVBoxLayout, QWidget

from gradacc_gui.theme import space
from gradacc_gui.widgets.desktop import offer_copy, tab_separated
from gradacc_gui.widgets.parts import SELECTABLE, label
from gradacc_gui.words import tr
from trainer_backend.published import Difference


class Cell(msgspec.Struct, frozen=True):
    """A text and the role that it is drawn in."""

    text: str
    role: str = ""


class SmallTable(QWidget):
    """A header in small muted type, then rows; numbers stand to the right."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName("clear")
        self.setAccessibleName(name)
        offer_copy(self, self._copied)
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._header: tuple[str, ...] = ()
        self._rows: tuple[tuple[Cell, ...], ...] = ()
        self._inner: QWidget | None = None

    def show_rows(self, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Show these; nothing is laid out anew when they are the same."""
        wanted = tuple(map(tuple, rows))
        if (tuple(header), wanted) == (self._header, self._rows):
            return
        self._header, self._rows = tuple(header), wanted
        if self._inner is not None:
            self._column.removeWidget(self._inner)
            self._inner.hide()
            self._inner.deleteLater()
        self._inner = self._build()
        self._column.addWidget(self._inner)

    def texts(self) -> list[tuple[str, ...]]:
        """What stands in each row, without the header."""
        return [tuple(cell.text for cell in row) for row in self._rows]

    def _copied(self) -> str:
        """The words that are selected in a cell, else the whole table with its header."""
        chosen = [part.selectedText() for part in self.findChildren(QLabel) if part.hasSelectedText()]
        return chosen[0] if chosen else tab_separated([self._header, *self.texts()])

    def _build(self) -> QWidget:
        inner = QWidget()
        inner.setObjectName("clear")
        grid = QGridLayout(inner)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(space(4))
        grid.setVerticalSpacing(space(1))
        for place, heading in enumerate(self._header):
            grid.addWidget(_aligned(label(heading, "help"), place), 0, place)
        for number, row in enumerate(self._rows, start=1):
            for place, cell in enumerate(row):
                made = _aligned(label(cell.text, cell.role), place)
                made.setTextInteractionFlags(SELECTABLE)
                made.setContextMenuPolicy(Qt.ContextMenuPolicy.NoContextMenu)  # the table's own
                grid.addWidget(made, number, place)
        grid.setColumnStretch(0, 1)
        return inner


def _aligned(made: QLabel, place: int) -> QLabel:
    side = Qt.AlignmentFlag.AlignRight if place else Qt.AlignmentFlag.AlignLeft
    made.setAlignment(side | Qt.AlignmentFlag.AlignVCenter)
    return made


def show_published(table: SmallTable, differences: Sequence[Difference]) -> None:
    """Each published value beside the one here; what differs stands out."""
    header = ("", tr("as published"), tr("in this run"))
    table.show_rows(header, [_row(difference) for difference in differences])


def _row(difference: Difference) -> tuple[Cell, Cell, Cell]:
    differs = "differs" if difference.differs else "muted"
    return Cell(title_of(difference.title)), Cell(difference.published), Cell(difference.here, differs)


def title_of(name: str) -> str:
    """A metric's name for people: mean_iou → Mean iou."""
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]
