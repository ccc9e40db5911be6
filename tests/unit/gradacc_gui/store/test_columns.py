"""Rows as columns: bounded, never copied, and no spike lost when rows become summaries."""

from __future__ import annotations

import numpy as np
import pytest

from gradacc_gui.series import Floats
from gradacc_gui.store import columns
from gradacc_gui.store.columns import (
    BLOCK,
    CHUNK_ROWS,
    COUNT,
    HI,
    LO,
    MISSING,
    NAN,
    POSINF,
    TOTAL,
    Track,
    column,
    is_missing,
    merge_summaries,
    summarize,
)
from gradacc_gui.store.ingest import track_names
from trainer_backend.protocol import MEASUREMENTS, Event


def block(first: int, rows: int) -> Floats:
    """Columns seq, x and y = x % 7."""
    seq = np.arange(first, first + rows, dtype=np.float64)
    return np.vstack((seq, seq * 2, seq % 7))


def track_of(rows: int) -> Track:
    """A track with so many rows, appended in uneven parts."""
    track = Track(("seq", "x", "y"))
    first = 1
    while first <= rows:
        size = min(10_007, rows - first + 1)
        track.append(block(first, size))
        first += size
    return track


def test_none_becomes_missing_and_nan_stays_nan() -> None:
    """The two are told apart in a float64 column."""
    values = column([1.0, None, float("nan"), 4])
    assert is_missing(values).tolist() == [False, True, False, False]
    assert np.isnan(values[[1, 2]]).all()


def test_missing_survives_copies() -> None:
    """Through slices, concatenation and chunks."""
    values = np.concatenate((np.array([MISSING])[:1].copy(), np.ones(3)))
    assert is_missing(values).tolist() == [True, False, False, False]


def test_a_summary_keeps_extremes_sums_and_strangers() -> None:
    """Of a group with every kind of value."""
    found = summarize(np.array([[1.0, np.nan, np.inf, MISSING, -2.0, 0.0]]))[:, 0]
    assert (found[LO], found[HI], found[TOTAL], found[COUNT]) == (-2.0, 1.0, -1.0, 3.0)
    assert (found[NAN], found[POSINF]) == (1.0, 1.0)


def test_a_group_without_a_finite_value_has_no_extremes() -> None:
    """NaN, not infinity."""
    found = summarize(np.array([[np.nan, np.nan]]))[:, 0]
    assert np.isnan(found[LO])
    assert found[COUNT] == 0


def test_merging_summaries_is_summarizing_more_rows() -> None:
    """Twice 8 rows are 16 rows."""
    values = np.arange(32.0).reshape(4, 8)
    values[1, 3] = np.nan
    assert np.array_equal(
        merge_summaries(summarize(values), 2), summarize(values.reshape(2, 16)), equal_nan=True
    )


def test_rows_come_out_as_they_went_in() -> None:
    """Over the border of a chunk."""
    track = track_of(CHUNK_ROWS + 500)
    assert len(track) == CHUNK_ROWS + 500
    assert track.tail("seq", 700).tolist() == list(range(CHUNK_ROWS - 199, CHUNK_ROWS + 501))
    assert track.last("seq") == CHUNK_ROWS + 500
    assert track.first("seq") == 1


def test_memory_is_bounded_and_the_oldest_chunk_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever appends gets what was dropped, to summarize it."""
    monkeypatch.setattr(columns, "LARGEST_CHUNKS", 2)
    track = Track(("seq", "x", "y"))
    dropped = track.append(block(1, 3 * CHUNK_ROWS + 10))
    assert len(dropped) == 2
    assert dropped[0].data[0, 0] == 1
    assert len(track) == CHUNK_ROWS + 10


def test_a_range_comes_with_a_neighbour_on_each_side() -> None:
    """So that lines reach the edges of the plot."""
    items = track_of(1_000).items("x", "y", 100, 110, limit=10_000)
    assert items.x.tolist() == [98, 100, 102, 104, 106, 108, 110, 112]


def test_a_long_range_comes_in_blocks_that_lose_nothing() -> None:
    """Counts, sums and extremes are those of the rows."""
    track = track_of(2 * CHUNK_ROWS + 77)
    items = track.items("x", "y", 300, 1e9, limit=1_000)
    rows = np.arange(149, 2 * CHUNK_ROWS + 78) % 7  # from the neighbour before x = 300 on
    assert len(items.x) < len(rows) / BLOCK + 4 * BLOCK
    assert items.finite.sum() == len(rows)
    assert items.total.sum() == rows.sum()
    assert (np.diff(items.x) > 0).all()


def test_summaries_follow_rows_that_come_later() -> None:
    """They are made once for whole blocks and go on from there."""
    track = track_of(1_000)
    assert track.items("x", "y", 0, 1e9, limit=1).finite.sum() == 1_000
    track.append(block(1_001, 1_000))
    assert track.items("x", "y", 0, 1e9, limit=1).finite.sum() == 2_000


def test_superseded_rows_are_gone_and_new_ones_take_their_place() -> None:
    """Summaries of blocks that were cut are made anew."""
    track = track_of(CHUNK_ROWS + 1_000)
    track.items("x", "y", 0, 1e9, limit=1)
    track.truncate(CHUNK_ROWS - 100)
    assert track.last("seq") == CHUNK_ROWS - 101
    replaced = block(CHUNK_ROWS + 5_000, 500)
    replaced[2] = 99.0
    track.append(replaced)
    items = track.items("x", "y", 0, 1e12, limit=1)
    assert items.finite.sum() == CHUNK_ROWS - 101 + 500
    assert items.hi.max() == 99.0
    assert (items.total.sum() - 99.0 * 500) == (np.arange(1, CHUNK_ROWS - 100) % 7).sum()


def test_an_empty_track_gives_nothing() -> None:
    """Before the first row."""
    track = Track(("seq", "x", "y"))
    assert len(track.items("x", "y", 0, 1, limit=10).x) == 0
    assert len(track.tail("y", 5)) == 0
    assert np.isnan(track.last("y"))


def test_the_lead_in_is_counted_in_rows() -> None:
    """Over chunks; at the beginning there is nothing before."""
    track = track_of(CHUNK_ROWS + 100)
    assert track.x_before("x", 2 * (CHUNK_ROWS + 50), 60) == 2 * (CHUNK_ROWS - 10)
    assert track.x_before("x", 10, 1_000) == 2


@pytest.mark.parametrize("kind", MEASUREMENTS)
def test_no_chunk_is_so_large_that_its_first_touch_takes_long(kind: type[Event]) -> None:
    """numpy asks for huge pages from 4 MB on."""
    track = Track(track_names(kind))
    track.append(np.zeros((len(track.names), 1)))
    assert track.chunks[0].data.nbytes < 4 << 20
