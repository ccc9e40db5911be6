"""Spikes: single values far above what is usual, in light and in heavy tails.

How far is far depends on the tail. A light one (Gaussian or nearly so) has its limit at 5.5 standard
deviations, which healthy noise passes once in 50 million windows. A heavy one passes any fixed limit all
the time, so its limit is where Student's t of the same shape is passed about as rarely. The shape is told
by Geary's ratio, mean absolute over root mean square (Geary 1935), of the values above the usual: 0.798
for a Gaussian, less for heavier tails, and known long before the first far value is seen. All deviations
are those of the values above, so a skewed distribution has the limit of its upper side.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

import msgspec

FEWEST: Final = 128
"""Values above the usual before anything is called a spike."""
LEARNING: Final = 512
"""Values above the usual until the tail's shape is known; until then only the extreme is a spike."""
LEARNING_LIMIT: Final = 80.0
"""Until then a tail may be as heavy as that of Student's t with 3 degrees of freedom: its limit."""
LIMITS: Final = (
    (0.7925, 5.5), (0.788, 8.0), (0.7835, 9.5), (0.7753, 12.0), (0.7643, 18.0), (0.7485, 28.0),
    (0.734, 80.0), (0.7086, 250.0), (0.63, 1000.0),
)  # fmt: skip
"""Geary's ratio (values cut at 4 deviations), and the limit in deviations. The rows are those of Student's t
with 20, 15, 10, 7, 5, 4, 3 degrees of freedom, whose limits are passed once in some 10 million windows."""
RATIO_SE: Final = 0.2123
"""Standard error of the ratio times the root of the number of values."""
MEAN_PACE: Final = 1 / 64
TREND_PACE: Final = MEAN_PACE**2 / 4
"""Holt's second constant, critically damped: the usual value does not lag behind a falling loss."""
SPREAD_PACE: Final = 1 / 128
"""Of the values above the usual, so as of every 256th."""
SHAPE_PACE: Final = 1 / 2850
BALANCED: Final = (0.25, 0.65)
"""Share of values above the usual; outside it the usual lags behind, and what is above tells no shape."""
NEW_LEVEL: Final = 16
"""Spikes in a row that are a new level: it is learnt anew."""
CLIPPED_AT: Final = 4.0
"""Deviations at which a value is cut before it moves what is usual."""


class Spike(msgspec.Struct, frozen=True):
    """A value, and what was usual before it."""

    value: float
    usual: float
    deviation: float
    """Usual standard deviation."""

    @property
    def times(self) -> float:
        """Standard deviations above the usual."""
        return (self.value - self.usual) / self.deviation


class SpikeDetector:
    """Takes one value a window; gives a `Spike` for one far above the usual. About 2 us a value."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._trend = 0.0
        """Change of the usual value a window."""
        self._in_a_row = 0
        self._above = 0
        """Values above the usual so far."""
        self._share_above = 0.5
        self._shaped = 0
        """Values that told the shape."""
        self._variance = 0.0
        """Mean square of what is above the usual."""
        self._absolute = self._square = 0.0
        """Means of |u| and u^2 at a slower pace, u in deviations: they tell the shape."""

    @property
    def deviation(self) -> float:
        """Standard deviation of the values above the usual."""
        return math.sqrt(self._variance)

    def take(self, value: float) -> Spike | None:
        """One finite value more."""
        self.count += 1
        if self.count == 1:
            self.mean = value
            return None
        off = value - self.mean
        deviation = math.sqrt(self._variance)
        # The least limit first: the true one is worked out for the few values that pass it.
        is_far = self._above > FEWEST and off > LIMITS[0][1] * deviation > 0.0
        if is_far and off > self.limit() * deviation:
            self._in_a_row += 1
            if self._in_a_row < NEW_LEVEL:
                return Spike(value, self.mean, deviation)  # what is usual does not follow it
            self.__init__()  # type: ignore[misc]  # no spikes any more, but another level: learn it
            return None
        self._in_a_row = 0
        bound = CLIPPED_AT * deviation
        if self._above > FEWEST and bound > 0.0:
            off = min(bound, off)  # down it follows freely: a loss falls
        self._trend += TREND_PACE * off
        self.mean += max(MEAN_PACE, 1.0 / self.count) * off + self._trend
        self._share_above += MEAN_PACE * ((off > 0.0) - self._share_above)
        if off > 0.0:
            self._learn(off)
        return None

    def _learn(self, off: float) -> None:
        """A value that lies `off` above the usual."""
        self._above += 1
        share, square = 1.0 / self._above, off * off
        pace = max(SPREAD_PACE, share)
        variance = self._variance
        self._variance += pace * (square - variance)
        if self._above > FEWEST and variance > 0.0 and BALANCED[0] < self._share_above < BALANCED[1]:
            # In deviations of their time: the wide ones of a run's beginning must not outweigh the rest.
            self._shaped += 1
            pace = max(SHAPE_PACE, 1.0 / self._shaped)
            self._absolute += pace * (off / math.sqrt(variance) - self._absolute)
            self._square += pace * (square / variance - self._square)

    def limit(self) -> float:
        """Deviations above the usual that are a spike now."""
        if self._square <= 0.0:
            return LEARNING_LIMIT
        known = min(self._shaped, 2.0 / SHAPE_PACE)
        ratio = self._absolute / math.sqrt(self._square) + RATIO_SE / math.sqrt(known)
        limit = LIMITS[0][1] if ratio >= LIMITS[0][0] else limit_for(ratio)
        return limit if self._shaped >= LEARNING else max(limit, LEARNING_LIMIT)

    def rescale(self, mean: float, deviation: float) -> None:
        """Another N: the usual value times `mean`, its deviation times `deviation`."""
        self.mean *= mean
        self._variance *= deviation**2


def limit_for(ratio: float) -> float:
    """The limit for Geary's ratio, between the rows of `LIMITS` on a logarithmic scale."""
    if ratio >= LIMITS[0][0]:
        return LIMITS[0][1]
    for (high, least), (low, most) in pairwise(LIMITS):
        if ratio >= low:
            share = (high - ratio) / (high - low)
            return float(least * (most / least) ** share)
    return LIMITS[-1][1]
