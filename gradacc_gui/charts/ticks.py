"""Axes' ranges, ticks and the text of numbers. Pure; no Qt."""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

Quantity: TypeAlias = Literal["number", "count", "bytes", "seconds"]
"""What an axis counts: measured numbers, whole things, bytes (shown as GiB …), seconds (as m:ss)."""

STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
WHOLE_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
TIME_STEPS_S: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
)  # fmt: skip
MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def step_for(span: float, most: int, quantity: Quantity = "number") -> float:
    """The distance of ticks, a round number, so that there are at most `most` of them in `span`."""
    least = span / max(1, most)
    if quantity == "seconds":
        whole_days = math.ceil(least / DAY_S) * DAY_S
        return float(next((step for step in TIME_STEPS_S if step >= least), whole_days))
    if least <= 0 or not math.isfinite(least):
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    steps = WHOLE_STEPS if quantity == "count" and power < 10 else STEPS
    step = next((power * factor for factor in steps if power * factor >= least * (1 - 1e-9)), power * 10)
    return max(1.0, step) if quantity == "count" else step


def ticks_between(low: float, high: float, step: float) -> list[float]:
    """Multiples of `step` from `low` to `high`."""
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [number * step for number in range(first, min(last, first + 200) + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Ticks on a log axis as exponents: decades, with 2s and 5s between them where there is room."""
    every = max(1, math.ceil((high - low) / max(1, most)))
    decades = [float(power) for power in range(math.floor(low), math.ceil(high) + 1) if power % every == 0]
    if every == 1 and 3 * (high - low) <= most + 1:
        decades += [power + math.log10(factor) for power in decades for factor in (2, 5)]
    found = sorted(tick for tick in decades if low - 1e-9 <= tick <= high + 1e-9)
    if len(found) >= 2:
        return found
    # Less than a decade is shown: one number tells no scale, so it is divided as a linear axis is.
    bottom, top = math.pow(10, low), math.pow(10, high)
    values = ticks_between(bottom, top, step_for(top - bottom, max(2, most)))
    return [math.log10(value) for value in values if value > 0]


def byte_unit(greatest: float) -> tuple[str, float]:
    """The unit that bytes up to `greatest` are shown in, and what they are divided by."""
    place = 0
    while place + 1 < len(BYTE_UNITS) and greatest >= 1024 ** (place + 1):
        place += 1
    return BYTE_UNITS[place], float(1024**place)


def label(value: float, step: float, quantity: Quantity = "number") -> str:
    """The number at a tick of an axis, as short as its step allows."""
    if quantity == "seconds":
        return duration(value, step)
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e15:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    for limit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit * 0.9999999:
            divisor = 1e3 if prefix == "k" else limit
            return _plain(value / divisor, step / divisor) + "\u202f" + prefix
    if size < 1e-3 or 0 < step < 9e-4:
        power = math.floor(math.log10(size) + 1e-9)
        return f"{value / 10**power:.4g}e{power}".replace("-", "−")
    return _plain(value, step)


def _plain(value: float, step: float) -> str:
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    if round(step * 10**decimals, 6) % 1:
        decimals += 1  # a step of 2.5 needs one more
    return f"{value:.{min(decimals, 9)}f}".replace("-", "−")


def duration(value: float, step: float = 1.0) -> str:
    """Active time: 40 s, 2:30, 1:05:00, 3 d."""
    whole = round(value)
    if step >= DAY_S or (whole >= 2 * DAY_S and step >= HOUR_S):
        days, rest = divmod(whole, DAY_S)
        return f"{days} d" if not rest else f"{days} d {rest // HOUR_S} h"
    if whole < MINUTE_S and step < MINUTE_S:
        return f"{whole} s" if whole else "0"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S}:{whole % MINUTE_S:02}"
    return f"{whole // HOUR_S}:{whole % HOUR_S // MINUTE_S:02}:{whole % MINUTE_S:02}"


def reading(value: float | None, quantity: Quantity = "number", unit: str = "") -> str:
    """A value at the pointer, with four figures and its unit."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if quantity == "bytes":
        name, divisor = byte_unit(abs(value))
        return f"{value / divisor:.{2 if divisor > 1 else 0}f} {name}"
    if quantity == "seconds":
        return duration(value)
    if quantity == "count":
        text = f"{value:,.0f}"
    elif value and not 1e-3 <= abs(value) < 1e6:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        text = f"{mantissa}e{int(exponent)}"
    else:
        text = f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    text = text.replace("-", "−")
    return f"{text} {unit}" if unit else text


def nice_range(low: float, high: float, *, from_zero: bool, most: int) -> tuple[float, float]:
    """A range around the data with round ends, so that it changes seldom while data come."""
    if from_zero:
        low = min(0.0, low)
    if high - low < 1e-12 * max(abs(low), abs(high), 1e-300):  # a constant
        margin = abs(high) * 0.1 or 1.0
        low, high = (min(0.0, low), high + margin) if from_zero else (low - margin, high + margin)
    pad = (high - low) * 0.04
    step = step_for(high - low, 2 * max(2, most))
    bottom = low if low == 0 else math.floor((low - pad) / step) * step
    return bottom, math.ceil((high + pad) / step) * step


def per_cent(share: float) -> str:
    """A difference as a share of what it is held against: +1.2 %, −0.3 %, 0.0 %."""
    if abs(share) < 5e-4:
        return "0.0 %"
    size = abs(100 * share)
    return f"{'+' if share > 0 else '−'}{size:.{1 if size < 99.95 else 0}f} %"
