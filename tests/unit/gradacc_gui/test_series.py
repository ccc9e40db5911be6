"""Decimation hides nothing, smoothing is right at the start, and what cannot be drawn is marked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradacc_gui.series import (
    NO_ITEMS,
    Groups,
    break_at,
    concatenate,
    decimate,
    lead_in_rows,
    smooth,
    thin,
    value_at,
)
from gradacc_gui.store.columns import MISSING, items_from_rows

VALUES = st.one_of(st.floats(allow_nan=True, allow_infinity=True, width=32), st.just(MISSING))


def rows(values: list[float], x: list[float] | None = None) -> Groups:
    """Single rows at 0, 1, 2, … or at `x`."""
    places = np.arange(len(values), dtype=np.float64) if x is None else np.array(x)
    return items_from_rows(places, np.array(values, dtype=np.float64))


def test_few_rows_are_drawn_as_they_are() -> None:
    """With a pixel for each row, nothing is merged."""
    trace = decimate(rows([3.0, 0.0, 2.0]), 0, 2, 100)
    assert trace.y.tolist() == [3.0, 0.0, 2.0]
    assert not trace.spread().any()


def test_a_loss_of_exactly_zero_is_drawn() -> None:
    """0.0 is a value like any other."""
    assert decimate(rows([0.0, 0.0]), 0, 1, 10).y.tolist() == [0.0, 0.0]


def test_one_spike_among_a_million_rows_stays_in_sight() -> None:
    """The column that holds it reaches up to it; all other columns are flat."""
    values = np.ones(1_000_000)
    values[654_321] = 50.0
    trace = decimate(items_from_rows(np.arange(1e6), values), 0, 1e6 - 1, 700)
    assert len(trace.x) <= 702
    assert trace.hi.max() == 50.0
    assert (trace.hi > 1).sum() == 1
    assert trace.extent() == (1.0, 50.0)


def test_one_nan_and_one_infinity_among_a_million_rows_are_marked() -> None:
    """They are no part of the line, and their places are kept."""
    values = np.ones(1_000_000)
    values[[10, 500_000, 900_000]] = np.nan, np.inf, -np.inf
    trace = decimate(items_from_rows(np.arange(1e6), values), 0, 1e6 - 1, 700)
    assert (len(trace.nan_x), len(trace.posinf_x), len(trace.neginf_x)) == (1, 1, 1)
    assert np.isfinite(trace.y).all()
    assert trace.posinf_x[0] == pytest.approx(500_000, abs=1_500)


def test_unknown_is_a_gap_without_a_mark() -> None:
    """None in the journal means that nobody knows: no line, no mark of NaN."""
    trace = decimate(rows([1.0, MISSING, 3.0]), 0, 2, 100)
    assert np.isnan(trace.y[1])
    assert len(trace.nan_x) == 0


def test_nan_breaks_the_line_where_it_has_a_pixel_of_its_own() -> None:
    """It is never bridged, nor replaced by what lies around it."""
    trace = decimate(rows([1.0, np.nan, 3.0]), 0, 2, 100)
    assert np.isnan(trace.y[1])
    assert trace.nan_x.tolist() == [1.0]


def test_single_points_between_nans_are_told_apart() -> None:
    """A line would not show them, so a dot must."""
    trace = decimate(rows([np.nan, 5.0, np.nan, 1.0, 2.0]), 0, 4, 100)
    assert trace.isolated().tolist() == [False, True, False, False, False]


def test_a_point_that_is_alone_in_the_series_is_isolated() -> None:
    """The first step of a run shows before there is a second."""
    assert decimate(rows([2.5]), 0, 10, 100).isolated().tolist() == [True]


def test_a_log_axis_marks_what_is_not_positive_and_draws_the_rest() -> None:
    """Values ≤ 0 have no place on it."""
    trace = decimate(rows([100.0, 0.0, -3.0, 10.0]), 0, 3, 100, log=True)
    assert trace.y[[0, 3]].tolist() == [2.0, 1.0]
    assert np.isnan(trace.y[[1, 2]]).all()
    assert trace.not_positive_x.tolist() == [1.0, 2.0]


def test_a_log_axis_without_any_positive_value_draws_nothing() -> None:
    """It neither hangs nor raises."""
    trace = decimate(rows([0.0, -1.0]), 0, 1, 100, log=True)
    assert trace.extent() is None
    assert len(trace.not_positive_x) == 2


@given(st.lists(VALUES, max_size=200), st.integers(1, 40), st.booleans())
def test_decimation_keeps_every_extreme_and_every_kind_of_mark(
    values: list[float], width: int, log: bool
) -> None:
    """Whatever the rows: at most a point a column, the same least and greatest value, all marks."""
    items = rows(values)
    trace = decimate(items, 0, max(1, len(values) - 1), width, log=log)
    assert len(trace.x) <= width + 2
    assert bool(len(trace.nan_x)) == bool(items.nan.any())
    assert bool(len(trace.posinf_x)) == bool(items.posinf.any())
    finite = np.array(values)[np.isfinite(values)] if values else np.empty(0)
    if not log:
        assert trace.extent() == ((finite.min(), finite.max()) if len(finite) else None)
    elif (finite > 0).any():
        extent = trace.extent()
        assert extent is not None
        assert extent[1] == pytest.approx(np.log10(finite.max()))


def test_decimation_of_nothing_and_of_an_empty_range_is_nothing() -> None:
    """No rows, no pixels, no range."""
    assert len(decimate(NO_ITEMS, 0, 1, 10).x) == 0
    assert len(decimate(rows([1.0]), 0, 0, 10).x) == 0
    assert len(decimate(rows([1.0]), 0, 1, 0).x) == 0


def test_a_constant_series_stays_itself_when_smoothed() -> None:
    """Without the bias of a start at zero."""
    smoothed = smooth(rows([2.0] * 50), 0.9)
    assert np.allclose(smoothed.lo, 2.0, rtol=1e-12)


def test_a_series_of_two_points_is_smoothed_by_hand() -> None:
    """First itself, then (w·y0 + y1) / (1 + w) by the debiased recursion."""
    smoothed = smooth(rows([1.0, 4.0]), 0.5)
    assert smoothed.lo.tolist() == pytest.approx([1.0, (0.5 * 0.5 * 1.0 + 0.5 * 4.0) / 0.75])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.floats(0.01, 0.99))
def test_smoothing_is_the_recursion(values: list[float], factor: float) -> None:
    """The doubling scan gives what the plain loop gives."""
    state, expected = 0.0, []
    for count, value in enumerate(values, start=1):
        state = factor * state + (1 - factor) * value
        expected.append(state / (1 - factor**count))
    assert smooth(rows(values), factor).lo.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_smoothing_steps_over_nan_and_leaves_it_marked() -> None:
    """NaN neither spreads nor vanishes."""
    smoothed = smooth(rows([1.0, np.nan, 1.0]), 0.9)
    assert smoothed.lo[[0, 2]].tolist() == pytest.approx([1.0, 1.0])
    assert smoothed.nan.tolist() == [False, True, False]
    assert np.isnan(decimate(smoothed, 0, 2, 100).y[1])


def test_smoothing_groups_is_near_smoothing_their_rows() -> None:
    """A group of 64 equal rows counts as 64 rows."""
    level = np.repeat([1.0, 3.0], 64)
    single = smooth(rows(level.tolist()), 0.9).lo[[63, 127]]
    two = np.array([1.0, 3.0])
    none = np.zeros(2, dtype=np.bool_)
    grouped = smooth(Groups(two, two, two, two * 64, np.array([64.0, 64.0]), none, none, none), 0.9)
    assert grouped.lo.tolist() == pytest.approx(single.tolist())


def test_no_smoothing_changes_nothing() -> None:
    """Factor 0 is off."""
    items = rows([1.0, 5.0])
    assert smooth(items, 0.0) is items


def test_the_lead_in_covers_what_still_moves_a_value() -> None:
    """After it, a row weighs less than a thousandth."""
    assert 0.9 ** lead_in_rows(0.9) <= 1e-3 < 0.9 ** (lead_in_rows(0.9) - 1)
    assert lead_in_rows(0.0) == 0


def test_lost_measurements_break_the_line() -> None:
    """No line is drawn over what nobody measured."""
    trace = break_at(decimate(rows([1.0, 2.0], x=[0.0, 100.0]), 0, 100, 50), [50.0])
    assert np.isnan(trace.y[1])
    assert trace.x.tolist() == [0.0, 50.0, 100.0]


def test_parts_are_joined_in_order() -> None:
    """History first, then rows; empty parts do not matter."""
    joined = concatenate([NO_ITEMS, rows([1.0]), rows([2.0], x=[5.0])])
    assert joined.x.tolist() == [0.0, 5.0]
    assert concatenate([]) is NO_ITEMS


def test_the_nearest_value_is_read() -> None:
    """To either side; None when there is none."""
    x, y = np.array([0.0, 10.0]), np.array([1.0, 2.0])
    assert value_at(x, y, 4.0) == 1.0
    assert value_at(x, y, 6.0) == 2.0
    assert value_at(np.empty(0), np.empty(0), 1.0) is None


def test_labels_thin_out_and_the_newest_stays() -> None:
    """Many changes of N: as many labels as have room, the last one always."""
    kept = thin([0.0, 5.0, 9.0, 30.0, 34.0], 10.0)
    assert kept == [2, 4]
    assert thin([], 10.0) == []
