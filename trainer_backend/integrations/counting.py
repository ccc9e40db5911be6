"""When a new N can be exact, by how a library counts micro-batches. Pure.

All of these know `done`, the micro-batches that the library's counter has seen, N now, and how many
micro-batches the epoch has (None: not known).
"""

from __future__ import annotations

import math
from typing import Protocol

import msgspec


class Refused(msgspec.Struct, frozen=True):
    """N cannot be changed; `code` says why."""

    code: str


class CountingRule(Protocol):
    """How many more windows of the old N must pass before a window of the new N is whole."""

    def windows_until(self, done: int, before: int, after: int, epoch: int | None) -> int | Refused:
        """0 is the coming window. `done` is a multiple of `before`, or the epoch's end."""
        ...

    def is_whole(self, done: int, after: int) -> bool:
        """Whether a window of `after` that starts at `done` is whole."""
        ...


class AnyWindow:
    """The counter starts again at each window: a plain loop, accelerate once its counter is reset."""

    def windows_until(self, done: int, before: int, after: int, epoch: int | None) -> int | Refused:
        """Always the coming window."""
        del done, before, after, epoch
        return 0

    def is_whole(self, done: int, after: int) -> bool:
        """Always."""
        del done, after
        return True


class Modulo:
    """`step % N` with a counter that goes on (Lightning's within an epoch).

    A window of the new N is whole only where the counter is a multiple of it, so the change waits for
    a common multiple, or for the epoch's end, where the counter starts again.
    """

    def windows_until(self, done: int, before: int, after: int, epoch: int | None) -> int | Refused:
        """Windows until the counter is a multiple of `after`, or starts again."""
        left = math.inf if epoch is None else max(0, math.ceil((epoch - done) / before))
        for windows in range(math.lcm(before, after) // before + 1):
            if windows >= left or self.is_whole(done + windows * before, after):
                return windows
        raise AssertionError("a common multiple is always met")

    def is_whole(self, done: int, after: int) -> bool:
        """On a multiple of `after`."""
        return done % after == 0


class CountedModulo(Modulo):
    """As `Modulo`, with the number of updates of an epoch counted before it starts (transformers).

    With a smaller N than `planned` these updates would end before the data does: samples would be left out.
    """

    def __init__(self, planned: int) -> None:
        self._planned = planned

    def windows_until(self, done: int, before: int, after: int, epoch: int | None) -> int | Refused:
        """Windows until the counter allows it, as `Modulo` has it; refused below the planned N."""
        if after < self._planned:
            return Refused("library-counts-updates-ahead")
        return super().windows_until(done, before, after, epoch)
