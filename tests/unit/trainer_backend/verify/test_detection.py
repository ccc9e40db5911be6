"""What is seen before a run starts: BatchNorm, optimizers in the backward, doubled hooks, means."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom
from torch.utils.checkpoint import checkpoint

from trainer_backend.errors import GradaccError
from trainer_backend.tasks import LossTerm
from trainer_backend.verify.detection import loss_findings, model_findings

CPU = torch.device("cpu")


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Eight samples of two classes."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    return x, (x.sum(1) > 0).long()


def summed(model: nn.Module, given: Any) -> LossTerm:
    """Right."""
    return LossTerm(F.cross_entropy(model(given[0]), given[1], reduction="sum"), len(given[1]))


@pytest.mark.parametrize(("size", "code"), [(8, "batch-norm"), (1, "batch-norm-of-one")])
def test_batch_norm_is_told_with_its_micro_batch_size(size: int, code: str) -> None:
    """One sample at a time is worse than few."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    (found,) = model_findings(model, micro_batch_size=size)
    assert (found.code, found.values["micro_batch_size"], found.values["where"]) == (code, size, "1")


def test_frozen_batch_norm_and_other_norms_are_not_told() -> None:
    """They do not look at the batch."""
    frozen = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), nn.LayerNorm(4))
    assert model_findings(frozen, micro_batch_size=1) == []


def test_an_optimizer_in_the_backward_is_told() -> None:
    """A hook behind the accumulation of a parameter's gradient."""
    model = nn.Linear(4, 2)
    model.weight.register_post_accumulate_grad_hook(lambda value: setattr(value, "grad", None))  # type: ignore[no-untyped-call]  # torch's is untyped
    (found,) = model_findings(model, micro_batch_size=4)
    assert (found.code, found.values["where"]) == ("optimizer-in-backward", "weight")


@pytest.mark.filterwarnings("ignore:.*reentrant:UserWarning")
def test_reentrant_checkpointing_with_shared_weights_is_told() -> None:
    """The shared weight's hook fires twice in one backward."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            for _ in range(2):
                hidden = checkpoint(self.inner, hidden, use_reentrant=True)
            given: torch.Tensor = hidden
            return given

    (found,) = loss_findings(Shared(), summed, batch(), device=CPU)
    assert found.code == "gradient-hook-twice"
    assert "inner.weight" in str(found.values["where"])


def test_a_loss_that_returns_a_mean_is_told() -> None:
    """Half of the samples give about the same total."""

    def mean(model: nn.Module, given: Any) -> LossTerm:
        return LossTerm(F.cross_entropy(model(given[0]), given[1]), 1, "main")

    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    (found,) = loss_findings(model, mean, batch(), device=CPU)
    assert (found.code, found.values["term"]) == ("loss-returns-mean", "main")
    assert loss_findings(model, summed, batch(), device=CPU) == []


def test_a_half_precision_total_is_refused_by_name() -> None:
    """As the engine would."""

    def half(model: nn.Module, given: Any) -> LossTerm:
        return LossTerm(summed(model, given).total.half(), 8)

    with pytest.raises(GradaccError, match="half precision"):
        loss_findings(nn.Linear(4, 2), half, batch(), device=CPU)


def test_looking_leaves_model_and_generators_as_they_were() -> None:
    """No gradient, no hook, no drawn number, no moved running mean."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    loss_findings(model, summed, batch(), device=CPU)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None and not value._backward_hooks for value in model.parameters())
