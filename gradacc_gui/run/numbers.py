"""Numbers as people read them. No Qt; every function gives the dash for what is not known."""

from __future__ import annotations

import math
import time
from typing import Final

DASH: Final = "–"
MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
_THIN: Final = "\u202f"
"""Narrow no-break space between a number and its unit's prefix."""


def count(value: float | None) -> str:
    """A whole number with thousands marked: 2,000."""
    return DASH if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Three significant figures with k, M, G: 27.9 k; below 1,000 as it is."""
    if value is None or not math.isfinite(value):
        return DASH
    size = abs(value)
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit * 0.9995:
            return f"{_figures(value / limit)}{_THIN}{prefix}"
    return _figures(value)


def _figures(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size else "0"


def gibibytes(value: int | None) -> str:
    """Bytes with their binary unit: 3.10 GiB."""
    if value is None:
        return DASH
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{value:,} B" if unit == "B" else f"{_figures(size)} {unit}"


def clock_s(seconds: float | None) -> str:
    """Elapsed time: 0:08:41, and 2 d 3:04 beyond a day."""
    if seconds is None or seconds < 0 or not math.isfinite(seconds):
        return DASH
    whole = int(seconds)
    days, rest = divmod(whole, DAY_S)
    text = f"{rest // HOUR_S}:{rest % HOUR_S // MINUTE_S:02}"
    return f"{days} d {text}" if days else f"{text}:{rest % MINUTE_S:02}"


def left_s(seconds: float | None) -> str:
    """Time that is left, as coarse as it is known: 2 h 11 min, 14 min, 40 s."""
    if seconds is None or seconds < 0 or not math.isfinite(seconds):
        return DASH
    if seconds < MINUTE_S:
        return f"{math.ceil(seconds)} s"
    if seconds < HOUR_S:
        return f"{math.ceil(seconds / MINUTE_S)} min"
    if seconds < DAY_S:
        hours, minutes = divmod(math.ceil(seconds / MINUTE_S), 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(math.ceil(seconds / HOUR_S), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def time_of_day(at: float) -> str:
    """14:10:31 of an instant in seconds since the epoch, in local time."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def day_and_time(at: float, *, now: float | None = None) -> str:
    """14:10 today, 28 Nov 14:10 this year, 2025-11-28 14:10 before."""
    then, today = time.localtime(at), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    if then.tm_year == today.tm_year:
        return time.strftime("%d %b %H:%M", then).lstrip("0")
    return time.strftime("%Y-%m-%d %H:%M", then)


def real(value: float | None, figures: int = 4) -> str:
    """A measured number: 3.214; very small and very large ones as 1.5e-3; NaN and infinities by name."""
    if value is None:
        return DASH
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and not 1e-3 <= abs(value) < 1e6:
        mantissa, _, exponent = f"{value:.{max(figures - 2, 1)}e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.{figures}g}"
