"""Random lives of a run, against a reference that keeps all samples and runs one large batch."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.numerics.probes import (
    RELATIVE,
    NormedNet,
    Probe,
    SmallGPT,
    Tokens,
    gpt_loss,
    joined,
    large_batch_gradient,
    relative_error,
    rows,
)
from trainer_backend.engine import Accumulator, LossTerm, make_optimizer

OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."


@dataclasses.dataclass(frozen=True)
class Weighted:
    """The probe's micro-batch: values, a weight each, and what goes wrong with it."""

    value: torch.Tensor
    weight: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Life:
    """One window: sizes of its micro-batches, which are bad, and how many samples fit in memory."""

    sizes: tuple[int, ...]
    bad: frozenset[int]
    fits: int
    phase: str


lives = st.builds(
    Life,
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6).map(tuple),
    bad=st.frozensets(st.integers(0, 8), max_size=2),
    fits=st.integers(1, 8),
    phase=st.sampled_from(["forward", "backward"]),
)


class Trouble:
    """Runs out of memory in the window's phase when a micro-batch has more samples than fit."""

    def __init__(self) -> None:
        self.life = Life((1,), frozenset(), 99, "forward")

    def forward(self, samples: int) -> None:
        """Before the forward."""
        if self.life.phase == "forward" and samples > self.life.fits:
            raise RuntimeError(OUT_OF_MEMORY)

    def backward(self, total: torch.Tensor, samples: int) -> torch.Tensor:
        """`total`, whose backward fails once the graph above it is done."""
        if self.life.phase == "backward" and samples > self.life.fits:
            total.grad_fn.register_prehook(self._refuse)  # type: ignore[union-attr]
        return total

    @staticmethod
    def _refuse(*_gradients: Any) -> None:
        raise RuntimeError(OUT_OF_MEMORY)


@settings(max_examples=60)
@given(
    life=st.lists(lives, min_size=1, max_size=5),
    numbers=st.randoms(use_true_random=False),
    policy=st.sampled_from(["skip", "drop"]),
    limit=st.sampled_from([None, 0.5]),
)
def test_the_linear_probe_gets_the_mean_of_all_its_samples(
    life: list[Life], numbers: Any, policy: str, limit: float | None
) -> None:
    """Windows of any sizes, any weights (0 too), out of memory, NaN; each update is the reference's."""
    trouble = Trouble()

    def loss(model: nn.Module, batch: Weighted) -> LossTerm:
        assert isinstance(model, Probe)
        trouble.forward(len(batch.value))
        total = -(model.w * batch.value * batch.weight).sum()
        return LossTerm(trouble.backward(total, len(batch.value)), float(batch.weight.sum()))

    model = Probe()
    accumulator = Accumulator(
        model, torch.optim.SGD(model.parameters(), 1.0), loss,
        non_finite=policy, non_finite_limit=99, max_grad_norm=limit,  # type: ignore[arg-type]
    )  # fmt: skip
    for window in life:
        trouble.life = window
        batches = []
        for index, size in enumerate(window.sizes):
            value = torch.tensor([numbers.uniform(-9, 9) for _ in range(size)], dtype=torch.float64)
            weight = torch.tensor(
                [numbers.choice([0.0, 0.5, 1.0, 3.0]) for _ in range(size)], dtype=torch.float64
            )
            if index in window.bad:
                value[-1], weight[-1] = math.nan, 1.0
            batches.append(Weighted(value, weight))
        before = model.w.item()
        result = accumulator.window(batches)
        expected = _reference(result.non_finite, batches, accumulator, policy)
        if expected is not None and limit is not None and abs(expected) > limit:
            expected = math.copysign(limit, expected)
        assert math.isclose(model.w.item() - before, expected or 0.0, rel_tol=1e-9, abs_tol=1e-12)
        assert result.samples == sum(window.sizes)
        assert (result.skipped == "") == (expected is not None)
        assert model.w.grad is None


def _reference(
    seen: tuple[Any, ...], batches: list[Weighted], accumulator: Accumulator, policy: str
) -> float | None:
    """All samples in one batch, less the micro-batches (as they were run) that had a NaN; None: no update."""
    kept: list[tuple[float, float]] = []
    ceiling = accumulator.micro_batch_ceiling
    for batch in batches:
        many = len(batch.value)
        parts = 1 if ceiling is None or many <= ceiling else -(-many // ceiling)
        edges = [many * part // parts for part in range(parts + 1)]
        for low, high in itertools.pairwise(edges):
            value, weight = batch.value[low:high], batch.weight[low:high]
            if not bool(value.isnan().any()):
                kept += zip(value.tolist(), weight.tolist(), strict=True)
            elif policy == "skip":
                return None
    total = sum(weight for _, weight in kept)
    return sum(value * weight for value, weight in kept) / total if total else None


@settings(max_examples=20)
@given(
    life=st.lists(
        st.tuples(
            st.lists(st.lists(st.integers(0, 16), min_size=1, max_size=4), min_size=1, max_size=4), lives
        ),
        min_size=1,
        max_size=3,
    )
)
def test_a_small_gpt_under_adamw_has_the_reference_gradient_in_every_window(
    life: list[tuple[list[list[int]], Life]],
) -> None:
    """The gradient is compared, at the weights AdamW has led to, then the window is applied."""
    torch.manual_seed(0)
    model = SmallGPT(context=16)
    trouble = Trouble()

    def loss(model: nn.Module, batch: Tokens) -> LossTerm:
        trouble.forward(len(batch.x))
        term = gpt_loss(model, batch)
        return LossTerm(trouble.backward(term.total, len(batch.x)), term.weight)

    accumulator = Accumulator(
        model, make_optimizer("adamw", model.parameters(), learning_rate=1e-2), loss, max_grad_norm=1.0
    )
    for seed, (valid, window) in enumerate(life):
        trouble.life = window
        batches = [joined(rows(some, seed=31 * seed + i)) for i, some in enumerate(valid)]
        gradients, result = accumulator.gradients(batches)
        if not any(map(sum, valid)):
            assert result.skipped == "empty"
        else:
            whole = joined(batches)
            right = large_batch_gradient(model, lambda whole=whole: gpt_loss(model, whole))  # type: ignore[misc]
            assert relative_error(gradients, right) <= RELATIVE
        assert accumulator.window(batches).samples == sum(map(len, valid))


@settings(max_examples=30)
@given(window=lives, policy=st.sampled_from(["skip", "drop"]))
def test_buffers_have_seen_each_applied_micro_batch_once(window: Life, policy: str) -> None:
    """BatchNorm: its running statistics are those of the micro-batches as they ran, and no others."""
    torch.manual_seed(0)
    sizes = [size + 1 for size in window.sizes]  # one sample has no variance
    data = [torch.randn(size, 4).double() for size in sizes]
    for index in window.bad & set(range(len(data))):
        data[index][0] = math.nan
    model, twin = NormedNet(), NormedNet()
    twin.load_state_dict(model.state_dict())

    def loss(model: nn.Module, x: torch.Tensor) -> LossTerm:
        return LossTerm(model(x).square().sum(), len(x))

    accumulator = Accumulator(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        loss,
        non_finite=policy,  # type: ignore[arg-type]
    )
    result = accumulator.window(data)
    good = [x for x in data if not x.isnan().any()]
    applied = good if policy == "drop" or len(good) == len(data) else []
    for x in applied:
        twin(x)
    for found, right in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.allclose(found.double(), right.double(), rtol=RELATIVE, atol=0)
    assert (result.skipped == "") == bool(applied)
