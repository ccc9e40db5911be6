"""Metrics that are read one window later, as on a GPU: the same, and nothing waits inside a window."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.numerics.probes import NormedNet, Probe, SmallGPT, gpt_loss, probe_loss, rows, y
from trainer_backend.engine import Accumulator, LossTerm, NonFiniteError, make_optimizer
from trainer_backend.protocol import Event, MicroBatchMeasured

NAN = float("nan")


class Told:
    """What an engine told, in order."""

    def __init__(self) -> None:
        self.micro_batches: list[MicroBatchMeasured] = []
        self.facts: list[Event] = []
        self.windows: list[Any] = []


def engine(
    model: nn.Module, loss: Any, told: Told, *, deferred: bool, name: str = "adamw", **options: Any
) -> Accumulator:
    """A fused optimizer; what is told is kept."""
    optimizer = make_optimizer(name, model.parameters(), learning_rate=0.01, momentum=0.9)
    return Accumulator(
        model, optimizer, loss, deferred=deferred, on_micro_batch=told.micro_batches.append,
        on_fact=told.facts.append, on_window=told.windows.append, **options,
    )  # fmt: skip


def comparable(event: MicroBatchMeasured) -> tuple[Any, ...]:
    """All but the time it took."""
    return numbers(
        event.step,
        event.index,
        event.samples,
        event.weight,
        event.loss,
        event.gradient_norm,
        event.samples_seen,
    )


def numbers(*values: float | None) -> tuple[float, ...]:
    """None as a number that nothing else has."""
    return tuple(-1.0 if value is None else value for value in values)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.1, "ema_decay": 0.9, "gradient_norm_every": 1}])
def test_late_numbers_and_updates_are_those_of_an_engine_that_waits(
    name: str, options: dict[str, Any]
) -> None:
    """fp64: scaled by an fp64 number on the device; windows of several sizes, one of them empty."""
    kept = []
    for deferred in (False, True):
        torch.manual_seed(0)
        model, told = SmallGPT(context=16), Told()
        accumulator = engine(model, gpt_loss, told, deferred=deferred, name=name, **options)
        for step, valid in enumerate([[4, 9], [3], [0, 0], [16, 2, 7]]):
            result = accumulator.window(rows(valid, seed=step))
            assert result.known == (not deferred or not any(valid))
            heard: list[int] = []
            result.when_known(lambda heard=heard: heard.append(1))  # type: ignore[misc]
            assert len(heard) == result.known
        accumulator.flush()
        kept.append((told, [p.detach().clone() for p in model.parameters()], accumulator.state_dict()))
    (one, weights, (tensors, values)), (other, others, (late_tensors, late_values)) = kept
    for a, b in zip(one.micro_batches, other.micro_batches, strict=True):
        assert comparable(a) == pytest.approx(comparable(b), rel=1e-12)
    for a, b in zip(one.windows, other.windows, strict=True):
        assert (a.step, a.updates, a.skipped, a.samples_seen) == (
            b.step,
            b.updates,
            b.skipped,
            b.samples_seen,
        )
        assert numbers(a.loss, a.gradient_norm) == pytest.approx(numbers(b.loss, b.gradient_norm), rel=1e-12)
    assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-13) for a, b in zip(weights, others, strict=True))
    assert all(torch.allclose(tensors[k], late_tensors[k], rtol=1e-10) for k in tensors)
    assert values == late_values


@pytest.mark.parametrize(
    ("name", "dtype"), [("adamw", torch.float32), ("sgd", torch.float32), ("sgd", torch.float64)]
)
def test_a_skip_needs_no_waiting_and_changes_nothing(name: str, dtype: torch.dtype) -> None:
    """The first window is not finite: parameters, moments, average and buffers stay; it is told later."""
    torch.manual_seed(0)
    model, told = NormedNet().to(dtype), Told()
    accumulator = engine(
        model,
        lambda m, x: LossTerm(m(x).square().sum(), len(x)),
        told,
        deferred=True,
        name=name,
        ema_decay=0.5,
    )
    before = {key: value.clone() for key, value in model.state_dict().items()}
    bad = torch.randn(4, 4).to(dtype)
    bad[1, 1] = NAN
    result = accumulator.window([torch.randn(3, 4).to(dtype), bad])
    assert not result.known
    assert told.facts == []
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(float(v.abs().sum()) == 0 for s in accumulator.optimizer.state.values() for v in s.values())
    assert all(torch.equal(before[k.removeprefix("ema.")], v) for k, v in accumulator.state_dict()[0].items())
    accumulator.window([torch.randn(5, 4).to(dtype)])
    (fact,) = result.non_finite
    assert (result.skipped, result.updates, fact.index, fact.step) == ("non-finite", 0, 1, 1)
    accumulator.flush()
    assert (told.windows[1].skipped, told.windows[1].updates, accumulator.updates) == ("", 1, 1)


def test_a_loss_scale_that_is_too_high_is_halved_on_the_device() -> None:
    """fp16: the update is skipped, no fact is told, and the scale is that of the window."""
    model, told = nn.Linear(2, 1), Told()
    accumulator = engine(
        model,
        lambda m, x: LossTerm(m(x).float().square().sum(), len(x)),
        told,
        deferred=True,
        precision="fp16",
    )
    accumulator.window([torch.full((2, 2), 3e3)] * 2)
    accumulator.window([torch.full((2, 2), 1e-1)] * 2)
    accumulator.flush()
    first, second = told.windows
    assert (first.skipped, first.loss_scale, told.facts) == ("loss-scale", 65536.0, [])
    assert (second.skipped, second.loss_scale, accumulator.updates) == ("", 32768.0, 1)
    assert all(event.gradient_norm is None or event.gradient_norm >= 0 for event in told.micro_batches)


def test_three_in_a_row_are_noticed_one_window_later() -> None:
    """The window that noticed it is undone, and can be run again from a checkpoint."""
    model, told = Probe(), Told()
    accumulator = engine(model, probe_loss, told, deferred=True, name="sgd")
    for _ in range(3):
        accumulator.window([y(NAN)])
    with pytest.raises(NonFiniteError) as caught:
        accumulator.window([y(1.0)])
    assert caught.value.code == "non-finite-in-a-row"
    assert (accumulator.step, model.w.item(), model.w.grad) == (3, 0.0, None)


@pytest.mark.parametrize("policy", ["drop", "halt"])
def test_policies_that_must_know_wait_once_a_window(policy: str) -> None:
    """Drop replays at once; halt leaves the state untouched."""
    model, told = Probe(), Told()
    accumulator = engine(model, probe_loss, told, deferred=True, name="sgd", non_finite=policy)
    assert accumulator.window([y(1.0), y(3.0)]).known
    assert [event.loss for event in told.micro_batches] == [0.0, 0.0]
    if policy == "halt":
        with pytest.raises(NonFiniteError):
            accumulator.window([y(NAN)])
        return
    before = model.w.item()
    result = accumulator.window([y(2.0), y(NAN)])
    assert (result.skipped, len(result.non_finite), model.w.item() > before) == ("", 1, True)


def test_a_listener_that_stops_the_run_loses_no_number() -> None:
    """All micro-batches and the window are told before its exception goes on."""

    class Stopped(BaseException):
        """As a stop now raises it."""

    seen: list[MicroBatchMeasured] = []

    def stops(event: MicroBatchMeasured) -> None:
        seen.append(event)
        raise Stopped

    model = Probe()
    windows: list[Any] = []
    accumulator = Accumulator(
        model, make_optimizer("sgd", model.parameters(), learning_rate=1.0), probe_loss,
        deferred=True, on_micro_batch=stops, on_window=windows.append,
    )  # fmt: skip
    accumulator.window([y(1.0), y(3.0)])
    with pytest.raises(Stopped):
        accumulator.window([y(5.0)])
    assert ([event.index for event in seen], len(windows)) == ([0, 1], 1)
    assert (accumulator.step, model.w.item()) == (1, 2.0)
