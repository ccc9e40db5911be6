"""A chart of a run as SVG: lines with their range, marks where N changed, a target."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

import msgspec
import numpy as np

from gradacc_gui.charts.ticks import label, step_for, ticks_between
from gradacc_gui.series import Groups

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 22, 26
COLOURS: Final = ("#1f6fd1", "#c2570c", "#1a7f4b", "#a3337f")
"""Of the lines, in their order; each has 4.5 to 1 against white."""


class SvgLine(msgspec.Struct, frozen=True):
    """One line: values over optimizer steps."""

    title: str
    data: Groups


class SvgChart(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn in one chart."""

    title: str
    unit: str
    lines: tuple[SvgLine, ...]
    scale: float = 1.0
    """Values are multiplied by it, to be in the unit."""
    target: float | None = None
    """In the unit."""
    from_zero: bool = False


def has_values(chart: SvgChart) -> bool:
    """Whether anything finite can be drawn."""
    return any(bool((line.data.finite > 0).any()) for line in chart.lines)


def svg_of(chart: SvgChart, changes: Sequence[tuple[float, str]], last_step: float) -> str:
    """The chart as an <svg> element. `changes`: steps where N changed, with their words."""
    low, high = _range(chart)
    x_of = _scale(0.0, max(last_step, 1.0), LEFT, WIDTH - RIGHT)
    y_of = _scale(low, high, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_label(chart))}">',
        *_grid(low, high, last_step, x_of, y_of),
    ]
    for step, words in changes:
        x = _at(x_of, step)
        parts.append(f'<line class="mark" x1="{x}" y1="{TOP}" x2="{x}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="small" x="{x + 3:.1f}" y="{TOP - 4}">{escape(words)}</text>')
    if chart.target is not None and low <= chart.target <= high:
        y = _at(y_of, chart.target)
        parts.append(f'<line class="target" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
    for number, line in enumerate(chart.lines):
        parts += _drawn(line.data, chart.scale, COLOURS[number % len(COLOURS)], x_of, y_of)
    return "\n".join([*parts, "</svg>"])


def _label(chart: SvgChart) -> str:
    names = ", ".join(line.title for line in chart.lines)
    return f"{chart.title} ({names}) over optimizer steps"


def _range(chart: SvgChart) -> tuple[float, float]:
    least, most = [], []
    for line in chart.lines:
        there = line.data.finite > 0
        if there.any():
            least.append(float(line.data.lo[there].min()) * chart.scale)
            most.append(float(line.data.hi[there].max()) * chart.scale)
    targets = [] if chart.target is None else [chart.target]
    low, high = min([*least, *targets]), max([*most, *targets])
    if chart.from_zero:
        low = min(0.0, low)
    if high <= low:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    room = (high - low) * 0.04
    return (low if chart.from_zero and low == 0.0 else low - room), high + room


def _scale(low: float, high: float, begin: float, end: float) -> tuple[float, float]:
    """Offset and factor of a linear map."""
    factor = (end - begin) / (high - low)
    return begin - low * factor, factor


def _at(scale: tuple[float, float], value: float) -> float:
    return round(scale[0] + scale[1] * value, 1)


def _grid(
    low: float, high: float, last_step: float, x_of: tuple[float, float], y_of: tuple[float, float]
) -> list[str]:
    parts = []
    step = step_for(high - low, 5)
    for value in ticks_between(low, high, step):
        y = _at(y_of, value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(label(value, step))}</text>'
        )
    for value in ticks_between(0.0, max(last_step, 1.0), step_for(max(last_step, 1.0), 6, "count")):
        x = _at(x_of, value)
        parts.append(f'<text x="{x}" y="{HEIGHT - 8}" text-anchor="middle">{value:,.0f}</text>')
    return parts


def _drawn(
    data: Groups, scale: float, colour: str, x_of: tuple[float, float], y_of: tuple[float, float]
) -> list[str]:
    """The range of joined rows, and their means over it; a gap where nothing finite was measured."""
    parts: list[str] = []
    there = data.finite > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        means = data.total / data.finite * scale
    runs: list[list[int]] = []
    for place in np.flatnonzero(there):
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(int(place))
        else:
            runs.append([int(place)])
    for places in runs:
        xs = [_at(x_of, float(data.x[place])) for place in places]
        if len(places) == 1:
            y = _at(y_of, float(means[places[0]]))
            parts.append(f'<circle cx="{xs[0]}" cy="{y}" r="2.5" fill="{colour}"/>')
            continue
        if any(data.hi[place] > data.lo[place] for place in places):
            upper = [
                (x, _at(y_of, float(data.hi[place]) * scale)) for x, place in zip(xs, places, strict=True)
            ]
            lower = [
                (x, _at(y_of, float(data.lo[place]) * scale)) for x, place in zip(xs, places, strict=True)
            ]
            points = " ".join(f"{x},{y}" for x, y in [*upper, *reversed(lower)])
            parts.append(f'<polygon points="{points}" fill="{colour}" opacity="0.18"/>')
        points = " ".join(
            f"{x},{_at(y_of, float(means[place]))}" for x, place in zip(xs, places, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return parts
