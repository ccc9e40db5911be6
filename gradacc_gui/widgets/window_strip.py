"""The window strip: which micro-batch of the optimizer step is running, so that accumulation is seen."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from gradacc_gui.theme import current_theme, mix
from gradacc_gui.words import tr

MOST_CELLS: Final = 32
"""More micro-batches than this are one bar: cells would be too thin to count."""
GAP: Final = 3
HEIGHT: Final = 8


class WindowStrip(QWidget):
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
