"""Where and when a run was: positions for rows that carry none, and active time without downtime."""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np

from gradacc_gui.series import Floats

Axis: TypeAlias = Literal["steps", "samples", "tokens", "time"]
AXES: Final[tuple[Axis, ...]] = ("steps", "samples", "tokens", "time")
AXIS_COLUMN: Final[dict[Axis, str]] = {
    "steps": "x_steps",
    "samples": "samples_seen",
    "tokens": "tokens_seen",
    "time": "x_time",
}
"""The column that places a row on an x-axis."""


class RunPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A place on all four x-axes."""

    steps: float = 0.0
    """Optimizer steps, with the share of the open window's micro-batches that are done."""
    samples: float = 0.0
    tokens: float = 0.0
    time: float = 0.0
    """Active seconds: attempts joined, downtime and pauses left out."""

    def on(self, axis: Axis) -> float:
        """The place on one axis."""
        return float(getattr(self, axis))


class View(msgspec.Struct, frozen=True):
    """What somebody looks at: a range of an x-axis, in so many pixels."""

    axis: Axis
    x0: float
    x1: float
    width: int


class Stretch(msgspec.Struct, frozen=True):
    """From row `seq` on: active time is the wall clock minus `offset`, and no more than `cap`."""

    seq: int
    offset: float
    cap: float


class Clock:
    """Turns the wall clock of events into active time, by the facts that start and stop it.

    Active time is a place on the time axis: after a roll-back it goes on where the checkpoint stood. What
    was spent is never taken back.
    """

    def __init__(self) -> None:
        self.stretches = [Stretch(0, 0.0, 0.0)]
        self._spent_s = 0.0
        """Before `_since`."""
        self._since: float | None = None
        """Since when time counts, by the wall clock; None while it stands."""

    @property
    def runs(self) -> bool:
        """Whether active time is counted: the run is neither paused nor over."""
        return math.isinf(self.stretches[-1].cap)

    def start(self, seq: int, at: float, active_s: float) -> None:
        """Time counts from `at`, at which it was `active_s`."""
        self._spent_s, self._since = self.spent(at), at
        self.stretches.append(Stretch(seq, at - active_s, math.inf))

    def sleep(self, seq: int, at: float, duration_s: float, least_s: float) -> None:
        """The machine slept until `at`: time that is not active. Never goes back behind `least_s`."""
        if not self.runs:
            return
        spent = max(self.spent(at) - duration_s, self._spent_s)
        self.start(seq, at, max(self.now(at) - duration_s, least_s))
        self._spent_s = spent

    def stop(self, seq: int, at: float, active_s: float) -> None:
        """Time stands at `active_s`, since `at`."""
        self._spent_s, self._since = self.spent(at), None
        self.stretches.append(Stretch(seq, self.stretches[-1].offset, active_s))

    def spent(self, at: float) -> float:
        """Active seconds until the wall clock's `at`, with those whose steps were superseded."""
        return self._spent_s + (0.0 if self._since is None else max(0.0, at - self._since))

    def wall(self, active_s: float) -> float:
        """The wall clock's time at so many active seconds of the newest stretch."""
        return self.stretches[-1].offset + active_s

    def now(self, at: float) -> float:
        """Active seconds at the wall clock's `at`."""
        stretch = self.stretches[-1]
        return max(0.0, min(at - stretch.offset, stretch.cap))

    def active(self, at: Floats) -> Floats:
        """The same for rows of the newest stretch."""
        stretch = self.stretches[-1]
        active: Floats = np.clip(at - stretch.offset, 0.0, stretch.cap)
        return active

    def active_by_seq(self, seq: Floats, at: Floats) -> Floats:
        """The same for any rows: each by the stretch it lies in."""
        starts = np.array([stretch.seq for stretch in self.stretches])
        place = np.searchsorted(starts, seq, side="right") - 1
        offsets = np.array([stretch.offset for stretch in self.stretches])[place]
        caps = np.array([stretch.cap for stretch in self.stretches])[place]
        active: Floats = np.clip(at - offsets, 0.0, caps)
        return active
