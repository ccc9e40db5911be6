"""Small drawn figures: the micro-batches of an optimizer step, an error beside its limit."""

from __future__ import annotations

import math
from typing import Final

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from gradacc_gui.theme import current_theme, mix
from gradacc_gui.words import tr

MOST_CELLS: Final = 32
"""More micro-batches than this are one bar: cells would be too thin to count."""
GAP: Final = 3
HEIGHT: Final = 8


class MicroBatchStrip(QWidget):
    """One cell for each micro-batch of the window; done ones are filled, the running one is tinted."""

    def __init__(self) -> None:
        super().__init__()
        self._cells, self._done, self._running = 0, 0, False
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(tr("Window of micro-batches"))

    def sizeHint(self) -> QSize:
        """Wide enough for eight cells."""
        return QSize(180, HEIGHT)

    def set_progress(self, cells: int, done: int, *, running: bool) -> None:
        """`done` of `cells` micro-batches have been added; `running`: the next one is being computed."""
        new = (max(cells, 0), min(max(done, 0), max(cells, 0)), running)
        if new != (self._cells, self._done, self._running):
            self._cells, self._done, self._running = new
            self.setAccessibleDescription(
                tr("{done} of {cells} micro-batches done").format(done=done, cells=cells)
            )
            self.update()

    def progress(self) -> tuple[int, int]:
        """Micro-batches done, and in the window."""
        return self._done, self._cells

    def cell_rects(self) -> list[QRectF]:
        """Where the cells lie, in logical pixels; one bar beyond `MOST_CELLS`."""
        count = self._cells if self._cells <= MOST_CELLS else 1
        if not count:
            return []
        gap = GAP if count <= MOST_CELLS // 2 else 2
        width = (self.width() - gap * (count - 1)) / count
        return [QRectF(index * (width + gap), 0, width, self.height()) for index in range(count)]

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Empty cells, then what is done, then the tint of the running one."""
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        empty, full = QColor(theme.line), QColor(theme.accent)
        rects = self.cell_rects()
        if self._cells > MOST_CELLS:
            self._paint_bar(painter, rects[0], empty, full)
        else:
            running = QColor(mix(theme.line, theme.accent, 0.35))
            for index, rect in enumerate(rects):
                is_next = self._running and index == self._done
                painter.setBrush(full if index < self._done else running if is_next else empty)
                painter.drawRoundedRect(rect, 2, 2)
        painter.end()

    def _paint_bar(self, painter: QPainter, rect: QRectF, empty: QColor, full: QColor) -> None:
        painter.setBrush(empty)
        painter.drawRoundedRect(rect, 2, 2)
        done = QRectF(rect)
        done.setWidth(rect.width() * self._done / self._cells)
        painter.setBrush(full)
        painter.drawRoundedRect(done, 2, 2)


LOWEST: Final = -17.0
"""Power of ten at the left end; smaller errors lie on it."""


class ErrorScale(QWidget):
    """A hairline from 1e-17 to 1, a tick at the limit, a dot at the error."""

    def __init__(self, error: float, limit: float, token: str) -> None:
        """`token` is the dot's colour in the theme, such as "ok" or "bad"."""
        super().__init__()
        self._error = error
        self._limit = limit
        self._token = token
        self.setMinimumWidth(80)
        self.setAccessibleName(f"{error:.1e} / {limit:.1e}")
        self.setToolTip(f"{error:.2e}  ≤  {limit:.2e}" if error <= limit else f"{error:.2e}  >  {limit:.2e}")

    def sizeHint(self) -> QSize:
        """Wide enough for seventeen powers of ten."""
        return QSize(110, 20)

    def share(self, value: float) -> float:
        """Where on the line a value lies, 0 … 1."""
        if math.isnan(value):
            return 1.0
        power = LOWEST if value <= 0 else min(max(math.log10(value), LOWEST), 0.0)
        return 1 - power / LOWEST

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Line, allowed part, limit, dot."""
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        left, width, middle = 6.0, self.width() - 12.0, self.height() / 2
        limit = left + width * self.share(self._limit)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(theme.line))
        painter.drawRoundedRect(QRectF(left, middle - 1.5, width, 3), 1.5, 1.5)
        painter.setPen(QPen(QColor(theme.muted), 1.5))
        painter.drawLine(QPointF(limit, middle - 6), QPointF(limit, middle + 6))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(getattr(theme, self._token)))
        painter.drawEllipse(QPointF(left + width * self.share(self._error), middle), 4.5, 4.5)
        painter.end()
