"""When a new N can be exact, by how a library counts micro-batches. Pure.

All of these know `done`, the micro-batches that the library's counter has seen, and N now.
"""

from __future__ import annotations

import math
from typing import Protocol

import msgspec


class Refused(msgspec.Struct, frozen=True):
    """N cannot be changed; `code` says why."""

    code: str


class Rule(Protocol):
    """How many more windows of the old N must pass before a window of the new N is whole."""

    def windows_until(self, done: int, before: int, after: int) -> int | Refused:
        """0 is the coming window. `done` is a multiple of `before`."""
        ...


class AnyBorder:
    """The counter starts again at each window: a plain loop, accelerate once its counter is reset."""

    def windows_until(self, done: int, before: int, after: int) -> int | Refused:
        """Always the coming window."""
        del done, before, after
        return 0


class Modulo:
    """`step % N` with a counter that goes on (Lightning's within an epoch).

    A window of the new N is whole only where the counter is a multiple of it, so the change waits for
    a common multiple, or for the epoch's end, where the counter starts again.
    """

    def windows_until(self, done: int, before: int, after: int) -> int | Refused:
        """Windows until the counter is a multiple of `after`."""
        for windows in range(math.lcm(before, after) // before + 1):
            if (done + windows * before) % after == 0:
                return windows
        raise AssertionError("a common multiple is always met")


class CountedModulo(Modulo):
    """As `Modulo`, with the number of updates of an epoch counted before it starts (transformers).

    With a smaller N than `planned` these updates would end before the data does: samples would be left out.
    """

    def __init__(self, planned: int) -> None:
        self._planned = planned

    def windows_until(self, done: int, before: int, after: int) -> int | Refused:
        """Windows until the counter is a multiple of `after`; refused below the planned N."""
        if after < self._planned:
            return Refused("library-counts-updates-ahead")
        return super().windows_until(done, before, after)
