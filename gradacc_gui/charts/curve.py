"""One line of a chart on the screen: what was decimated, as pyqtgraph items."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyqtgraph as pg
from pyqtgraph.Qt.internals import PrimitiveArray
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen, QPixmap

from gradacc_gui.charts.specs import MUTED, CurveSpec
from gradacc_gui.series import NO_TRACE, Floats, Groups, Trace
from gradacc_gui.theme import Theme

LINE_WIDTH: Final = 2.0
DOT_OPACITY: Final = 100
SPREAD_OPACITY: Final = 72
"""Of 255: a line's spread lies behind it, and still shows a single spike."""
DOTS_A_PIXEL: Final = 2
"""Micro-batches a pixel column up to which each is a dot; beyond it, their range is drawn."""
DOT_SIZE: Final = 3.0
DASHES: Final = 60
"""Dashes on a dashed line across the whole plot."""
DASH_SHARE: Final = 0.68


def colour_of(line: CurveSpec, theme: Theme) -> QColor:
    """The theme's colour for a curve's place in the fixed order of series."""
    return QColor(theme.muted if line.colour == MUTED else theme.series[line.colour])


class Dots(pg.GraphicsObject):  # type: ignore[misc]  # pyqtgraph ships no types
    """Points of one size and colour, drawn from one picture of a dot."""

    def __init__(self) -> None:
        super().__init__()
        self._points: Floats = np.empty((0, 2))
        self._picture = QPixmap()
        self._fragments = PrimitiveArray(QPainter.PixmapFragment, 10)
        self._bounds = QRectF()

    def set_look(self, colour: QColor, size: float, ratio: float, ring: QColor | None = None) -> None:
        """Draw dots like this from now on; `ring` is a line around them."""
        pixels = int(np.ceil((size + 2) * ratio))
        picture = QPixmap(pixels, pixels)
        picture.fill(Qt.GlobalColor.transparent)
        painter = QPainter(picture)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(ring, 1.5 * ratio) if ring is not None else Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        painter.drawEllipse(QPointF(pixels / 2, pixels / 2), size * ratio / 2, size * ratio / 2)
        painter.end()
        self._picture = picture
        self.update()

    def set_points(self, x: Floats, y: Floats, bounds: QRectF) -> None:
        """Draw these, in data coordinates, none of which lies outside `bounds`."""
        if len(x) == 0 and len(self._points) == 0:
            return
        if bounds != self._bounds:
            self.prepareGeometryChange()
            self._bounds = bounds
        self._points = np.column_stack((x, y))
        self.update()

    def boundingRect(self) -> QRectF:
        """What the view shows."""
        return self._bounds

    def paint(self, painter: QPainter, *_: Any) -> None:  # noqa: ANN401 - Qt's
        """One blit a dot, on whole pixels."""
        if not len(self._points):
            return
        transform = painter.transform()
        painter.resetTransform()
        ratio = painter.device().devicePixelRatio()
        self._fragments.resize(len(self._points))
        rows = self._fragments.ndarray()  # x, y, source rectangle, scales, rotation, opacity
        rows[:, 0] = self._points[:, 0] * transform.m11() + transform.dx()
        rows[:, 1] = self._points[:, 1] * transform.m22() + transform.dy()
        size = self._picture.width()
        rows[:, 2:] = (0.0, 0.0, size, size, 1 / ratio, 1 / ratio, 0.0, 1.0)
        # pyqtgraph hands over a pointer and a count, which the stubs do not know.
        painter.drawPixmapFragments(*self._fragments.drawargs(), self._picture)  # type: ignore[call-arg]
        painter.setTransform(transform)


class Stroke(pg.PlotCurveItem):  # type: ignore[misc]  # pyqtgraph ships no types
    """A curve whose bounds are what the view shows: pyqtgraph's own cost half a millisecond a curve."""

    def __init__(self, *, antialias: bool) -> None:
        self._bounds = QRectF()
        super().__init__(antialias=antialias)
        self.setSegmentedLineMode("on")  # a path of many points is stroked ten times slower

    def set_line(self, x: Floats, y: Floats, bounds: QRectF, connect: str = "finite") -> None:
        """Draw these points, in data coordinates."""
        if not len(x) and (self.xData is None or not len(self.xData)):
            return
        if bounds != self._bounds:
            self.prepareGeometryChange()
            self._bounds = bounds
        self.setData(x, y, connect=connect)

    def boundingRect(self) -> QRectF:
        """What the view shows."""
        return self._bounds


class Curve:
    """A line, the rows that it summarizes, and the places of values that cannot be drawn."""

    def __init__(self, line: CurveSpec, view_box: pg.ViewBox) -> None:
        self.line = line
        self.trace: Trace = NO_TRACE
        """What is drawn now; in log10 on a log axis."""
        self.raw: Groups | None = None
        self._range = Stroke(antialias=False)
        self._main = Stroke(antialias=True)
        self._dots = Dots()
        for item in (self._range, self._main, self._dots):
            view_box.addItem(item, ignoreBounds=True)

    def set_look(self, theme: Theme, ratio: float) -> None:
        """Apply the theme's colours."""
        colour = colour_of(self.line, theme)
        # A cosmetic pen counts the pixels of the picture, not of the desktop.
        self._range.setPen(_pen(_faint(colour, SPREAD_OPACITY), 1.0))
        self._main.setPen(_pen(colour, (1.2 if self.line.style == "points" else LINE_WIDTH) * ratio))
        match self.line.style:
            case "dots":
                self._dots.set_look(_faint(colour, DOT_OPACITY), DOT_SIZE, ratio)
            case "points":
                self._dots.set_look(colour, 7.0, ratio, QColor(theme.panel))
            case _:
                self._dots.set_look(colour, 4.0, ratio)

    def show(self, trace: Trace, behind: Trace | None, bounds: QRectF) -> None:
        """Draw `trace`, and the spread of `behind` (what was smoothed) or of itself."""
        self.trace = trace
        match self.line.style:
            case "dots":
                self._show_dots(trace, bounds)
            case "steps":
                self._main.set_line(*_as_steps(trace), bounds)
            case "points":
                self._main.set_line(trace.x, trace.y, bounds)
                self._dots.set_points(*_finite(trace.x, trace.y), bounds)
            case "line":
                self._main.set_line(*self._dashed(trace, bounds), bounds)
                alone = trace.isolated()
                self._dots.set_points(trace.x[alone], trace.y[alone], bounds)
                self._show_range(behind if behind is not None else trace, bounds)

    def _show_dots(self, trace: Trace, bounds: QRectF) -> None:
        """Single rows as dots; columns of many as their range."""
        self._show_range(trace, bounds)
        single = ~trace.spread() & np.isfinite(trace.y)
        self._dots.set_points(trace.x[single], trace.y[single], bounds)

    def _dashed(self, trace: Trace, bounds: QRectF) -> tuple[Floats, Floats]:
        """A dashed line as pieces: a pen's dash pattern would begin anew at each point."""
        if not self.line.dash or len(trace.x) < 2:
            return trace.x, trace.y
        grid = np.linspace(bounds.left(), bounds.right(), 6 * DASHES + 1)
        x = np.union1d(trace.x, grid[(grid >= trace.x[0]) & (grid <= trace.x[-1])])
        y = np.interp(x, trace.x, trace.y)  # NaN beside NaN: a gap stays one
        share = (x - bounds.left()) / bounds.width() * DASHES
        y[share - np.floor(share) > DASH_SHARE] = np.nan
        return x, y

    def _show_range(self, trace: Trace, bounds: QRectF) -> None:
        apart = trace.spread()
        x = np.repeat(trace.x[apart], 2)
        y = np.empty(len(x))
        y[0::2], y[1::2] = trace.lo[apart], trace.hi[apart]
        self._range.set_line(x, y, bounds, connect="pairs")


def _faint(colour: QColor, opacity: int) -> QColor:
    result = QColor(colour)
    result.setAlpha(opacity)
    return result


def _pen(colour: QColor, width: float) -> QPen:
    pen = QPen(colour, width)
    pen.setCosmetic(True)
    pen.setCapStyle(Qt.PenCapStyle.FlatCap)
    return pen


def _finite(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    known = np.isfinite(y)
    return x[known], y[known]


def _as_steps(trace: Trace) -> tuple[Floats, Floats]:
    """Each value from the place before it to its own: N holds for the window that ends there."""
    if len(trace.x) < 1:
        return trace.x, trace.y
    begins = np.concatenate(([min(trace.x[0], max(0.0, trace.x[0] - 1))], trace.x[:-1]))
    return np.column_stack((begins, trace.x)).ravel(), np.repeat(trace.y, 2)
