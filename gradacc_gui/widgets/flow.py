"""Panels in one column, or two or three abreast where the page is wide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import QEvent, QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QLayout, QSizePolicy, QVBoxLayout, QWidget

from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import clear_widget

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


class TwoParts(QWidget):
    """A row of controls at the left and one at the right; one below the other where both do not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("clear")
        self._box = QBoxLayout(QBoxLayout.Direction.LeftToRight, self)
        self._box.setContentsMargins(0, 0, 0, 0)
        self._box.setSpacing(space(2))
        self.left = self._add_part()
        self._box.addStretch(1)
        self.right = self._add_part()

    def _add_part(self) -> QHBoxLayout:
        part = clear_widget()
        part.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        row = QHBoxLayout(part)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(space(2))
        self._box.addWidget(part)
        return row

    def minimumSizeHint(self) -> QSize:
        """As wide as the wider part: the other one finds room below."""
        wide = max(self.left.minimumSize().width(), self.right.minimumSize().width())
        return QSize(wide, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Beside one another while both fit."""
        super().resizeEvent(event)
        self._arrange()

    def event(self, event: QEvent) -> bool:
        """Arrange anew when a control is shown, hidden or renamed."""
        if event.type() == QEvent.Type.LayoutRequest:
            self._arrange()
        return super().event(event)

    def _arrange(self) -> None:
        needed = self.left.sizeHint().width() + self.right.sizeHint().width() + space(4)
        wanted = (
            QBoxLayout.Direction.LeftToRight if needed <= self.width() else QBoxLayout.Direction.TopToBottom
        )
        if wanted != self._box.direction():
            self._box.setDirection(wanted)
