"""The x-range is moved by people; by data only while it follows them."""

from __future__ import annotations

from gradacc_gui.charts.x_range import FIRST_SPAN, XRange


def at(end: float, *, live: bool = True) -> XRange:
    """The whole run, which stands at `end`."""
    horizon = XRange()
    horizon.update(end, live=live)
    return horizon


def test_a_run_that_begins_has_room_ahead() -> None:
    """No axis from 0 to 1 that jumps at each step."""
    assert (at(0).x0, at(3).x1) == (0.0, FIRST_SPAN["steps"])


def test_the_range_moves_seldom_while_a_run_grows() -> None:
    """Some dozen moves over a thousand steps, and the newest step is always in sight."""
    horizon, moves = XRange(), 0
    for end in range(1, 1_001):
        moves += horizon.update(end, live=True)
        assert end <= horizon.x1 <= max(FIRST_SPAN["steps"], 1.25 * end)
    assert moves < 70


def test_a_run_that_is_over_fills_its_axis() -> None:
    """No room for what will not come."""
    assert at(124, live=False).x1 < 126


def test_a_zoom_is_never_lost_at_a_refresh() -> None:
    """However much comes after it."""
    horizon = at(1_000)
    horizon.select(200, 300)
    for end in range(1_000, 2_000, 10):
        assert not horizon.update(end, live=True)
    assert (horizon.x0, horizon.x1) == (200, 300)
    assert not horizon.follows


def test_zooming_keeps_the_place_under_the_pointer() -> None:
    """And does not go below a few steps."""
    horizon = at(1_000)
    horizon.select(400, 600)
    horizon.zoom(0.5, 450)
    assert (horizon.x0, horizon.x1) == (425.0, 525.0)
    for _ in range(50):
        horizon.zoom(0.5, 450)
    assert horizon.x1 - horizon.x0 == 4.0


def test_a_window_that_holds_the_newest_step_follows_it() -> None:
    """With its own width."""
    horizon = at(1_000)
    horizon.select(900, 1_020)
    assert horizon.follows
    assert horizon.update(1_030, live=True)
    assert horizon.x0 < 1_030 < horizon.x1
    assert horizon.x1 - horizon.x0 == 120


def test_following_again_brings_the_newest_into_sight() -> None:
    """Keeping the zoom."""
    horizon = at(1_000)
    horizon.select(200, 300)
    horizon.follow(True)
    assert horizon.x0 < 1_000 < horizon.x1
    assert horizon.x1 - horizon.x0 == 100


def test_standing_still_is_possible_without_a_zoom() -> None:
    """The whole range stays as it is while steps come."""
    horizon = at(100)
    horizon.follow(False)
    before = horizon.x1
    assert not horizon.update(10_000, live=True)
    assert horizon.x1 == before


def test_zooming_out_past_the_whole_shows_the_whole() -> None:
    """And follows it again."""
    horizon = at(1_000)
    horizon.select(200, 300)
    horizon.zoom(1_000, 250)
    assert horizon.is_whole
    assert horizon.follows
    assert horizon.x0 == 0.0


def test_panning_stays_near_the_run() -> None:
    """Not into nothing, on either side."""
    horizon = at(1_000)
    horizon.select(200, 300)
    horizon.pan(-1e9)
    assert horizon.x0 >= -3
    horizon.pan(1e9)
    assert horizon.x0 < 1_000 <= horizon.x1


def test_another_axis_shows_the_whole_run() -> None:
    """Steps say nothing of tokens."""
    horizon = at(1_000)
    horizon.select(200, 300)
    horizon.set_axis("tokens")
    assert horizon.is_whole
