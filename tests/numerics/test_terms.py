"""Loss terms are known by name: in any order, with any of them left out, counted ahead or not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.numerics.probes import Probe
from trainer_backend.engine import Accumulator, LossTerm

MicroBatch = Mapping[str, tuple[float, float]]
"""By term: the sum of its y, and its weight. The order is that in which the loss returns them."""


class Named:
    """A loss whose terms are w times a number each; SGD at rate 1, so an update is minus the mean."""

    def __init__(self, *, counts: bool, deferred: bool, backwards: bool = False) -> None:
        self.model = Probe()
        self.backwards = backwards
        self.accumulator = Accumulator(
            self.model,
            torch.optim.SGD(self.model.parameters(), lr=1.0),
            self._loss,
            weights=self._weights if counts else None,
            count=lambda _: (1, 1),
            deferred=deferred,
        )

    def _loss(self, model: torch.nn.Module, batch: MicroBatch) -> list[LossTerm]:
        assert isinstance(model, Probe)
        return [LossTerm(-model.w * total, weight, name) for name, (total, weight) in batch.items()]

    def _weights(self, batch: MicroBatch) -> dict[str, float]:
        """Only what occurs, and in another order than the loss's where that is asked for."""
        names = sorted(batch, reverse=self.backwards)
        return {name: batch[name][1] for name in names if batch[name][1] > 0}

    def step(self, window: list[MicroBatch]) -> float:
        """The update that a window made."""
        before = self.model.w.item()
        self.accumulator.window(window)
        self.accumulator.flush()
        return self.model.w.item() - before


def right(window: list[MicroBatch]) -> float:
    """Each term's sum over its own denominator."""
    found = 0.0
    for name in {name for batch in window for name in batch}:
        entries = [batch[name] for batch in window if name in batch and batch[name][1] > 0]
        weight = sum(weight for _, weight in entries)
        found += sum(total for total, _ in entries) / weight if weight else 0.0
    return found


@pytest.mark.parametrize("deferred", [False, True])
def test_a_term_that_the_first_micro_batch_lacks_is_not_scaled_twice_later(*, deferred: bool) -> None:
    """It gathered in a buffer of its own once; counted ahead in a later window it needs none."""
    life = Named(counts=True, deferred=deferred)
    first: list[MicroBatch] = [{"loss": (4.0, 2.0)}, {"loss": (2.0, 1.0), "aux": (9.0, 3.0)}]
    later: list[MicroBatch] = [
        {"loss": (8.0, 4.0), "aux": (6.0, 2.0)},
        {"loss": (4.0, 2.0), "aux": (9.0, 1.0)},
    ]
    assert life.step(first) == pytest.approx(right(first), rel=1e-12)
    assert life.step(later) == pytest.approx(7.0, rel=1e-12)


def test_weights_in_another_order_than_the_losses_divide_each_term_by_its_own() -> None:
    """In the first window too."""
    window: list[MicroBatch] = [{"loss": (300.0, 2.0), "aux": (5.0, 1.0)}, {"loss": (60.0, 1.0)}]
    for backwards in (False, True):
        life = Named(counts=True, deferred=False, backwards=backwards)
        assert life.step(window) == pytest.approx(right(window), rel=1e-12)


entry = st.tuples(st.integers(-50, 50).map(float), st.integers(0, 40).map(float))
micro_batch = st.lists(st.sampled_from(["loss", "aux", "dice"]), min_size=1, unique=True).flatmap(
    lambda names: st.tuples(*[entry for _ in names]).map(
        lambda entries: dict(zip(names, entries, strict=True))
    )
)
lives = st.lists(st.lists(micro_batch, min_size=1, max_size=4), min_size=1, max_size=4)


@settings(max_examples=120)
@given(life=lives, counts=st.booleans(), deferred=st.booleans(), backwards=st.booleans())
def test_terms_may_come_in_any_order_and_be_left_out(
    life: list[list[MicroBatch]], *, counts: bool, deferred: bool, backwards: bool
) -> None:
    """Every window's update is the sum over the terms of total / D, from window 1 on."""
    named = Named(counts=counts, deferred=deferred, backwards=backwards)
    for window in life:
        assert named.step(window) == pytest.approx(right(window), rel=1e-12, abs=1e-12)


def test_half_precision_takes_a_denominator_for_each_window() -> None:
    """A first sample of one token must not fix c for windows of thousands: nothing is lost to overflow."""
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64, bias=False)

    def loss(net: torch.nn.Module, x: torch.Tensor) -> LossTerm:
        return LossTerm((net(x).float() * 8).sum(), x.shape[0])

    accumulator = Accumulator(
        model, torch.optim.SGD(model.parameters(), lr=1e-3), loss, precision="fp16", device="cpu"
    )
    accumulator.window([torch.ones(1, 64)])
    accumulator.window([torch.ones(1, 64), torch.ones(8192, 64)])
    assert accumulator._passes.denominators.c == 8192.0
    results = [accumulator.window([torch.ones(8192, 64)]) for _ in range(3)]
    assert accumulator._passes.denominators.c == 8192.0
    assert [result.skipped for result in results][-1] == ""
