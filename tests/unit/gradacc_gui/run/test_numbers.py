"""Numbers as people read them."""

from __future__ import annotations

import math
import time

import pytest

from gradacc_gui.run import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (218.4, "218"),
        (27_900, "27.9\u202fk"),
        (999.96, "1.00\u202fk"),
        (1.5e6, "1.50\u202fM"),
        (0, "0"),
        (0.25, "0.25"),
    ],
)
def test_a_rate_keeps_three_figures(value: float, text: str) -> None:
    """27.9 k tokens a second, not 27900.3."""
    assert numbers.short(value) == text


def test_what_is_not_known_is_a_dash_and_never_zero() -> None:
    """None has no digits anywhere."""
    functions = (
        numbers.count,
        numbers.short,
        numbers.gibibytes,
        numbers.clock_s,
        numbers.left_s,
        numbers.real,
    )
    assert [function(None) for function in functions] == [numbers.DASH] * 6


@pytest.mark.parametrize("seconds", [math.inf, math.nan, -1.0])
def test_a_time_that_cannot_be_is_a_dash(seconds: float) -> None:
    """An estimate of infinity or below zero is no estimate."""
    assert numbers.left_s(seconds) == numbers.DASH
    assert numbers.clock_s(seconds) == numbers.DASH


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (40, "40 s"),
        (61, "2 min"),
        (7_860, "2 h 11 min"),
        (7_200, "2 h"),
        (90_000, "1 d 1 h"),
        (172_800, "2 d"),
    ],
)
def test_the_time_left_is_as_coarse_as_it_is_known(seconds: float, text: str) -> None:
    """Hours get minutes, days get hours."""
    assert numbers.left_s(seconds) == text


def test_elapsed_time_counts_seconds_and_days() -> None:
    """8:41 in, and two days in."""
    assert numbers.clock_s(521) == "0:08:41"
    assert numbers.clock_s(2 * 86_400 + 3_661) == "2 d 1:01"


@pytest.mark.parametrize(
    ("size", "text"),
    [(512, "512 B"), (3 * 2**30, "3.00 GiB"), (12_884_901_888, "12.0 GiB"), (5 * 2**20, "5.00 MiB")],
)
def test_bytes_carry_their_binary_unit(size: int, text: str) -> None:
    """GiB, since 1024 is the factor."""
    assert numbers.gibibytes(size) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.2144, "3.214"),
        (1e-5, "1e-5"),
        (2.5e-4, "2.5e-4"),
        (0.0, "0"),
        (math.nan, "NaN"),
        (-math.inf, "−∞"),
    ],
)
def test_a_measured_number_names_nan_and_infinity(value: float, text: str) -> None:
    """A loss of exactly 0 is 0, NaN is NaN."""
    assert numbers.real(value) == text


def test_an_instant_says_its_day_only_when_it_is_another() -> None:
    """Today is told by the hour; older instants by their date."""
    now = time.mktime((2026, 11, 29, 15, 0, 0, 0, 0, -1))
    assert numbers.day_and_time(now - 3_600, now=now) == "14:00"
    assert numbers.day_and_time(now - 86_400, now=now).endswith("15:00")
    assert numbers.day_and_time(now - 400 * 86_400, now=now).startswith("2025-")
