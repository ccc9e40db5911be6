"""What moves with the pointer: a hair line, a dot on each curve, and a box with their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPen

from gradacc_gui.charts import ticks
from gradacc_gui.charts.curve import Curve, colour_of
from gradacc_gui.charts.lane import Lane
from gradacc_gui.series import value_at
from gradacc_gui.theme import Theme

NEAR_PX: Final = 24.0
"""A point farther from the pointer than this has no value there."""
ROW_PX: Final = 16.0


class Overlay(msgspec.Struct, frozen=True, kw_only=True):
    """What the pointer is at."""

    x: float
    heading: str
    with_box: bool
    """Whether the values are told here: the pointer is over this chart."""
    baseline: str = ""
    """The name of the curve from which the others' differences are told, in per cent."""


def draw_overlay(painter: QPainter, lanes: list[Lane], overlay: Overlay, theme: Theme) -> None:
    """Draw it over a chart's picture."""
    if not lanes:
        return
    x = lanes[0].x_px(overlay.x)
    if not lanes[0].rect.left() - 1 <= x <= lanes[0].rect.right() + 1:
        return
    painter.setPen(QPen(QColor(theme.muted), 1))
    points: list[CurvePoint] = []
    for lane in lanes:
        painter.setPen(QPen(QColor(theme.muted), 1))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        painter.drawLine(
            QPointF(round(x) + 0.5, lane.rect.top()), QPointF(round(x) + 0.5, lane.rect.bottom())
        )
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for curve in lane.curves:
            points += _point(painter, lane, curve, overlay.x, theme)
    if overlay.with_box and points:
        rows = [
            (point.colour, point.name, point.text) for point in with_differences(points, overlay.baseline)
        ]
        _draw_box(painter, lanes, x, overlay.heading, rows, theme)


class CurvePoint(NamedTuple):
    """A curve's value at the pointer."""

    colour: QColor
    name: str
    text: str
    value: float


def with_differences(points: Sequence[CurvePoint], baseline: str) -> list[CurvePoint]:
    """Each with its difference from the curve called `baseline`; unchanged where that has no value."""
    base = next((point.value for point in points if point.name == baseline), math.nan)
    if not math.isfinite(base) or not base:
        return list(points)
    return [
        point if point.name == baseline or not math.isfinite(point.value)
        else point._replace(text=f"{point.text}   {ticks.per_cent((point.value - base) / abs(base))}")
        for point in points
    ]  # fmt: skip


def _point(painter: QPainter, lane: Lane, curve: Curve, x: float, theme: Theme) -> list[CurvePoint]:
    """A dot on the curve, and its row in the box; nothing where it has no point near by."""
    found = nearest(lane, curve, x)
    if found is None:
        return []
    place, value, spread = found
    colour = colour_of(curve.line, theme)
    if np.isfinite(value):
        painter.setPen(QPen(QColor(theme.panel), 1.5))
        painter.setBrush(colour)
        shown = np.log10(value) if lane.log else value
        painter.drawEllipse(QPointF(lane.x_px(place), lane.y_px(shown)), 4, 4)
    text = ticks.reading(value, curve.line.quantity, curve.line.unit)
    if spread is not None:
        low, high = (ticks.reading(end, curve.line.quantity) for end in spread)
        text += f"  ({low} … {high})"
    return [CurvePoint(colour, curve.line.name, text, value)]


def nearest(lane: Lane, curve: Curve, x: float) -> tuple[float, float, tuple[float, float] | None] | None:
    """Place, value and spread of the curve's point nearest to `x`; None when none is near."""
    trace = curve.trace
    pixel = lane.x_px(x)
    for places, value in ((trace.nan_x, np.nan), (trace.posinf_x, np.inf), (trace.neginf_x, -np.inf)):
        near = value_at(places, places, x)
        if near is not None and abs(lane.x_px(near) - pixel) <= 2:
            return near, value, None
    drawn = np.isfinite(trace.y)
    places = trace.x[drawn]
    place = value_at(places, places, x)
    reach = NEAR_PX / 2 if curve.line.style == "points" else _reach(lane, places)
    if place is None or abs(lane.x_px(place) - pixel) > reach:
        return None
    at = int(np.flatnonzero(drawn)[int(np.searchsorted(places, place))])
    ends = (float(trace.lo[at]), float(trace.hi[at]))
    value = float(trace.y[at])
    if lane.log:
        value, ends = 10**value, (10 ** ends[0], 10 ** ends[1])
    return place, value, ends if ends[1] > ends[0] else None


def _reach(lane: Lane, places: np.ndarray) -> float:
    """How far a point's value is told: half the distance of its neighbours, where these are far apart."""
    if len(places) < 2:
        return NEAR_PX
    distance = (lane.x_px(float(places[-1])) - lane.x_px(float(places[0]))) / (len(places) - 1)
    return max(NEAR_PX, distance)


def _draw_box(
    painter: QPainter,
    lanes: list[Lane],
    x: float,
    heading: str,
    rows: list[tuple[QColor, str, str]],
    theme: Theme,
) -> None:
    metrics = QFontMetricsF(painter.font())
    names = max(metrics.horizontalAdvance(name) for _, name, _ in rows)
    values = max(metrics.horizontalAdvance(value) for _, _, value in rows)
    width = max(14 + names + 14 + values, metrics.horizontalAdvance(heading)) + 20
    height = ROW_PX * (len(rows) + 1) + 12
    right = lanes[0].rect.right()
    left = x + 12 if x + 12 + width <= right + 12 else x - 12 - width
    box = QRectF(round(max(2.0, left)), round(lanes[0].rect.top() + 16), round(width), round(height))
    painter.setPen(QPen(QColor(theme.line), 1))
    painter.setBrush(QColor(theme.raised))
    painter.drawRoundedRect(box.adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
    line = QRectF(box.left() + 10, box.top() + 6, box.width() - 20, ROW_PX)
    painter.setPen(QColor(theme.muted))
    painter.drawText(line, Qt.AlignmentFlag.AlignVCenter, heading)
    for colour, name, value in rows:
        line.translate(0, ROW_PX)
        painter.fillRect(QRectF(line.left(), line.center().y() - 1.5, 9, 3), colour)
        painter.setPen(QColor(theme.muted))
        painter.drawText(line.adjusted(14, 0, 0, 0), Qt.AlignmentFlag.AlignVCenter, name)
        painter.setPen(QColor(theme.text))
        painter.drawText(line, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight, value)
