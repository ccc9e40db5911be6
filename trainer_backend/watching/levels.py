"""Shares that stay above a limit, and the spread of the step time."""

from __future__ import annotations

from typing import Final

from trainer_backend.watching.drifts import Against, Drift, DriftDetector

SPREAD_WINDOWS: Final = 40
"""Windows whose 95th percentile over their median is one value of the spread."""
SPREAD_RISE: Final = 0.5


class Level:
    """A smoothed share that is told when it passes a limit, and again only after it fell to half of it."""

    def __init__(self, limit: float, pace: float, fewest: int) -> None:
        self.mean = 0.0
        self.since = 0
        """The place from which on the share has been above the limit."""
        self._limit, self._pace, self._fewest = limit, pace, fewest
        self._count = 0
        self._is_told = False

    def take(self, share: float, place: int) -> bool:
        """One value more; whether it is to be told. The first quarter of `fewest` does not count."""
        self._count += 1
        counted = self._count - self._fewest // 4
        if counted <= 0:
            return False
        self.mean += max(self._pace, 1.0 / counted) * (share - self.mean)
        if self.mean <= self._limit:
            self.since = place
            self._is_told = self._is_told and self.mean > self._limit / 2
            return False
        if self._is_told or self._count < self._fewest:
            return False
        self._is_told = True
        return True


class Spread:
    """The step time's 95th percentile over its median, of groups of windows: its jitter, not its level."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._usual = DriftDetector(Against.FIRST, least=SPREAD_RISE, block=1)

    def take(self, seconds: float, step: int) -> Drift | None:
        """One window more."""
        self._times.append(seconds)
        if len(self._times) < SPREAD_WINDOWS:
            return None
        times = sorted(self._times)
        self._times.clear()
        middle = times[SPREAD_WINDOWS // 2]
        return self._usual.take(times[SPREAD_WINDOWS * 19 // 20 - 1] / middle, step) if middle > 0 else None
