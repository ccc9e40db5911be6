"""What a pointer does over a chart: wheel, drag, hover, double click. It only tells; the grid acts."""

from __future__ import annotations

from typing import Final

import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QWidget

from gradacc_gui.charts.lane import Lane

LEFT_PX: Final = 50
"""Beside the plot, for the numbers of its scale."""
RIGHT_PX: Final = 14
KEY_SHARE: Final = 0.1
"""Of the range that is shown: how far one press of an arrow key pans."""
KEY_ZOOM: Final = 0.8
"""A press zooms as far as one notch of the wheel does."""
DRAG_PX: Final = 4
"""A shorter way is a click."""


class GestureView(pg.GraphicsView):  # type: ignore[misc]  # pyqtgraph ships no types
    """Turns what the pointer does into places on the x-axis; replaces pyqtgraph's own handling."""

    zoomed = Signal(float, float)
    """A wheel turned: factor, and x that stays where it is."""
    zoomed_y = Signal(int, float)
    """Likewise with Ctrl, for one lane: its place, factor."""
    selected = Signal(float, float)
    """A range was dragged over: x from, x to."""
    panned = Signal(float)
    """The view was dragged by so much of x."""
    reset = Signal()
    hovered = Signal(object)
    """x under the pointer, or None."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, background=None)
        self.lanes: list[Lane] = []
        self.x_range = (0.0, 1.0)
        self._pressed: QPointF | None = None
        self._drag_x: tuple[float, float] | None = None
        self._pan_from: float | None = None

    def x_at(self, pixel: float) -> float:
        """The place under a pixel."""
        low, high = self.x_range
        width: float = max(1.0, self.width() - LEFT_PX - RIGHT_PX)
        return low + (pixel - LEFT_PX) / width * (high - low)

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Zoom about the pointer; sideways: pan; with Ctrl: the scale of the lane."""
        turned = event.angleDelta()
        if event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.panned.emit(-(turned.x() or turned.y()) / 1200 * (self.x_range[1] - self.x_range[0]))
        elif abs(turned.x()) > abs(turned.y()):
            self.panned.emit(-turned.x() / 1200 * (self.x_range[1] - self.x_range[0]))
        elif event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            lane = self._lane_at(event.position().y())
            self.zoomed_y.emit(lane, 0.85 ** (turned.y() / 120))
        elif turned.y():
            self.zoomed.emit(0.8 ** (turned.y() / 120), self.x_at(event.position().x()))
        event.accept()

    def _lane_at(self, y: float) -> int:
        return next((place for place, lane in enumerate(self.lanes) if y <= lane.rect.bottom() + 6), 0)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """What the pointer can do, without one: arrows pan and zoom, with Ctrl the scale, Home resets."""
        span = self.x_range[1] - self.x_range[0]
        scales = bool(event.modifiers() & Qt.KeyboardModifier.ControlModifier)
        match event.key():
            case Qt.Key.Key_Left:
                self.panned.emit(-KEY_SHARE * span)
            case Qt.Key.Key_Right:
                self.panned.emit(KEY_SHARE * span)
            case Qt.Key.Key_Up | Qt.Key.Key_Plus | Qt.Key.Key_Equal:
                self._zoom_by_key(KEY_ZOOM, scales=scales)
            case Qt.Key.Key_Down | Qt.Key.Key_Minus:
                self._zoom_by_key(1 / KEY_ZOOM, scales=scales)
            case Qt.Key.Key_Home | Qt.Key.Key_0:
                self.reset.emit()
            case _:
                event.ignore()  # Tab, and the window's own shortcuts
                return
        event.accept()

    def _zoom_by_key(self, factor: float, *, scales: bool) -> None:
        if scales:
            for lane in range(len(self.lanes)):
                self.zoomed_y.emit(lane, factor)
        else:
            self.zoomed.emit(factor, sum(self.x_range) / 2)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Left begins a selection; middle, right, or left with Shift, a pan."""
        shift = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        if event.button() == Qt.MouseButton.LeftButton and not shift:
            self._pressed = event.position()
        else:
            self._pan_from = event.position().x()
        event.accept()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Select, pan, or point."""
        x = event.position().x()
        if self._pan_from is not None:
            width = max(1.0, self.width() - LEFT_PX - RIGHT_PX)
            self.panned.emit((self._pan_from - x) / width * (self.x_range[1] - self.x_range[0]))
            self._pan_from = x
        elif self._pressed is not None:
            if self._drag_x is not None or abs(x - self._pressed.x()) >= DRAG_PX:
                right = self.width() - RIGHT_PX
                self._drag_x = (min(max(self._pressed.x(), LEFT_PX), right), min(max(x, LEFT_PX), right))
                self.viewport().update()
        else:
            inside = LEFT_PX - 2 <= x <= self.width() - RIGHT_PX + 2
            self.hovered.emit(self.x_at(x) if inside else None)
        event.accept()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """A selection becomes the range."""
        drag, self._drag_x, self._pressed, self._pan_from = self._drag_x, None, None, None
        if drag is not None and abs(drag[1] - drag[0]) >= DRAG_PX:
            low, high = sorted(drag)
            self.selected.emit(self.x_at(low), self.x_at(high))
        self.viewport().update()
        event.accept()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Show the whole run again."""
        self.reset.emit()
        event.accept()

    def leaveEvent(self, event: QEvent) -> None:  # noqa: ARG002 - Qt's
        """Nothing is pointed at any more."""
        self.hovered.emit(None)
