"""A plot with a scale of its own: its curves, its range, and where things lie in pixels."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QRectF

from gradacc_gui.charts import ticks
from gradacc_gui.charts.curve import DOTS_A_PIXEL, Curve
from gradacc_gui.charts.specs import CurveSpec, LaneSpec
from gradacc_gui.series import Trace, break_at, decimate, lead_in_rows, smooth
from gradacc_gui.store import RunStore, View
from gradacc_gui.store.clock import AXIS_COLUMN
from gradacc_gui.theme import Theme

TICK_DISTANCE_PX: Final = 20


class ViewSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a chart is looked at."""

    view: View
    smoothing: float = 0.0
    log: bool = False


class Lane:
    """One view box of a chart."""

    def __init__(self, spec: LaneSpec, scene: pg.GraphicsScene) -> None:
        self.spec = spec
        self.box = pg.ViewBox(enableMouse=False, enableMenu=False, defaultPadding=0)
        self.box.setBorder(None)
        self.box.disableAutoRange()
        scene.addItem(self.box)
        self.curves = [Curve(line, self.box) for line in spec.lines]
        self.rect = QRectF()
        self.x_range = (0.0, 1.0)
        self.y_range = (0.0, 1.0)
        """Shown values; exponents of ten on a log axis."""
        self.log = False
        self.is_empty = True
        self.levels: list[tuple[float, float | None]] = []
        """A setting's level from x on; None is not set."""
        self.target: float | None = None
        """What the run shall reach, in the lane's unit."""
        self.zoomed_y: tuple[float, float] | None = None
        """A range that a person chose."""

    def set_look(self, theme: Theme, ratio: float) -> None:
        """Apply the theme's colours."""
        for curve in self.curves:
            curve.set_look(theme, ratio)

    def place(self, rect: QRectF) -> None:
        """Take this rectangle of the chart, in pixels."""
        if rect != self.rect:
            self.rect = rect
            self.box.setGeometry(rect)

    def refresh(self, store: RunStore, settings: ViewSettings) -> None:
        """Fetch, decimate and set what `settings` shows; fit the scale when data left it."""
        self.show([(curve, *traces_of(store, curve.line, settings)) for curve in self.curves], settings)

    def show(self, shown: list[tuple[Curve, Trace, Trace | None]], settings: ViewSettings) -> None:
        """Set each curve's trace, and what lies behind it; fit the scale when data left it."""
        view = settings.view
        if settings.log != self.log:
            self.log, self.zoomed_y = settings.log, None
            self.y_range = (0.0, 0.0)
        self.x_range = (view.x0, view.x1)
        self._fit(shown)
        self.box.setRange(xRange=self.x_range, yRange=self.y_range, padding=0, disableAutoRange=False)
        bounds = QRectF(view.x0, self.y_range[0], view.x1 - view.x0, self.y_range[1] - self.y_range[0])
        for curve, trace, behind in shown:
            curve.show(trace, behind, bounds)

    def _fit(self, shown: list[tuple[Curve, Trace, Trace | None]]) -> None:
        extents = [extent for _, trace, behind in shown for extent in _extents(trace, behind)]
        self.is_empty = not extents and not any(_has_marks(trace) for _, trace, _ in shown)
        if self.zoomed_y is not None:
            self.y_range = self.zoomed_y
            return
        if not extents:
            self.y_range = (0.0, 1.0)
            return
        low, high = min(e[0] for e in extents), max(e[1] for e in extents)
        levels = [level for _, level in self.levels if level is not None]
        levels += [] if self.target is None else [self.target]
        if levels and not self.log and max(levels) <= high * 3:
            low, high = min(low, *levels), max(high, *levels)
        if self.spec.greatest is not None and high <= self.spec.greatest:
            high = self.spec.greatest
        if self._still_fits(low, high):
            return
        if self.log:
            pad = 0.03 * (high - low) if high - low >= 0.1 else 0.5
            self.y_range = (low - pad, high + pad)
        elif self.spec.greatest == high:
            self.y_range = (0.0, high * 1.04)
        else:
            most = self.most_ticks()
            self.y_range = ticks.nice_range(low, high, from_zero=self.spec.from_zero, most=most)

    def _still_fits(self, low: float, high: float) -> bool:
        bottom, top = self.y_range
        if not (bottom <= low and high <= top and top > bottom):
            return False
        low = bottom if bottom == 0.0 else low
        return (high - low) > 0.55 * (top - bottom)

    def most_ticks(self) -> int:
        """How many ticks have room."""
        return max(2, int(self.rect.height() / TICK_DISTANCE_PX))

    def y_ticks(self) -> tuple[list[float], list[str]]:
        """Places and texts of the value axis."""
        low, high = self.y_range
        most = self.most_ticks()
        if self.log:
            places = ticks.log_ticks(low, high, most)
            return places, [ticks.label(10**place, 10**place) for place in places]
        divisor = ticks.byte_unit(high)[1] if self.spec.quantity == "bytes" else 1.0
        low, high = low / divisor, high / divisor
        step = ticks.step_for(high - low, most, self.spec.quantity)
        values = ticks.ticks_between(low, high, step)
        if len(values) < 2:  # one number tells no scale
            step = ticks.step_for(high - low, most + 2, self.spec.quantity)
            values = ticks.ticks_between(low, high, step)
        return [value * divisor for value in values], [ticks.label(value, step) for value in values]

    def x_px(self, x: float) -> float:
        """The x pixel at which a position of the run is drawn."""
        low, high = self.x_range
        return self.rect.left() + (x - low) / (high - low) * self.rect.width()

    def y_px(self, y: float) -> float:
        """Pixels of a value (an exponent on a log axis)."""
        low, high = self.y_range
        return self.rect.bottom() - (y - low) / (high - low) * self.rect.height()


def traces_of(store: RunStore, line: CurveSpec, settings: ViewSettings) -> tuple[Trace, Trace | None]:
    """What a line shows of a run, broken where work was lost, and what lies behind it when it is smoothed."""
    axis = settings.view.axis
    lost = [mark.begin.on(axis) / 2 + mark.end.on(axis) / 2 for mark in store.markers.lost]
    trace, behind = _traces(store, line, settings)
    return (break_at(trace, lost) if lost else trace), behind


def _traces(store: RunStore, line: CurveSpec, settings: ViewSettings) -> tuple[Trace, Trace | None]:
    view = settings.view
    items = store.items(line.kind, line.field, view)
    width = view.width
    if line.style == "dots":
        width = max(width, min(len(items.x), DOTS_A_PIXEL * width))
    trace = decimate(items, view.x0, view.x1, width, log=settings.log)
    if not line.smoothed or settings.smoothing <= 0:
        return trace, None
    begin = store.track(line.kind).x_before(AXIS_COLUMN[view.axis], view.x0, lead_in_rows(settings.smoothing))
    longer = msgspec.structs.replace(view, x0=min(begin, view.x0))
    smoothed = smooth(store.items(line.kind, line.field, longer), settings.smoothing)
    first = max(0, int(np.searchsorted(smoothed.x, view.x0)) - 1)
    bold = decimate(smoothed.cut(first, len(smoothed.x)), view.x0, view.x1, width, log=settings.log)
    return bold._replace(
        nan_x=trace.nan_x, posinf_x=trace.posinf_x, neginf_x=trace.neginf_x,
        not_positive_x=trace.not_positive_x,
    ), trace  # fmt: skip


def _extents(trace: Trace, behind: Trace | None) -> list[tuple[float, float]]:
    found = [trace.extent(), behind.extent() if behind is not None else None]
    return [extent for extent in found if extent is not None]


def _has_marks(trace: Trace) -> bool:
    return any(len(part) for part in (trace.nan_x, trace.posinf_x, trace.neginf_x, trace.not_positive_x))
