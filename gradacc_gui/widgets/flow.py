"""Panels in one column, or two or three abreast where the page is wide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLayout, QVBoxLayout, QWidget

from gradacc_gui.theme import space

COLUMN_WIDTH: Final = 690
"""From twice this width on, panels stand two abreast."""


class PanelFlow(QWidget):
    """Keeps panels in reading order; a new column takes the shortest so far."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self._panels: list[tuple[QWidget, int]] = []
        self._columns: list[QVBoxLayout] = []
        self._row = QHBoxLayout(self)
        self._row.setContentsMargins(0, 0, 0, 0)
        self._row.setSpacing(space(3))

    def set_panels(self, panels: Sequence[tuple[QWidget, int]]) -> None:
        """The panels with their weights (about how many fields each shows)."""
        self._panels = list(panels)
        self._spread(len(self._columns) or 1)

    def _spread(self, count: int) -> None:
        for column in self._columns:
            empty(column)
            self._row.removeItem(column)
        self._columns = []
        heights = [0] * count
        for _ in range(count):
            column = QVBoxLayout()
            column.setSpacing(space(3))
            self._columns.append(column)
            self._row.addLayout(column, 1)
        for panel, weight in self._panels:
            place = heights.index(min(heights))
            self._columns[place].addWidget(panel)
            heights[place] += weight + 2
        for column in self._columns:
            column.addStretch(1)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Spread anew when another number of columns fits."""
        super().resizeEvent(event)
        count = min(max(self.width() // COLUMN_WIDTH, 1), 3)
        if count != len(self._columns):
            self._spread(count)


def empty(layout: QLayout) -> None:
    """Take all widgets out of a layout.

    Not by `takeAt`: the item it hands to Python lives on, Qt then keeps no size cache of the widget's
    next place up to date, and the widget stays as high as it was at first.
    """
    widgets = [item.widget() for place in range(layout.count()) if (item := layout.itemAt(place))]
    for widget in widgets:
        if widget is not None:
            layout.removeWidget(widget)
