"""From rows to what a chart of so many pixels can show, hiding nothing.

A line gets one point a pixel column: the mean, with the least and the greatest value beside it, so a
spike of a single row among millions still draws. NaN, infinities and (on a log axis) values ≤ 0 cannot
be drawn at their place; they are kept apart to be marked at the chart's edge, never replaced. Knows
neither Qt nor pyqtgraph. Letters: n items in, m pixel columns out, m ≤ n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]


class Groups(NamedTuple):
    """Rows, or groups of neighbouring rows, in ascending x; each array has shape (n,)."""

    x: Floats
    lo: Floats
    """Least finite value of the group; NaN when there is none."""
    hi: Floats
    total: Floats
    """Sum of the finite values."""
    finite: Floats
    """How many values are finite. 0 with no flag set is *unknown*: a gap without a mark."""
    nan: Flags
    posinf: Flags
    neginf: Flags

    def cut(self, begin: int, end: int) -> Groups:
        """The groups from `begin` up to `end`, without copying."""
        return Groups._make(part[begin:end] for part in self)


_NOTHING: Final[Floats] = np.empty(0)
_NO_FLAGS: Final[Flags] = np.empty(0, dtype=np.bool_)
NO_ITEMS: Final = Groups(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NO_FLAGS, _NO_FLAGS, _NO_FLAGS)


def concatenate(parts: Sequence[Groups]) -> Groups:
    """Parts, one after the other."""
    filled = [part for part in parts if len(part.x)]
    if not filled:
        return NO_ITEMS
    if len(filled) == 1:
        return filled[0]
    return Groups._make(np.concatenate(arrays) for arrays in zip(*filled, strict=True))


class Trace(NamedTuple):
    """What is drawn: shape (m,) each, NaN in `y` breaks the line."""

    x: Floats
    y: Floats
    lo: Floats
    hi: Floats
    nan_x: Floats
    """Where NaN was seen, for marks at the top edge; likewise the others."""
    posinf_x: Floats
    neginf_x: Floats
    not_positive_x: Floats
    """On a log axis: where values ≤ 0 were."""

    def extent(self) -> tuple[float, float] | None:
        """Least and greatest drawn value; None when nothing is finite."""
        finite = np.isfinite(self.lo)
        if not finite.any():
            return None
        return float(self.lo[finite].min()), float(self.hi[finite].max())

    def spread(self) -> Flags:
        """Columns in which several values lie apart."""
        return self.hi > self.lo

    def isolated(self) -> Flags:
        """Points with no drawn neighbour: a line does not show them, a dot must."""
        drawn = np.isfinite(self.y)
        alone = drawn.copy()
        alone[1:] &= ~drawn[:-1]
        alone[:-1] &= ~drawn[1:]
        return alone


NO_TRACE: Final = Trace(*([_NOTHING] * 8))


def decimate(items: Groups, x0: float, x1: float, width: int, *, log: bool = False) -> Trace:
    """At most one point for each of `width` pixel columns between x0 and x1, one more on either side."""
    n = len(items.x)
    if n == 0 or width < 1 or not x1 > x0:
        return NO_TRACE
    if n > width:
        columns = np.floor((items.x - x0) * (width / (x1 - x0)))
        np.clip(columns, -1, width, out=columns)
        starts = np.flatnonzero(np.concatenate(([True], columns[1:] != columns[:-1])))
        if len(starts) < n:
            items = _grouped(items, starts)
    not_positive = np.zeros(len(items.x), dtype=np.bool_)
    with np.errstate(divide="ignore", invalid="ignore"):
        y, lo, hi = items.total / items.finite, items.lo, items.hi  # 0 / 0 is the gap that is wanted
        if log:
            not_positive = lo <= 0
            y, hi = np.log10(np.where(y > 0, y, np.nan)), np.log10(np.where(hi > 0, hi, np.nan))
            lo = np.where(not_positive, np.fmin(y, hi), np.log10(np.where(lo > 0, lo, np.nan)))
    x = items.x
    return Trace(x, y, lo, hi, x[items.nan], x[items.posinf], x[items.neginf], x[not_positive])


def _grouped(items: Groups, starts: npt.NDArray[np.intp]) -> Groups:
    """One item for each run of items that begins at `starts`."""
    sizes = np.diff(np.append(starts, len(items.x)))
    return Groups(
        np.add.reduceat(items.x, starts) / sizes,
        np.fmin.reduceat(items.lo, starts),
        np.fmax.reduceat(items.hi, starts),
        np.add.reduceat(items.total, starts),
        np.add.reduceat(items.finite, starts),
        np.logical_or.reduceat(items.nan, starts),
        np.logical_or.reduceat(items.posinf, starts),
        np.logical_or.reduceat(items.neginf, starts),
    )


def break_at(trace: Trace, places: Sequence[float]) -> Trace:
    """`trace` with its line broken at these x: measurements between the neighbours were lost."""
    inside = [place for place in places if len(trace.x) and trace.x[0] < place <= trace.x[-1]]
    if not inside:
        return trace
    at = np.searchsorted(trace.x, inside)
    gap = np.full(len(inside), np.nan)
    return trace._replace(
        x=np.insert(trace.x, at, inside),
        y=np.insert(trace.y, at, gap),
        lo=np.insert(trace.lo, at, gap),
        hi=np.insert(trace.hi, at, gap),
    )


def smooth(items: Groups, factor: float) -> Groups:
    """Exponential moving average over rows, with the start's bias removed (Kingma & Ba 2015, section 3).

    s_i = w·s_{i-1} + (1 - w)·y_i and s_i / (1 - w^i), w = `factor` in [0, 1): a constant stays itself,
    the first value is itself. A group of c rows counts as c equal ones. Groups without a finite value
    change nothing and stay gaps.
    """
    known = items.finite > 0
    if factor <= 0 or not known.any():
        return items
    count = items.finite[known]
    keep = np.power(factor, count)
    value = items.total[known] / count
    smoothed = _scan(keep, (1 - keep) * value) / -np.expm1(np.cumsum(count) * np.log(factor))
    full = np.full(len(items.x), np.nan)
    full[known] = smoothed
    return items._replace(lo=full, hi=full, total=np.where(known, full, 0.0), finite=known.astype(np.float64))


def _scan(keep: Floats, add: Floats) -> Floats:
    """s_i = keep_i · s_{i-1} + add_i with s_{-1} = 0, by doubling strides (Hillis & Steele 1986)."""
    keep, total = keep.copy(), add.copy()
    stride = 1
    while stride < len(total) and keep[stride:].max() > 1e-17:
        total[stride:] += keep[stride:] * total[:-stride].copy()
        keep[stride:] *= keep[:-stride].copy()
        stride *= 2
    return total


def lead_in_rows(factor: float) -> int:
    """Rows before the first visible one that still move a smoothed value by over 0.1 %."""
    return 0 if factor <= 0 else int(np.ceil(np.log(1e-3) / np.log(min(factor, 0.9999))))


def value_at(items_x: Floats, values: Floats, x: float) -> float | None:
    """The value whose x is nearest; None when there is none."""
    if not len(items_x):
        return None
    right = int(np.searchsorted(items_x, x))
    candidates = [place for place in (right - 1, right) if 0 <= place < len(items_x)]
    return float(values[min(candidates, key=lambda place: abs(items_x[place] - x))])


def thin(places: Sequence[float], least_distance: float) -> list[int]:
    """Indexes of `places` (ascending), the last one first of all, that keep a distance from one another.

    For labels: the newest N change is always worded, older ones where there is room.
    """
    kept: list[int] = []
    for index in range(len(places) - 1, -1, -1):
        if not kept or places[kept[-1]] - places[index] >= least_distance:
            kept.append(index)
    return kept[::-1]
