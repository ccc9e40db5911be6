"""Trying one thing many times with made-up input, and counting what went wrong."""

from __future__ import annotations

import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, TypeAlias

import msgspec

LONGEST_CPU_S: Final = 5.0
"""An input that takes longer counts as a hang: it takes milliseconds."""
LONGEST_S: Final = 60.0
"""What only waits shows by the clock; a busy machine must not look like it."""

Attempt: TypeAlias = Callable[[random.Random], None]
"""Makes one input from the random numbers it is given and tries it; raises only what is a defect."""


class HangError(BaseException):
    """One input took too long. No `except Exception` of what is tried may swallow it."""


class Tally(msgspec.Struct):
    """What was tried, and what went wrong."""

    tried: int = 0
    tracebacks: int = 0
    hangs: int = 0
    shown: set[str] = msgspec.field(default_factory=set)
    """Places of defects that were printed: one of each is enough to read."""


@contextmanager
def limits() -> Iterator[None]:
    """Inside, what takes too long is interrupted by HangError."""

    def late(number: int, frame: FrameType | None) -> None:
        raise HangError(f"signal {number} at {frame.f_code.co_filename}:{frame.f_lineno}" if frame else "")

    before = {number: signal.signal(number, late) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, LONGEST_CPU_S)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def try_many(name: str, attempt: Attempt, count: int, *, first: int = 0) -> Tally:
    """Try the cases `first` … `first + count - 1`; each can be tried again alone by its number."""
    tally = Tally()
    for number in range(first, first + count):
        tally.tried += 1
        try:
            with limits():
                attempt(random.Random(f"{name} {number}"))  # noqa: S311 - made-up input
        except HangError as error:
            tally.hangs += 1
            _show(tally, f"{name} {number} hangs: {error}", str(error))
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            tally.tracebacks += 1
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{type(error).__name__} {frame.filename}:{frame.lineno}"
            _show(tally, f"{name} {number}: {traceback.format_exc()}", place)
    return tally


def _show(tally: Tally, text: str, place: str) -> None:
    if place not in tally.shown:
        tally.shown.add(place)
        print(text, file=sys.stderr, flush=True)
