"""Where a new N is exact, by how a library counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainer_backend.integrations.borders import AnyBorder, CountedModulo, Modulo, Refused

steps = st.integers(1, 40)


@given(st.integers(0, 50), steps, steps)
def test_a_modulo_counter_is_left_only_where_both_windows_are_whole(
    windows: int, before: int, after: int
) -> None:
    """The window before the change ends on a multiple of the old N, the next starts on one of the new."""
    wait = Modulo().windows_until(windows * before, before, after)
    assert isinstance(wait, int)
    done = (windows + wait) * before
    assert done % after == 0
    assert all((windows + earlier) * before % after for earlier in range(wait))


def test_a_counter_that_starts_again_waits_for_nothing() -> None:
    """Plain loops and accelerate."""
    assert AnyBorder().windows_until(7, 3, 5) == 0


def test_fewer_micro_batches_than_planned_are_refused_where_updates_are_counted_ahead() -> None:
    """The epoch would end before its data; more are fine, and the planned N itself again."""
    rule = CountedModulo(planned=4)
    assert rule.windows_until(8, 4, 2) == Refused("library-counts-updates-ahead")
    assert rule.windows_until(8, 4, 8) == 0
    assert rule.windows_until(4, 4, 8) == 1
    assert rule.windows_until(16, 8, 4) == 0
