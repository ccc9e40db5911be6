"""The plotting area of a chart: draws into a picture when told to, and shows it.

Data never push pixels: whatever changes in the scene is drawn at the next `draw`, called by the
grid's one timer. What moves with the pointer is laid over the picture and costs next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QFont,
    QFontMetricsF,
    QPainter,
    QPaintEvent,
    QPen,
    QPixmap,
    QPolygonF,
    QResizeEvent,
)
from PySide6.QtWidgets import QFrame, QWidget

from gradacc_gui.charts import ticks
from gradacc_gui.charts.gestures import LEFT_PX, RIGHT_PX, GestureView
from gradacc_gui.charts.lane import Lane
from gradacc_gui.charts.overlay import Overlay, draw_overlay
from gradacc_gui.series import thin
from gradacc_gui.store import Axis
from gradacc_gui.theme import Theme, application_font, current_theme, mix
from gradacc_gui.words import tr

TOP_PX: Final = 6
BOTTOM_PX: Final = 22
LANE_GAP_PX: Final = 12
LABEL_STRIP_PX: Final = 16
"""Above the first lane, for the labels of N changes: so none sits on a curve."""
X_TICK_DISTANCE_PX: Final = 52
CORNER_PX: Final = 11
"""Where the unit begins, below the first letter of the title."""
LEAST_LINE_DISTANCE_PX: Final = 4
LABEL_GAP_PX: Final = 14
MANY_LINES: Final = 12
"""With more N changes visible, their lines are drawn faintly."""
MARK_PX: Final = 7.0


TARGET_ALIGNMENT: Final = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


class MarkLine:
    """A dashed line through all lanes, with words when there is room."""

    __slots__ = ("text", "tip", "x")

    def __init__(self, x: float, text: str, tip: str) -> None:
        self.x = x
        self.text = text
        self.tip = tip


class ChartView(GestureView):
    """Lanes above one another, on one x-axis."""

    resized = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMinimumSize(120, 60)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.viewport().setMouseTracking(True)
        self.axis: Axis = "steps"
        self.changes: Sequence[MarkLine] = ()
        self.attempts: Sequence[float] = ()
        self.lost: Sequence[tuple[float, float]] = ()
        self.message = ""
        self.corner = ""
        """The unit, above the numbers of the first scale; empty where it stands behind the title."""
        self.lane_messages: dict[int, str] = {}
        self.overlay: Overlay | None = None
        self._picture = QPixmap()
        self._axes = QPixmap()
        self._axes_key: tuple[Any, ...] = ()
        self._is_current = False
        self._font = application_font(11)
        self.set_theme(current_theme())

    def set_theme(self, theme: Theme) -> None:
        """Draw in these colours at the next `draw`."""
        self.theme = theme
        self._is_current = False

    def set_lanes(self, lanes: list[Lane]) -> None:
        """Replace the lanes that the plot draws."""
        for lane in self.lanes:
            self.scene().removeItem(lane.box)
        self.lanes = lanes
        self.place_lanes()

    def place_lanes(self) -> None:
        """Share the height among the lanes."""
        count = len(self.lanes)
        if not count:
            return
        top = TOP_PX + (LABEL_STRIP_PX if self.changes or self.corner else 0)
        height = max(10.0, self.height() - top - BOTTOM_PX - LANE_GAP_PX * (count - 1)) / count
        width = max(10.0, self.width() - LEFT_PX - RIGHT_PX)
        for place, lane in enumerate(self.lanes):
            lane.place(QRectF(LEFT_PX, top + place * (height + LANE_GAP_PX), width, height))

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
        if self.hasFocus():
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(QColor(self.theme.accent), 1.5))
            painter.drawRoundedRect(QRectF(self.viewport().rect()).adjusted(1, 1, -1, -1), 6, 6)
        painter.end()

    def blank(self) -> None:
        """Forget the picture and all marks in it; the message is painted at Qt's next turn."""
        self.changes, self.attempts, self.lost = (), (), ()
        self.lane_messages, self.overlay = {}, None
        self._is_current = False
        self.viewport().update()

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
        key = (size, ratio, self.theme, self.axis, self.x_range, ranges, bool(self.message), self.corner)
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
        if self.corner and not self.message:
            painter.setPen(text)
            painter.drawText(QPointF(CORNER_PX, TOP_PX + 8), self.corner)
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
            self._draw_target(painter, lane)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(self.theme.bad))
            top, bottom = lane.rect.top(), lane.rect.bottom()
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

    def _draw_target(self, painter: QPainter, lane: Lane) -> None:
        """A line across the lane with its value at the right end; above the line, or below it at the top."""
        if lane.target is None or lane.is_empty or (lane.log and lane.target <= 0):
            return
        place = math.log10(lane.target) if lane.log else lane.target
        if not lane.y_range[0] <= place <= lane.y_range[1]:
            return
        y = round(lane.y_px(place)) + 0.5
        colour = QColor(self.theme.ok)
        painter.setPen(QPen(colour, 1, Qt.PenStyle.DashDotLine))
        painter.drawLine(QPointF(lane.rect.left(), y), QPointF(lane.rect.right(), y))
        words = tr("target {value}").format(value=ticks.reading(lane.target, lane.spec.quantity))
        painter.setPen(colour)
        painter.setFont(self._font)
        top = y - 15 if y - 15 >= lane.rect.top() else y + 1
        painter.drawText(QRectF(lane.rect.left(), top, lane.rect.width() - 4, 14), TARGET_ALIGNMENT, words)

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
                top = lane.rect.top() - (LABEL_STRIP_PX if lane is first else 0)
                painter.drawLine(QPointF(x, top), QPointF(x, lane.rect.bottom()))
        metrics = QFontMetricsF(self._font)
        taken = float("inf")
        painter.setPen(colour)
        for place, index in reversed(list(enumerate(kept))):
            width = metrics.horizontalAdvance(inside[index].text)
            left = pixels[index] + 5
            if left + width > min(taken, first.rect.right() + RIGHT_PX - 2):
                left = pixels[index] - 5 - width
                line = pixels[kept[place - 1]] if place else first.rect.left() - LABEL_GAP_PX
                if left + width > taken or left < line + LABEL_GAP_PX:  # the older line would cross it
                    continue
            box = QRectF(left, first.rect.top() - LABEL_STRIP_PX, width + 2, LABEL_STRIP_PX - 2)
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

    def focusInEvent(self, event: QFocusEvent) -> None:
        """The ring is laid over the picture, which stays as it is."""
        super().focusInEvent(event)
        self.viewport().update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        """Take the ring away."""
        super().focusOutEvent(event)
        self.viewport().update()

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
