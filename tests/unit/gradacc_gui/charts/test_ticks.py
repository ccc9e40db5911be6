"""Round ticks, numbers as people read them, ranges that change seldom."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradacc_gui.charts.ticks import (
    Quantity,
    byte_unit,
    duration,
    label,
    log_ticks,
    nice_range,
    reading,
    step_for,
    ticks_between,
)


@given(st.floats(1e-9, 1e12), st.integers(1, 20))
def test_ticks_are_round_and_not_too_many(span: float, most: int) -> None:
    """At most as many as have room, two more at the ends."""
    step = step_for(span, most)
    assert span / step <= most + 1e-6
    assert step / 10 ** math.floor(math.log10(step) + 1e-9) == pytest.approx(1, rel=10)
    assert len(ticks_between(0, span, step)) <= most + 2


def test_whole_things_have_no_ticks_between_them() -> None:
    """Optimizer steps 1, 2, 3; never 1.5."""
    assert step_for(3, 10, "count") == 1
    assert step_for(124, 8, "count") == 20
    assert step_for(130, 5, "count") == 50


@pytest.mark.parametrize(("span", "step"), [(50, 10), (400, 60), (7_000, 900), (400_000, 86_400)])
def test_time_ticks_are_those_of_a_clock(span: float, step: float) -> None:
    """10 s, 1 min, 15 min, a day."""
    assert step_for(span, 8, "seconds") == step


@pytest.mark.parametrize(
    ("value", "step", "quantity", "text"),
    [
        (0.0, 1.0, "number", "0"),
        (0.5, 0.5, "number", "0.5"),
        (2.5, 2.5, "number", "2.5"),
        (250, 50, "number", "250"),
        (20_000, 5_000, "count", "20\u202fk"),
        (2_500_000, 500_000, "count", "2.5\u202fM"),
        (5e-4, 5e-4, "number", "5e−4"),
        (1e-3, 5e-4, "number", "1e−3"),
        (-2.0, 1.0, "number", "−2"),
        (90, 30, "seconds", "1:30"),
        (30, 10, "seconds", "30 s"),
        (7_200, 3_600, "seconds", "2:00:00"),
        (259_200, 86_400, "seconds", "3 d"),
    ],
)
def test_ticks_read_well(value: float, step: float, quantity: Quantity, text: str) -> None:
    """As short as they can be."""
    assert label(value, step, quantity) == text


def test_log_ticks_are_decades_with_twos_and_fives_where_there_is_room() -> None:
    """Few decades: finer; many: only some of them."""
    assert log_ticks(0, 1, 6) == pytest.approx([0, math.log10(2), math.log10(5), 1])
    assert log_ticks(-3, 3, 4) == [-2, 0, 2]


def test_bytes_are_shown_in_the_unit_that_fits() -> None:
    """Of the axis as a whole."""
    assert byte_unit(8.1 * 1024**3) == ("GiB", 1024.0**3)
    assert byte_unit(200 * 1024**2) == ("MiB", 1024.0**2)
    assert byte_unit(0) == ("B", 1.0)


@pytest.mark.parametrize(
    ("value", "quantity", "unit", "text"),
    [
        (None, "number", "", "–"),
        (math.nan, "number", "", "NaN"),
        (math.inf, "number", "", "∞"),
        (-math.inf, "number", "", "−∞"),
        (2.31415, "number", "", "2.314"),
        (95.21, "number", "%", "95.21 %"),
        (1.5e-4, "number", "", "1.50e−4"),
        (3.1 * 1024**3, "bytes", "", "3.10 GiB"),
        (16, "count", "", "16"),
        (0.0, "number", "", "0"),
    ],
)
def test_a_reading_is_told_in_full(value: float | None, quantity: Quantity, unit: str, text: str) -> None:
    """With its unit, or by name where it is no number."""
    assert reading(value, quantity, unit) == text


def test_a_duration_grows_by_its_units() -> None:
    """Seconds, minutes, hours, days."""
    assert [duration(value) for value in (0, 40, 150, 3_900, 200_000)] == [
        "0", "40 s", "2:30", "1:05:00", "55:33:20",
    ]  # fmt: skip


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.booleans())
def test_a_range_holds_its_data(low: float, span: float, from_zero: bool) -> None:
    """With round ends, and zero where it shall begin there; a constant too."""
    bottom, top = nice_range(low, low + span, from_zero=from_zero, most=6)
    assert bottom <= low
    assert low + span <= top
    assert bottom < top
    assert not from_zero or bottom <= 0


@pytest.mark.parametrize(("low", "high"), [(2.1, 2.9), (95.0, 105.0), (1.0, 1.2), (0.5, 20.0)])
def test_a_log_axis_has_at_least_two_numbers(low: float, high: float) -> None:
    """Also where less than a decade is shown: one number tells no scale."""
    places = log_ticks(math.log10(low), math.log10(high), 5)
    assert len(places) >= 2
    assert all(math.log10(low) - 1e-9 <= place <= math.log10(high) + 1e-9 for place in places)


@pytest.mark.parametrize(("value", "text"), [(1e15, "1e15"), (2.5e20, "2.5e20"), (-1e30, "-1e30")])
def test_a_very_large_value_keeps_its_power_of_ten(value: float, text: str) -> None:
    """A label beside the axis has room for about seven characters."""
    assert label(value, abs(value) / 2) == text
