"""Which part of the run all charts show: the whole, a range that follows, or a fixed one."""

from __future__ import annotations

from typing import Final

from gradacc_gui.charts import ticks
from gradacc_gui.store import Axis

LEAST_SPAN: Final[dict[Axis, float]] = {"steps": 4.0, "samples": 16.0, "tokens": 256.0, "time": 2.0}
FIRST_SPAN: Final[dict[Axis, float]] = {"steps": 20.0, "samples": 320.0, "tokens": 5_000.0, "time": 10.0}
"""What an axis shows before there is more."""


class XRange:
    """The x-range. It is moved by a person, and by data only while it follows them."""

    def __init__(self) -> None:
        self.axis: Axis = "steps"
        self.x0 = 0.0
        self.x1 = FIRST_SPAN["steps"]
        self.follows = True
        """Whether the newest data stay visible."""
        self.is_whole = True
        """Whether the run's beginning stays visible too."""
        self.end = 0.0

    def set_axis(self, axis: Axis) -> None:
        """Another x-axis: the whole run on it."""
        self.axis = axis
        self.reset()

    def reset(self) -> None:
        """The whole run, following it."""
        self.follows = self.is_whole = True
        self.x0 = self.x1 = 0.0

    def follow(self, follow: bool) -> None:
        """Keep the newest data visible, or keep the range."""
        self.follows = follow
        if follow and not self.is_whole and self.end > self.x1:
            self._move_to(self.end)

    def update(self, end: float, *, live: bool) -> bool:
        """The run stands at `end` now; True when the range moved. `live`: it will go on."""
        self.end = end
        before = (self.x0, self.x1)
        if self.is_whole and self.follows:
            self._show_whole(end, live=live)
        elif self.follows and end > self.x1:
            self._move_to(end)
        return before != (self.x0, self.x1)

    def _show_whole(self, end: float, *, live: bool) -> None:
        """From the beginning; a live run gets room ahead, so that the range moves seldom."""
        self.x0 = 0.0
        if not live and end > 0:
            self.x1 = end * 1.004
            return
        if end < FIRST_SPAN[self.axis] * 0.96:
            self.x1 = FIRST_SPAN[self.axis]
        elif not end < self.x1 <= 1.2 * end:
            step = ticks.step_for(end, 16, "seconds" if self.axis == "time" else "number")
            self.x1 = (end * 1.04 // step + 1) * step

    def _move_to(self, end: float) -> None:
        """Keep the width; leave a tenth of it ahead."""
        span = self.x1 - self.x0
        self.x1 = end + 0.1 * span
        self.x0 = self.x1 - span

    def zoom(self, factor: float, about: float) -> None:
        """Show `factor` times as much; `about` stays where it is."""
        span = max(LEAST_SPAN[self.axis], (self.x1 - self.x0) * factor)
        share = (about - self.x0) / (self.x1 - self.x0)
        self._set(about - share * span, about + (1 - share) * span)

    def select(self, x0: float, x1: float) -> None:
        """Show a fixed stretch of the run and stop following its end."""
        middle, span = (x0 + x1) / 2, max(x1 - x0, LEAST_SPAN[self.axis])
        self._set(middle - span / 2, middle + span / 2)

    def pan(self, distance: float) -> None:
        """Move on by so much of x."""
        self._set(self.x0 + distance, self.x1 + distance)

    def _set(self, x0: float, x1: float) -> None:
        """Inside the run, give or take; whoever shows all of it follows again."""
        span = x1 - x0
        whole = max(self.end * 1.05, LEAST_SPAN[self.axis])
        if span >= whole:
            self.reset()
            self.update(self.end, live=True)
            return
        x0 = min(max(x0, -0.02 * span), max(0.0, whole - span))
        self.x0, self.x1 = x0, x0 + span
        self.is_whole = False
        self.follows = x0 <= self.end <= self.x1 and self.follows
