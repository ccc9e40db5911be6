"""The plotting area of a chart: draws into a picture when told to, and shows it.

Data never push pixels: whatever changes in the scene is drawn at the next `draw`, called by the
grid's one timer. What moves with the pointer is laid over the picture and costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetricsF,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPixmap,
    QPolygonF,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QWidget

from gradacc_gui.charts import ticks
from gradacc_gui.charts.lane import LABEL_STRIP_PX, Lane
from gradacc_gui.charts.overlay import Overlay, draw_overlay
from gradacc_gui.series import thin
from gradacc_gui.store import Axis
from gradacc_gui.theme import Theme, application_font, current_theme, mix

LEFT_PX: Final = 50
RIGHT_PX: Final = 14
TOP_PX: Final = 6
BOTTOM_PX: Final = 22
LANE_GAP_PX: Final = 12
X_TICK_DISTANCE_PX: Final = 52
LEAST_LINE_DISTANCE_PX: Final = 4
LABEL_GAP_PX: Final = 14
MANY_LINES: Final = 12
"""With more N changes in sight, their lines are drawn faintly."""
MARK_PX: Final = 7.0
DRAG_PX: Final = 4


class MarkLine:
    """A dashed line through all lanes, with words when there is room."""

    __slots__ = ("text", "tip", "x")

    def __init__(self, x: float, text: str, tip: str) -> None:
        self.x = x
        self.text = text
        self.tip = tip


class ChartView(pg.GraphicsView):  # type: ignore[misc]  # pyqtgraph ships no types
    """Lanes above one another, on one x-axis."""

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
    resized = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, background=None)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setMinimumSize(120, 60)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.viewport().setMouseTracking(True)
        self.lanes: list[Lane] = []
        self.axis: Axis = "steps"
        self.x_range = (0.0, 1.0)
        self.changes: Sequence[MarkLine] = ()
        self.attempts: Sequence[float] = ()
        self.lost: Sequence[tuple[float, float]] = ()
        self.message = ""
        self.lane_messages: dict[int, str] = {}
        self.overlay: Overlay | None = None
        self._picture = QPixmap()
        self._axes = QPixmap()
        self._axes_key: tuple[Any, ...] = ()
        self._is_current = False
        self._pressed: QPointF | None = None
        self._drag_x: tuple[float, float] | None = None
        self._pan_from: float | None = None
        self._font = application_font(11)
        self.set_theme(current_theme())

    def set_theme(self, theme: Theme) -> None:
        """Wear these colours at the next `draw`."""
        self.theme = theme
        self._is_current = False

    def set_lanes(self, lanes: list[Lane]) -> None:
        """Show these lanes instead."""
        for lane in self.lanes:
            self.scene().removeItem(lane.box)
        self.lanes = lanes
        self.place_lanes()

    def place_lanes(self) -> None:
        """Share the height among the lanes."""
        count = len(self.lanes)
        if not count:
            return
        height = max(10.0, self.height() - TOP_PX - BOTTOM_PX - LANE_GAP_PX * (count - 1)) / count
        width = max(10.0, self.width() - LEFT_PX - RIGHT_PX)
        for place, lane in enumerate(self.lanes):
            lane.place(QRectF(LEFT_PX, TOP_PX + place * (height + LANE_GAP_PX), width, height))

    def plot_width_px(self) -> int:
        """Device pixels of the x-axis: as many points may be drawn."""
        return max(10, int((self.width() - LEFT_PX - RIGHT_PX) * self.devicePixelRatioF()))

    # ---------------------------------------------------------------------------- drawing

    def draw(self) -> None:
        """Draw the scene anew, and put it on the screen, now."""
        self._is_current = False
        self.viewport().repaint()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002 - Qt's
        """The picture, and over it what moves with the pointer."""
        size = self.viewport().size() * self.devicePixelRatioF()
        if not self._is_current or self._picture.size() != size:
            self._draw_picture()
        painter = QPainter(self.viewport())
        painter.drawPixmap(0, 0, self._picture)
        if self._drag_x is not None:
            self._draw_selection(painter)
        elif self.overlay is not None and not self.message:
            painter.setFont(self._font)
            draw_overlay(painter, self.lanes, self.overlay, self.theme)
        painter.end()

    def _draw_picture(self) -> None:
        ratio = self.devicePixelRatioF()
        size = self.viewport().size() * ratio
        if self._picture.size() != size:
            self._picture = QPixmap(size)
        self._picture.setDevicePixelRatio(ratio)
        painter = QPainter(self._picture)
        painter.drawPixmap(0, 0, self._axes_picture(size, ratio))
        if not self.message:
            self.render(painter, QRectF(self.viewport().rect()), self.viewport().rect())
            painter.setFont(self._font)
            self._draw_edges(painter)
            self._draw_changes(painter)
        self._draw_messages(painter)
        painter.end()
        self._is_current = True

    def drawBackground(self, painter: QPainter, rect: QRectF) -> None:
        """Nothing: the picture has its background before the scene is drawn."""

    def _axes_picture(self, size: QSize, ratio: float) -> QPixmap:
        """Background, grid lines and numbers: drawn anew only when a range has moved."""
        ranges = tuple((lane.rect.getRect(), lane.y_range, lane.is_empty, lane.log) for lane in self.lanes)
        key = (size, ratio, self.theme, self.axis, self.x_range, ranges, bool(self.message))
        if key != self._axes_key:
            self._axes_key, self._axes = key, QPixmap(size)
            self._axes.setDevicePixelRatio(ratio)
            painter = QPainter(self._axes)
            painter.fillRect(self.viewport().rect(), QColor(self.theme.panel))
            painter.setFont(self._font)
            self._draw_axes(painter)
            painter.end()
        return self._axes

    def _draw_axes(self, painter: QPainter) -> None:
        grid, text = QColor(mix(self.theme.panel, self.theme.line, 0.55)), QColor(self.theme.muted)
        for lane in self.lanes:
            rect = lane.rect
            painter.setPen(QPen(QColor(self.theme.line), 1))
            bottom = round(rect.bottom()) + 0.5
            painter.drawLine(QPointF(rect.left(), bottom), QPointF(rect.right(), bottom))
            if lane.is_empty or self.message:
                continue
            for tick, words in zip(*lane.y_ticks(), strict=True):
                y = round(lane.y_px(tick)) + 0.5
                if abs(y - bottom) > 2:
                    painter.setPen(QPen(grid, 1))
                    painter.drawLine(QPointF(rect.left(), y), QPointF(rect.right(), y))
                painter.setPen(text)
                box = QRectF(0, y - 8, rect.left() - 7, 16)
                painter.drawText(box, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, words)
        if self.lanes and not self.message:
            self._draw_x_ticks(painter, self.lanes[-1])

    def _draw_x_ticks(self, painter: QPainter, lane: Lane) -> None:
        quantity: ticks.Quantity = "seconds" if self.axis == "time" else "count"
        low, high = self.x_range
        step = ticks.step_for(high - low, max(2, int(lane.rect.width() / X_TICK_DISTANCE_PX)), quantity)
        painter.setPen(QColor(self.theme.muted))
        align = Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop
        for tick in ticks.ticks_between(low, high, step):
            x = lane.x_px(tick)
            if tick == 0 or x < lane.rect.left() - 1:
                continue
            words = ticks.label(tick, step, quantity)
            width = QFontMetricsF(self._font).horizontalAdvance(words) / 2
            x = min(x, self.width() - width - 1)
            painter.drawText(QRectF(x - 50, lane.rect.bottom() + 5, 100, 16), align, words)

    def _draw_edges(self, painter: QPainter) -> None:
        """Marks where a value was NaN, infinite, or not positive on a log axis; levels; lost stretches."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for lane in self.lanes:
            self._draw_lost(painter, lane)
            self._draw_levels(painter, lane)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(self.theme.bad))
            strip = LABEL_STRIP_PX if self.changes and lane is self.lanes[0] else 0
            top, bottom = lane.rect.top() + strip, lane.rect.bottom()
            for curve in lane.curves:
                trace = curve.trace
                for x in self._spaced(lane, trace.nan_x):
                    painter.drawPolygon(_diamond(x, top))
                for x in self._spaced(lane, trace.posinf_x):
                    painter.drawPolygon(_triangle(x, top, MARK_PX))
                for places in (trace.neginf_x, trace.not_positive_x):
                    for x in self._spaced(lane, places):
                        painter.drawPolygon(_triangle(x, bottom, -MARK_PX))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)

    def _spaced(self, lane: Lane, places: Any) -> list[float]:  # noqa: ANN401 - an array
        low, high = self.x_range
        pixels = [lane.x_px(x) for x in places.tolist() if low <= x <= high]
        return [pixels[index] for index in thin(pixels, MARK_PX)]

    def _draw_levels(self, painter: QPainter, lane: Lane) -> None:
        painter.setPen(QPen(QColor(self.theme.muted), 1, Qt.PenStyle.DotLine))
        ends = [x for x, _ in lane.levels[1:]] + [self.x_range[1]]
        for (begin, level), end in zip(lane.levels, ends, strict=False):
            if level is None or not lane.y_range[0] <= level <= lane.y_range[1] or lane.log:
                continue
            y = round(lane.y_px(level)) + 0.5
            left = max(lane.rect.left(), lane.x_px(begin))
            right = min(lane.rect.right(), lane.x_px(end))
            if right > left:
                painter.drawLine(QPointF(left, y), QPointF(right, y))

    def _draw_lost(self, painter: QPainter, lane: Lane) -> None:
        shade = QColor(self.theme.bad)
        shade.setAlpha(36)
        for begin, end in self.lost:
            left, right = max(lane.rect.left(), lane.x_px(begin)), min(lane.rect.right(), lane.x_px(end))
            if right > lane.rect.left() and left < lane.rect.right():
                painter.fillRect(
                    QRectF(left, lane.rect.top(), max(1.0, right - left), lane.rect.height()), shade
                )

    def _draw_changes(self, painter: QPainter) -> None:
        """A dashed line where N changed, on every lane; its label above the data, where there is room."""
        if not self.lanes:
            return
        first = self.lanes[0]
        low, high = self.x_range
        self._draw_attempts(painter, first, low, high)
        inside = [mark for mark in self.changes if low <= mark.x <= high]
        pixels = [first.x_px(mark.x) for mark in inside]
        kept = thin(pixels, LEAST_LINE_DISTANCE_PX)
        colour = QColor(self.theme.warning)
        faint = QColor(colour)
        faint.setAlpha(90 if len(kept) > MANY_LINES else 255)
        painter.setPen(QPen(faint, 1, Qt.PenStyle.DashLine))
        for lane in self.lanes:
            for index in kept:
                x = round(pixels[index]) + 0.5
                painter.drawLine(QPointF(x, lane.rect.top()), QPointF(x, lane.rect.bottom()))
        metrics = QFontMetricsF(self._font)
        taken = float("inf")
        painter.setPen(colour)
        for index in reversed(kept):
            width = metrics.horizontalAdvance(inside[index].text)
            left = pixels[index] + 5
            if left + width > min(taken, first.rect.right() + RIGHT_PX - 2):
                left = pixels[index] - 5 - width
                if left + width > taken or left < first.rect.left():
                    continue
            box = QRectF(left, first.rect.top() - 1, width + 2, LABEL_STRIP_PX - 2)
            painter.fillRect(box, QColor(self.theme.panel))
            painter.drawText(box, Qt.AlignmentFlag.AlignVCenter, inside[index].text)
            taken = min(left, pixels[index]) - LABEL_GAP_PX

    def _draw_attempts(self, painter: QPainter, first: Lane, low: float, high: float) -> None:
        painter.setPen(QPen(QColor(self.theme.muted), 1, Qt.PenStyle.DotLine))
        pixels = [first.x_px(x) for x in self.attempts if low <= x <= high]
        for index in thin(pixels, LEAST_LINE_DISTANCE_PX):
            x = round(pixels[index]) + 0.5
            for lane in self.lanes:
                painter.drawLine(QPointF(x, lane.rect.top()), QPointF(x, lane.rect.bottom()))

    def _draw_messages(self, painter: QPainter) -> None:
        painter.setPen(QColor(self.theme.muted))
        font = QFont(self._font)
        font.setPixelSize(12)
        painter.setFont(font)
        flags = Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap
        if self.message:
            painter.drawText(QRectF(self.viewport().rect()).adjusted(24, 0, -24, 0), int(flags), self.message)
            return
        for place, words in self.lane_messages.items():
            if place < len(self.lanes) and self.lanes[place].is_empty:
                painter.drawText(self.lanes[place].rect, int(flags), words)

    def _draw_selection(self, painter: QPainter) -> None:
        assert self._drag_x is not None
        left, right = sorted(self._drag_x)
        shade = QColor(self.theme.accent)
        shade.setAlpha(48)
        for lane in self.lanes:
            painter.fillRect(QRectF(left, lane.rect.top(), right - left, lane.rect.height()), shade)

    # ---------------------------------------------------------------------------- pointer

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

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        """Share the new size; what it shows is fetched anew at the next tick."""
        super().resizeEvent(event)
        if event is None:  # pyqtgraph's own constructor
            return
        self.place_lanes()
        self._is_current = False
        self.resized.emit()


def _diamond(x: float, top: float) -> QPolygonF:
    half = MARK_PX / 2
    return QPolygonF(
        [
            QPointF(x, top),
            QPointF(x + half, top + half),
            QPointF(x, top + MARK_PX),
            QPointF(x - half, top + half),
        ]
    )


def _triangle(x: float, edge: float, size: float) -> QPolygonF:
    """Points at the edge: up for a positive size (below the top edge), down for a negative one."""
    half = abs(size) / 2
    return QPolygonF([QPointF(x, edge), QPointF(x + half, edge + size), QPointF(x - half, edge + size)])
