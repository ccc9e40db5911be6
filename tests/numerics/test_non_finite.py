"""NaN and infinity: what is not applied, what is restored, and who is named."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.numerics.probes import RELATIVE, NormedNet, Probe, probe, probe_loss, y
from trainer_backend.engine import Accumulator, Collated, LossTerm, NonFiniteError, make_optimizer
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import Event, NonFiniteSeen

NAN = float("nan")


def batches(*means: float) -> list[Collated]:
    """Micro-batches of one value each; sample numbers count from 100."""
    return [Collated(y(mean), indices=(100 + i,), samples=1, tokens=1) for i, mean in enumerate(means)]


@pytest.mark.parametrize(
    ("means", "bad"), [((1.0, NAN, 5.0, 6.0), 1), ((NAN, 2.0), 0), ((3.0, 4.0, math.inf), 2)]
)
@pytest.mark.parametrize("policy", ["skip", "drop", "halt"])
def test_a_non_finite_micro_batch_is_handled_as_the_policy_says(
    means: tuple[float, ...], bad: int, policy: str
) -> None:
    """Skip: no update; drop: the mean of the others; halt: untouched. Always told with its samples."""
    facts: list[Event] = []
    model, accumulator = probe(non_finite=policy, on_fact=facts.append)
    if policy == "halt":
        with pytest.raises(NonFiniteError, match="halt") as caught:
            accumulator.window(batches(*means))
        assert caught.value.code == "non-finite-halt"
        assert (accumulator.step, accumulator.samples_seen, model.w.item()) == (0, 0, 0.0)
    else:
        result = accumulator.window(batches(*means))
        others = [mean for i, mean in enumerate(means) if i != bad]
        expected = sum(others) / len(others) if policy == "drop" else 0.0
        assert model.w.item() == pytest.approx(expected, rel=RELATIVE)
        assert result.skipped == ("" if policy == "drop" else "non-finite")
        assert (result.samples, result.samples_seen) == (len(means), len(means))
        assert result.non_finite == tuple(facts)
    (fact,) = facts
    assert isinstance(fact, NonFiniteSeen)
    assert (fact.step, fact.index, fact.sample_indices, fact.policy) == (1, bad, (100 + bad,), policy)
    before = model.w.item()
    accumulator.window(batches(2.0, 4.0))
    assert model.w.item() - before == pytest.approx(3.0, rel=RELATIVE)
    assert model.w.grad is None


@pytest.mark.parametrize("policy", ["skip", "drop"])
@pytest.mark.parametrize("bad", [0, 1, 3])
def test_a_nan_that_only_the_gradient_has_is_found_by_running_each_alone(policy: str, bad: int) -> None:
    """A finite loss whose backward gives NaN (a masked square root at 0)."""

    def loss(model: nn.Module, batch: torch.Tensor) -> LossTerm:
        assert isinstance(model, Probe)
        total = -(model.w * batch).sum()
        if bool((batch < 0).any()):
            total = total + torch.where(batch > 0, (model.w * 0).sqrt(), torch.zeros_like(batch)).sum()
        return LossTerm(total, batch.numel())

    means = [2.0, 4.0, 6.0, 8.0]
    means[bad] = -1.0
    model, accumulator = probe(loss=loss, non_finite=policy)
    result = accumulator.window(batches(*means))
    (fact,) = result.non_finite
    assert (fact.index, fact.quantity, fact.sample_indices) == (bad, "gradient", (100 + bad,))
    others = [mean for mean in means if mean > 0]
    expected = sum(others) / len(others) if policy == "drop" else 0.0
    assert model.w.item() == pytest.approx(expected, rel=RELATIVE)


@pytest.mark.parametrize("policy", ["skip", "drop", "halt"])
def test_buffers_are_restored(policy: str) -> None:
    """BatchNorm's running mean would stay NaN; under drop it has seen the others, and only them."""
    torch.manual_seed(0)
    good = [torch.randn(4, 4).double() for _ in range(3)]
    bad = torch.full((4, 4), NAN).double()
    model, twin = NormedNet(), NormedNet()
    twin.load_state_dict(model.state_dict())

    def loss(model: nn.Module, x: torch.Tensor) -> LossTerm:
        return LossTerm(model(x).square().sum(), len(x))

    accumulator = Accumulator(model, torch.optim.SGD(model.parameters(), 0.1), loss, non_finite=policy)  # type: ignore[arg-type]
    if policy == "halt":
        with pytest.raises(NonFiniteError):
            accumulator.window([good[0], bad, good[1]])
    else:
        accumulator.window([good[0], bad, good[1]])
    if policy == "drop":
        with torch.no_grad():
            twin(good[0])
            twin(good[1])
    for (name, found), right in zip(model.named_buffers(), twin.buffers(), strict=True):
        assert torch.allclose(found.double(), right.double(), rtol=RELATIVE, atol=0), name


@pytest.mark.parametrize(("name", "momentum"), [("sgd", 0.9), ("sgd", 0.0), ("adamw", 0.0)])
def test_a_skipped_first_window_leaves_state_zero_and_the_second_exact(name: str, momentum: float) -> None:
    """Fused SGD with momentum would keep uninitialised memory otherwise."""
    weights = []
    for first in ([], [NAN]):
        model = Probe()
        optimizer = make_optimizer(name, model.parameters(), learning_rate=0.1, momentum=momentum)
        accumulator = Accumulator(model, optimizer, probe_loss)
        if first:
            accumulator.window([y(1.0), y(*first)])
            assert model.w.item() == 0.0
            assert all(float(v.abs().sum()) == 0 for s in optimizer.state.values() for v in s.values())
        accumulator.window([y(3.0), y(5.0)])
        accumulator.window([y(-1.0)])
        weights.append(model.w.item())
    assert weights[0] == weights[1]


def test_three_windows_in_a_row_stop_the_training() -> None:
    """A good window between starts the count again; empty ones do not."""
    _, accumulator = probe()
    accumulator.window([y(NAN)])
    accumulator.window([y(1.0)])
    accumulator.window([y(NAN)])
    accumulator.window([y()])
    assert accumulator.window([y(NAN)]).non_finite[0].in_a_row == 2
    with pytest.raises(
        NonFiniteError, match="micro-batch 1 is nan at step 6, and 3 steps in a row"
    ) as caught:
        accumulator.window([y(NAN)])
    assert caught.value.code == "non-finite-in-a-row"
    assert caught.value.result is not None
    assert caught.value.result.step == 6


def test_a_window_whose_every_micro_batch_is_dropped_is_no_update() -> None:
    """Nothing is left to step with."""
    model, accumulator = probe(non_finite="drop")
    result = accumulator.window(batches(NAN, math.inf))
    assert (result.skipped, result.updates, result.samples, len(result.non_finite)) == ("non-finite", 0, 2, 2)
    assert model.w.item() == 0.0


def test_an_overflow_of_the_loss_scale_is_no_such_event() -> None:
    """fp16: finite losses and an infinite gradient halve the scale; a NaN loss is told."""
    model = nn.Linear(2, 1)
    facts: list[Event] = []

    def loss(model: nn.Module, x: torch.Tensor) -> LossTerm:
        return LossTerm(model(x).float().square().sum(), len(x))

    accumulator = Accumulator(
        model, make_optimizer("sgd", model.parameters(), learning_rate=1e-3), loss,
        precision="fp16", on_fact=facts.append,
    )  # fmt: skip
    before = [parameter.detach().clone() for parameter in model.parameters()]
    result = accumulator.window([torch.full((2, 2), 3e3), torch.full((2, 2), 3e3)])
    assert (result.skipped, result.loss_scale, facts) == ("loss-scale", 65536.0, [])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    result = accumulator.window([torch.ones(2, 2), torch.full((2, 2), NAN)])
    assert result.skipped == "non-finite"
    assert len(facts) == 1


@pytest.mark.parametrize("deferred", [False, True])
def test_a_micro_batch_without_weight_leaves_no_nan_in_a_running_mean(*, deferred: bool) -> None:
    """Its forward reaches BatchNorm all the same; the window before it shows what is right."""
    torch.manual_seed(0)
    model = NormedNet()

    def loss(net: nn.Module, batch: tuple[torch.Tensor, float]) -> LossTerm:
        x_bf, weight = batch
        return LossTerm(net(x_bf).square().sum() * weight, weight * len(x_bf))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    accumulator = Accumulator(model, optimizer, loss, deferred=deferred)
    good, odd = torch.randn(4, 4).double(), torch.full((4, 4), float("nan")).double()
    result = accumulator.window([(good, 1.0), (odd, 0.0)])
    accumulator.flush()
    assert result.skipped == ""
    assert all(bool(buffer.isfinite().all()) for buffer in model.buffers())
    assert math.isfinite(accumulator.window([(good, 1.0)]).loss or 0.0)


def test_drop_finds_the_micro_batch_whose_second_term_is_not_finite() -> None:
    """A term with a buffer of its own gathers beside `.grad`; its gradient is looked at as well."""

    def loss(model: nn.Module, batch: torch.Tensor) -> list[LossTerm]:
        assert isinstance(model, Probe)
        odd = torch.sqrt(model.w * batch.sum())  # finite at w = 0, its slope is not
        return [LossTerm(-(model.w * batch).sum(), batch.numel()), LossTerm(odd, 1.0, "aux")]

    facts: list[NonFiniteSeen] = []
    _, accumulator = probe(loss=loss, non_finite="drop", on_fact=facts.append)
    result = accumulator.window([y(0.0, 0.0), y(2.0, 4.0)])
    assert result.skipped in ("", "non-finite")
    assert 1 in {fact.index for fact in facts}


@pytest.mark.parametrize("limit", [-1.0, 0.0, math.inf, math.nan])
def test_a_limit_of_the_norm_that_is_none_is_refused(limit: float) -> None:
    """A negative one would go uphill."""
    with pytest.raises(GradaccError, match="Give a number above 0"):
        probe(max_grad_norm=limit)
    _, accumulator = probe()
    with pytest.raises(GradaccError, match="Give a number above 0"):
        accumulator.max_grad_norm = limit


def test_a_loss_that_calls_backward_itself_is_refused() -> None:
    """Its gradient would be counted twice, once without any denominator."""

    def loss(model: nn.Module, batch: torch.Tensor) -> LossTerm:
        assert isinstance(model, Probe)
        total = -(model.w * batch).sum()
        total.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        return LossTerm(total, batch.numel())

    _, accumulator = probe(loss=loss)
    with pytest.raises(GradaccError, match=r"called \.backward\(\)"):
        accumulator.window([y(1.0, 2.0)])
