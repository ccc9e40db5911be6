"""The engine's noise samples: from the micro-batches' own norms, and nothing else is changed by them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.numerics.probes import RELATIVE
from trainer_backend.engine import Accumulator, LossTerm, WindowResult
from trainer_backend.noise_scale import NoiseSample


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> LossTerm:
    """Summed squared error."""
    x, target = batch
    return LossTerm(((model(x).squeeze(1) - target) ** 2).sum(), weight=len(target))


def engine(**options: object) -> Accumulator:
    """A linear model in fp64 under SGD."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1).double()
    return Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.01), loss, **options)  # type: ignore[arg-type]


def batches(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Micro-batches of these sizes."""
    generator = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(size, 6, dtype=torch.float64, generator=generator),
            torch.randn(size, dtype=torch.float64, generator=generator),
        )
        for size in sizes
    ]


def by_hand(
    parts: list[tuple[torch.Tensor, torch.Tensor]], at: dict[str, torch.Tensor] | None = None
) -> NoiseSample:
    """The formulas of SCIENCE over gradients that plain torch gives."""
    model = engine().model
    if at is not None:
        model.load_state_dict(at)
    gradients, counts = [], []
    for part in parts:
        model.zero_grad()
        term = loss(model, part)
        torch.autograd.backward(term.total / len(part[1]))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        counts.append(float(len(part[1])))
    n, many = sum(counts), len(counts)
    mean = torch.stack([count * g for count, g in zip(counts, gradients, strict=True)]).sum(0) / n
    squares = sum(count * float(g.norm()) ** 2 for count, g in zip(counts, gradients, strict=True))
    trace = float((squares - n * float(mean.norm()) ** 2) / (many - 1))
    return NoiseSample(micro_batches=many, trace=trace, squared_gradient=float(mean.norm() ** 2 - trace / n))


def assert_same(got: NoiseSample | None, wanted: NoiseSample) -> None:
    """The same sample, to the precision of fp64."""
    assert got is not None
    assert got.micro_batches == wanted.micro_batches
    assert got.trace == pytest.approx(wanted.trace, rel=RELATIVE * 100)
    assert got.squared_gradient == pytest.approx(wanted.squared_gradient, rel=RELATIVE * 100)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_window_tells_its_noise_from_ragged_micro_batches(*, deferred: bool) -> None:
    """Weights differ, clipping comes later, and on a device the numbers come one window late."""
    found: list[WindowResult] = []
    made = engine(gradient_norm_every=1, deferred=deferred, max_grad_norm=1e-3, on_window=found.append)
    made.window(batches(4, 2, 7))
    made.flush()
    assert_same(found[0].noise, by_hand(batches(4, 2, 7)))


def test_windows_between_the_measured_ones_tell_nothing() -> None:
    """Norms cost time, so they are measured in every n-th window."""
    made = engine(gradient_norm_every=4)
    told = [made.window(batches(4, 4)).noise is not None for _ in range(9)]
    assert told == [True, False, False, False, True, False, False, False, True]


def test_a_window_of_one_micro_batch_is_run_as_two_halves_where_norms_are_measured() -> None:
    """N = 1 has a noise scale too, and the same update."""
    made, whole = engine(gradient_norm_every=2, halve_alone=True), engine(gradient_norm_every=0)
    for _ in range(2):
        assert made.window(batches(8)).micro_batches == 1  # the first window is run as it is
        whole.window(batches(8))
    at = whole.model.state_dict()
    first = made.window(batches(8))
    (x, target) = batches(8)[0]
    halves = by_hand([(x[:4], target[:4]), (x[4:], target[4:])], at)
    whole.window(batches(8))
    assert first.micro_batches == 2
    assert first.samples == 8
    assert_same(first.noise, halves)
    for one, other in zip(made.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=RELATIVE, atol=RELATIVE)
    assert made.window(batches(8)).micro_batches == 1


@pytest.mark.parametrize(
    "options",
    [{"halve_alone": False, "gradient_norm_every": 1}, {"halve_alone": True, "gradient_norm_every": 0}],
)
def test_a_window_of_one_micro_batch_stays_whole_otherwise(options: dict[str, int]) -> None:
    """Nobody else's windows are cut."""
    result = engine(**options).window(batches(8))
    assert (result.micro_batches, result.noise) == (1, None)


def test_one_sample_cannot_be_halved() -> None:
    """It is trained as it is."""
    result = engine(gradient_norm_every=1, halve_alone=True).window(batches(1))
    assert (result.micro_batches, result.noise) == (1, None)


def test_a_window_that_is_not_finite_tells_no_noise() -> None:
    """One NaN must not stay in the mean."""
    made = engine(gradient_norm_every=1)
    parts = batches(4, 4)
    parts[1][0][0, 0] = torch.nan
    assert made.window(parts).noise is None


def test_several_terms_have_no_single_mean_and_tell_no_noise() -> None:
    """Their norms are not measured."""

    def two(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> list[LossTerm]:
        term = loss(model, batch)
        other: Callable[..., LossTerm] = LossTerm
        return [term, other(term.total * 0.1, weight=1.0, name="other")]

    model = nn.Linear(6, 1).double()
    made = Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.01), two, gradient_norm_every=1)
    assert made.window(batches(4, 4)).noise is None
