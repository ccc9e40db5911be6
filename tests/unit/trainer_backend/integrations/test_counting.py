"""Where a new N is exact, by how a library counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainer_backend.integrations.counting import AnyWindow, CountedModulo, Modulo, Refused

steps = st.integers(1, 40)


@given(st.integers(0, 50), steps, steps, st.none() | st.integers(0, 300))
def test_a_modulo_counter_is_left_only_where_both_windows_are_whole(
    windows: int, before: int, after: int, more: int | None
) -> None:
    """A multiple of the old N that is one of the new, or the epoch's first window; no border before is."""
    done = windows * before
    epoch = None if more is None else done + more
    wait = Modulo().windows_until(done, before, after, epoch)
    assert isinstance(wait, int)

    def exact(later: int) -> bool:
        at = done + later * before
        return at % after == 0 or (epoch is not None and at >= epoch)

    assert exact(wait)
    assert not any(exact(earlier) for earlier in range(wait))


def test_a_counter_that_starts_again_waits_for_nothing() -> None:
    """Plain loops and accelerate."""
    assert AnyWindow().windows_until(7, 3, 5, None) == 0
    assert AnyWindow().is_whole(7, 5)


def test_an_epoch_that_ends_first_is_where_the_change_comes() -> None:
    """10 micro-batches, N = 3: windows of 3, 3, 3 and 1, then the next epoch's first."""
    rule = Modulo()
    assert rule.windows_until(3, 3, 4, None) == 3
    assert rule.windows_until(3, 3, 4, 13) == 3
    assert rule.windows_until(6, 3, 4, 10) == 2
    assert rule.windows_until(12, 3, 4, 10) == 0


def test_fewer_micro_batches_than_planned_are_refused_where_updates_are_counted_ahead() -> None:
    """The epoch would end before its data; more are fine, and the planned N itself again."""
    rule = CountedModulo(planned=4)
    assert rule.windows_until(8, 4, 2, 40) == Refused("library-counts-updates-ahead")
    assert rule.windows_until(8, 4, 8, 40) == 0
    assert rule.windows_until(4, 4, 8, 40) == 1
    assert rule.windows_until(16, 8, 4, None) == 0
