"""The learning rate over the run, drawn small below the fields that shape it."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QVBoxLayout, QWidget

from gradacc_gui.recipe.schedule_preview import SchedulePreview
from gradacc_gui.theme import current_theme, set_role, space
from gradacc_gui.widgets.parts import label, put
from gradacc_gui.words import tr

HEIGHT: Final = 44
PALE: Final = 0.2
"""How much of its colour the area of the effective batch has."""
EDGE: Final = 2.0
"""Room above and below for the width of the line."""


class SchedulePicture(QWidget):
    """A line and its sentence; hidden while there is nothing to show."""

    def __init__(self) -> None:
        super().__init__()
        self.line = _RateLine()
        self.words = label("", "help", wrap=True)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, space(1), 0, 0)
        column.setSpacing(space(1))
        column.addWidget(self.line)
        column.addWidget(self.words)
        self.setAccessibleName(tr("Learning rate over the run"))
        self.hide()

    def show_preview(self, preview: SchedulePreview) -> None:
        """Draw another schedule."""
        self.line.set_ratios(preview.ratios, preview.batches)
        self.line.setVisible(bool(preview.ratios))
        put(self.words, preview.sentence)
        set_role(self.words, "warning" if preview.warns else "help")
        self.setAccessibleDescription(preview.sentence)
        self.setVisible(bool(preview.ratios or preview.sentence))


class _RateLine(QWidget):
    """Heights of 0 to 1 from left to right, above a base line."""

    def __init__(self) -> None:
        super().__init__()
        self._ratios: tuple[float, ...] = ()
        self._batches: tuple[float, ...] = ()
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def set_ratios(self, ratios: tuple[float, ...], batches: tuple[float, ...] = ()) -> None:
        """Draw a curve of learning-rate factors over the run, and behind it the effective batch."""
        if (ratios, batches) != (self._ratios, self._batches):
            self._ratios, self._batches = ratios, batches
            self.update()

    def points(self) -> list[QPointF]:
        """Where the line of the learning rate runs, in logical pixels."""
        return self._heights(self._ratios)

    def steps(self) -> list[QPointF]:
        """The stairs of the effective batch; none where it is constant."""
        return self._heights(self._batches)

    def _heights(self, shares: tuple[float, ...]) -> list[QPointF]:
        room, base = self.height() - 2 * EDGE, self.height() - EDGE
        step = self.width() / max(1, len(shares) - 1)
        return [QPointF(index * step, base - room * share) for index, share in enumerate(shares)]

    def paintEvent(self, _event: QPaintEvent) -> None:
        """The base line, the effective batch as a pale area, then the learning rate."""
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(theme.line), 1))
        base = self.height() - EDGE
        painter.drawLine(QPointF(0, base), QPointF(self.width(), base))
        stairs = self.steps()
        if stairs:
            area = QPolygonF([QPointF(0, base), *stairs, QPointF(self.width(), base)])
            pale = QColor(theme.muted)
            pale.setAlphaF(PALE)
            painter.setBrush(pale)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.drawPolygon(area)
            painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(QColor(theme.accent), 1.5))
        painter.drawPolyline(QPolygonF(self.points()))
        painter.end()
