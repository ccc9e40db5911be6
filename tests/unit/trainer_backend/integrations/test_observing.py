"""What the auditor reads off a gradient that arrives at the logits."""

from __future__ import annotations

import pytest
import torch

from trainer_backend.integrations.observing import coefficient_of


def logits_and_gradient(targets: torch.Tensor, divisor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities, and the gradient of a cross-entropy over `divisor`, from the logits' side."""
    torch.manual_seed(0)
    logits = torch.randn(*targets.shape, 5, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")
    (loss / divisor).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    return logits.detach().softmax(-1), logits.grad


@pytest.mark.parametrize("divisor", [1.0, 7.0, 96.0])
def test_a_targets_coefficient_is_one_over_the_divisor(divisor: float) -> None:
    """Whatever a trainer divides by can be read from the logits' gradient."""
    targets = torch.tensor([[0, 1, -100], [4, 2, 3]])
    probabilities, gradient = logits_and_gradient(targets, divisor)
    assert coefficient_of(gradient, probabilities, targets) == pytest.approx(1 / divisor, rel=1e-5)


def test_a_regression_has_no_coefficient_to_read() -> None:
    """Its labels are no classes: nothing can be looked up, and nothing may fail in the user's backward."""
    targets = torch.tensor([0.25, 1.5])
    assert coefficient_of(torch.ones(2, 1), torch.ones(2, 1), targets) == 0.0


def test_nothing_valid_gives_no_coefficient() -> None:
    """Every target is masked."""
    targets = torch.full((2, 3), -100)
    assert coefficient_of(torch.ones(2, 3, 5), torch.ones(2, 3, 5), targets) == 0.0
