"""Slow drifts: a level that has risen, seen through the noise by medians of blocks.

Values come in blocks of 25; of each the median counts, which heavy tails do not move. The level now is the
mean of the last 8 blocks; it is compared with what it was: at the start (`FIRST`), at its lowest
(`LOWEST`), or some hundred windows ago (`BEFORE`, for what may rise slowly in a healthy run).
"""

from __future__ import annotations

import enum
import math
from collections import deque
from typing import Final

import msgspec

BLOCK: Final = 25
RECENT: Final = 8
"""Blocks whose mean is the level now."""
REFERENCE: Final = 20
"""Blocks whose median is the level before."""
SKIPPED: Final = 4
"""First blocks after a (re-)base: caches fill, kernels are chosen."""
GAP: Final = 12
"""Blocks between the recent ones and those before them, so that a drift over 500 windows is seen whole."""


class Against(enum.Enum):
    """What the level now is compared with."""

    FIRST = enum.auto()
    LOWEST = enum.auto()
    BEFORE = enum.auto()


TIMES: Final = {Against.FIRST: 7.0, Against.LOWEST: 11.0, Against.BEFORE: 7.0}
"""Standard errors that a rise must exceed, besides the least rise that matters. The lowest of many levels
lies below what is usual by chance alone."""


class Drift(msgspec.Struct, frozen=True):
    """A level that has risen."""

    level: float
    before: float
    since: int
    """Place (step or reading) of the first value that belongs to the rise, about."""

    @property
    def ratio(self) -> float:
        """The level over what it was."""
        return self.level / self.before if self.before else math.inf


class DriftDetector:
    """Takes one value a window with its place; gives a `Drift` once when the level has risen.

    `least`: the relative rise that matters. `floor`: the absolute one. A level that stays risen is told
    once; it may be told again after it came back, or, `again`, after it rose as much once more.
    """

    def __init__(
        self, against: Against, *, least: float, floor: float = 0.0, again: bool = False, block: int = BLOCK
    ) -> None:
        self._against = against
        self._least = least
        self._floor = floor
        self._again = again
        self._block = block
        self.rebase()

    def rebase(self) -> None:
        """Forget what is usual: from here on the values mean something else."""
        self._values: list[float] = []
        self._begin = 0
        kept = RECENT + GAP + REFERENCE
        self._medians: deque[float] = deque(maxlen=kept)
        self._places: deque[int] = deque(maxlen=kept)
        self._blocks = 0
        self._jump = 0.0
        """Mean absolute difference of neighbouring medians."""
        self._first: float | None = None
        self._lowest: float | None = None
        self._told: float | None = None
        self._settled_at = 0
        """The block until which the level told still rises by the same change."""

    def take(self, value: float, place: int) -> Drift | None:
        """One finite value more."""
        values = self._values
        if not values:
            self._begin = place
        values.append(value)
        if len(values) < self._block:
            return None
        values.sort()
        median = values[self._block // 2]
        values.clear()
        return self._take_block(median, self._begin)

    def scale(self, factor: float) -> None:
        """The values to come are `factor` times what they were (another N)."""
        self._values.clear()
        self._medians = deque((factor * median for median in self._medians), maxlen=self._medians.maxlen)
        self._jump *= factor
        for name in ("_first", "_lowest", "_told"):
            known = getattr(self, name)
            setattr(self, name, None if known is None else factor * known)

    def _take_block(self, median: float, place: int) -> Drift | None:
        self._blocks += 1
        if self._blocks <= SKIPPED:
            return None
        if self._medians:
            pace = max(1 / 64, 1 / (self._blocks - SKIPPED))
            self._jump += pace * (min(abs(median - self._medians[-1]), self._cap()) - self._jump)
        self._medians.append(median)
        self._places.append(place)
        before = self._before()
        if before is None:
            return None
        level = self._level()
        least = max(self._least * abs(before), self._floor, self._noise())
        if level - before <= least:
            self._told = None
            return None
        if self._told is not None:
            if self._blocks <= self._settled_at:
                self._told = max(self._told, level)
            if not self._again or level - self._told <= least:
                return None
        self._told = level
        self._settled_at = self._blocks + RECENT
        return Drift(level, before, self._since(before + least / 2))

    def _cap(self) -> float:
        """A single block must not make the noise look large."""
        return 4 * self._jump if self._blocks > SKIPPED + RECENT else math.inf

    def _level(self) -> float:
        medians = self._medians
        return sum(medians[place] for place in range(-RECENT, 0)) / RECENT

    def _noise(self) -> float:
        """What the difference of level and reference may be by chance alone."""
        deviation = 0.886 * self._jump  # of normal values: E|x - y| = 2 sd / sqrt(pi)
        return TIMES[self._against] * deviation * math.sqrt(1 / RECENT + 1 / REFERENCE)

    def _before(self) -> float | None:
        """The level that the present one is compared with; None before it is known."""
        many = len(self._medians)
        match self._against:
            case Against.FIRST:
                if self._first is None and many >= REFERENCE:
                    self._first = _median(list(self._medians))
                    return None
                return self._first if many >= REFERENCE + RECENT or self._blocks > many + SKIPPED else None
            case Against.LOWEST:
                if many < REFERENCE:
                    return None
                level = self._level()
                if self._lowest is None or level < self._lowest:
                    self._lowest = level
                return self._lowest
            case Against.BEFORE:
                if many < RECENT + GAP + REFERENCE:
                    return None
                medians = self._medians
                return _median([medians[place] for place in range(REFERENCE)])

    def _since(self, middle: float) -> int:
        """Where the medians last rose above `middle` to stay."""
        since = self._places[-1]
        for median, place in zip(reversed(self._medians), reversed(self._places), strict=True):
            if median < middle:
                break
            since = place
        return since


def _median(values: list[float]) -> float:
    values.sort()
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
