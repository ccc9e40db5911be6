"""What is said before a run, and what a compiled model gives."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.numerics.probes import NormedNet, large_batch_gradient, relative_error
from trainer_backend.engine import (
    Accumulator,
    LossTerm,
    compile_model,
    graphs_compiled,
    inspect_loss,
    inspect_model,
)


def codes(model: nn.Module, **options: Any) -> list[str]:
    """Codes of what was found in a model."""
    return [warned.code for warned in inspect_model(model, **options)]


def tried(model: nn.Module, loss: Any, batch: Any, **options: Any) -> list[str]:
    """Codes of what was found in a loss."""
    found = inspect_loss(model, loss, batch, device=torch.device("cpu"), **options)
    return [warned.code for warned in found]


@pytest.mark.parametrize(
    ("size", "level"), [(1, "error"), (4, "high"), (15, "high"), (16, "low"), (None, "high")]
)
def test_batch_norm_in_train_mode_is_told_with_its_micro_batch_size(size: int | None, level: str) -> None:
    """With a level, the first module's name, and the momentum that would match."""
    model = NormedNet()
    (warned,) = inspect_model(model, micro_batch_size=size, accumulation_steps=4)
    assert warned.code == ("batch-norm-of-one" if size == 1 else "batch-norm")
    assert (warned.values["level"], warned.values["first"]) == (level, "net.1")
    assert warned.values["suggested_momentum"] == pytest.approx(1 - 0.9**0.25)
    assert codes(model.eval()) == []


def test_norms_that_do_not_look_at_the_batch_are_not_told() -> None:
    """Frozen ones and LayerNorm; one without running statistics looks at it in either mode."""
    assert codes(nn.Sequential(nn.BatchNorm1d(4).eval(), nn.LayerNorm(4)), micro_batch_size=1) == []
    unmoved = nn.BatchNorm1d(4, track_running_stats=False).eval()
    assert codes(nn.Sequential(unmoved), micro_batch_size=8) == ["batch-norm"]


def test_an_optimizer_inside_the_backward_is_told() -> None:
    """A hook of the user's; the engine's own for half parameters are none."""
    model = nn.Linear(2, 2, dtype=torch.bfloat16)
    Accumulator(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x: LossTerm(m(x).sum(), 1))
    assert codes(model) == []
    model.bias.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[no-untyped-call]
    assert codes(model) == ["optimizer-in-backward"]


x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
LOSSES = {
    "a sum": (lambda m, b: LossTerm(m(b).square().sum(), len(b)), []),
    "a mean with the samples as weight": (lambda m, b: LossTerm(m(b).square().mean(), len(b)), ["loss-mean"]),
    "a mean with weight 1": (lambda m, b: LossTerm(m(b).square().mean(), 1), ["loss-weight-not-additive"]),
    "in-batch negatives": (
        lambda m, b: LossTerm((m(b) @ m(b).T).logsumexp(1).sum() + 9.0 * len(b) ** 2, len(b)),
        ["loss-not-additive"],
    ),
    "a half total": (lambda m, b: LossTerm(m(b).square().sum().half(), len(b)), ["loss-half"]),
    "in-batch negatives that the task states": (
        lambda m, b: LossTerm((m(b) @ m(b).T).logsumexp(1).sum() + 9.0 * len(b) ** 2, len(b), "nce", True),
        [],
    ),
    "two terms, one a mean": (
        lambda m, b: [LossTerm(m(b).square().sum(), len(b)), LossTerm(m(b).abs().mean(), len(b), "l1")],
        ["loss-mean"],
    ),
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_loss_is_tried_on_a_batch_and_its_halves(what: str) -> None:
    """A mean, a weight or a loss that does not add up is told; a sum is not."""
    torch.manual_seed(0)
    loss, expected = LOSSES[what]
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    state = torch.get_rng_state()
    assert tried(model, loss, x) == expected
    assert torch.equal(state, torch.get_rng_state())
    assert model[1].training
    assert all(parameter.grad is None for parameter in model.parameters())


class Tied(nn.Module):
    """One weight of two names, one of them checkpointed."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Needs an input with a gradient."""
        return self.second(checkpoint(self.first, x, use_reentrant=self.reentrant))  # type: ignore[no-any-return]


class Repeated(Tied):
    """A module that is checkpointed twice, and only in training, as in models of transformers."""

    gradient_checkpointing = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same layer again."""
        hidden: torch.Tensor = nn.functional.linear(x, self.second.weight[:4])
        for _ in range(2):
            hidden = (
                checkpoint(self.first, hidden, use_reentrant=self.reentrant)
                if self.training
                else self.first(hidden)
            )
        return hidden


@pytest.mark.parametrize("kind", [Tied, Repeated])
@pytest.mark.parametrize(("reentrant", "expected"), [(True, ["reentrant-checkpointing"]), (False, [])])
def test_reentrant_checkpointing_with_shared_weights_is_told(
    kind: type[Tied], reentrant: bool, expected: list[str]
) -> None:
    """A leaf's hooks fire twice then, as is seen here too."""
    given = x.clone().requires_grad_()
    model = kind(reentrant=reentrant)
    assert tried(model, lambda m, b: LossTerm(m(b).square().sum(), len(b)), given) == expected
    fired: list[torch.Tensor] = []
    model.first.weight.register_hook(fired.append)  # type: ignore[no-untyped-call]
    model(given).square().sum().backward()
    assert (len(fired) > 1) is reentrant


def test_a_layer_that_is_used_once_is_not_told_under_reentrant_checkpointing() -> None:
    """Its gradient comes in one part."""

    class Once(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            given: torch.Tensor = checkpoint(super().forward, x, use_reentrant=True)
            return given

    given = x.clone().requires_grad_()
    assert tried(Once(4, 4), lambda m, b: LossTerm(m(b).square().sum(), len(b)), given) == []


def test_a_total_that_only_autocast_makes_half_is_told() -> None:
    """The loss is tried in the run's precision."""

    def loss(model: nn.Module, batch: Any) -> LossTerm:
        return LossTerm(model(batch).sum(), len(batch))

    assert tried(nn.Linear(4, 2), loss, x) == []
    assert tried(nn.Linear(4, 2), loss, x, precision="bf16") == ["loss-half"]


@pytest.mark.parametrize("samples", [1, 6])
def test_looking_leaves_the_model_and_the_generators_as_they_were(samples: int) -> None:
    """No gradient, no hook, no drawn number, no moved running mean, each module in its mode."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    model[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert tried(model, lambda m, b: LossTerm(m(b).square().sum(), len(b)), x[:samples]) == []
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None and not value._backward_hooks for value in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert [module.training for module in model] == [False, True, True, True]


def test_a_compiled_model_has_the_same_gradients_and_recompilations_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """N = 3 with a short last micro-batch: another shape, another graph."""
    if importlib.util.find_spec("tqdm") is not None:  # the compiler's progress bar keeps a thread
        monkeypatch.setattr(importlib.import_module("tqdm").tqdm, "monitor_interval", 0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    data = [torch.randn(n, 4).double() for n in (4, 4, 3)]

    def loss(model: nn.Module, x: torch.Tensor) -> LossTerm:
        return LossTerm(model(x).square().sum(), len(x))

    right = large_batch_gradient(model, lambda: loss(model, torch.cat(data)))
    before = graphs_compiled()
    compile_model(model, backend="aot_eager", dynamic=False)
    for own in (False, True):
        accumulator = Accumulator(
            model, torch.optim.SGD(model.parameters(), 0.1), loss, own_gradients=own, gradient_norm_every=1
        )
        gradients, _ = accumulator.gradients(data)
        assert relative_error(gradients, right) <= 1e-12
    assert graphs_compiled() - before == 2
