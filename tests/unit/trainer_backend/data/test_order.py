"""The order of samples, and its cut in micro-batches: pure functions of the seed."""

from __future__ import annotations

from itertools import islice, pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer_backend.data.order import Cut, DataPosition, cuts, epoch_order
from trainer_backend.data.randomness import borrowed, mixed, seed_all


@given(length=st.integers(1, 200), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 5))
def test_an_epoch_holds_each_sample_once(length: int, seed: int, epoch: int) -> None:
    """Shuffled or not; the same numbers give the same order."""
    order = epoch_order(length, seed=seed, epoch=epoch, shuffle=True)
    assert sorted(order.tolist()) == list(range(length))
    assert torch.equal(order, epoch_order(length, seed=seed, epoch=epoch, shuffle=True))
    assert epoch_order(length, seed=seed, epoch=epoch, shuffle=False).tolist() == list(range(length))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    """No two of them alike."""
    orders = {
        tuple(epoch_order(50, seed=s, epoch=e, shuffle=True).tolist()) for s in range(4) for e in range(4)
    }
    assert len(orders) == 16


@given(
    length=st.integers(1, 40),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    limit=st.integers(1, 120),
)
def test_sizes_that_change_on_the_way_neither_lose_nor_repeat(
    length: int, sizes: list[int], limit: int
) -> None:
    """Micro-batches follow each other without a gap, whatever their sizes; the last is cut at the limit."""
    position, taken = DataPosition(), list[Cut]()
    for size in sizes * limit:
        cut = next(cuts(position, length=length, size=size, limit=limit), None)
        if cut is None:
            break
        assert 1 <= cut.samples <= size
        taken.append(cut)
        position = DataPosition(epoch=cut.epoch, offset=cut.stop, consumed=position.consumed + cut.samples)
    assert sum(cut.samples for cut in taken) == limit
    for one, after in pairwise(taken):
        assert (after.epoch, after.start) in {(one.epoch, one.stop), (one.epoch + 1, 0)}
        assert after.epoch == one.epoch or one.stop == length


def test_an_epochs_last_micro_batch_is_short_and_the_next_starts_anew() -> None:
    """7 samples in threes."""
    found = list(islice(cuts(DataPosition(), length=7, size=3, limit=None), 4))
    assert [(cut.epoch, cut.start, cut.stop) for cut in found] == [
        (0, 0, 3), (0, 3, 6), (0, 6, 7), (1, 0, 3),
    ]  # fmt: skip


def test_borrowed_generators_come_back_as_they_were() -> None:
    """Python's, NumPy's and torch's draw on as if nobody had drawn between."""
    import random

    import numpy as np

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002, S311

    seed_all(5)
    expected = (draw(), draw())
    seed_all(5)
    first = draw()
    with borrowed():
        seed_all(99)
        one = draw()
    with borrowed():
        seed_all(99)
        assert draw() == one
    assert (first, draw()) == expected


def test_mixed_numbers_differ_by_every_argument_and_its_place() -> None:
    """No two of a thousand are equal."""
    numbers = {mixed(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(numbers) == 1000
    assert all(0 <= number < 2**64 for number in numbers)
