"""Losses as no task may return them, each with words of the sentence that it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.numerics.probes import Probe
from trainer_backend.engine import LossTerm


def total(model: nn.Module) -> torch.Tensor:
    """A total that depends on the parameter."""
    assert isinstance(model, Probe)
    return model.w * 2.0


Anything: Any = LossTerm
"""To be made with what the types forbid."""

BAD_LOSSES: dict[str, tuple[Callable[[nn.Module, Any], Any], str]] = {
    "a negative weight": (lambda m, _: LossTerm(total(m), -1), "weight of loss term 'loss' is -1.0"),
    "an infinite weight": (lambda m, _: LossTerm(total(m), float("inf")), "is inf; it must be finite"),
    "a NaN weight on the device": (
        lambda m, _: LossTerm(total(m), torch.tensor(float("nan"))),
        "is nan; it must",
    ),
    "a weight of two numbers": (
        lambda m, _: LossTerm(total(m), torch.ones(2)),
        r"weight .* has shape \(2,\)",
    ),
    "a weight that is text": (
        lambda m, _: Anything(total(m), "three"),
        "weight of loss term 'loss' is 'three'",
    ),
    "a total of one row": (
        lambda m, _: LossTerm(total(m).reshape(1), 1),
        r"has shape \(1,\); it must be 0-d",
    ),
    "a total that is a number": (lambda m, _: Anything(total(m).item(), 1), "total .* is float"),
    "a half total": (lambda m, _: LossTerm(total(m).half(), 1, "ce"), "'ce' is float16: .* Sum in fp32"),
    "a bf16 total": (lambda m, _: LossTerm(total(m).bfloat16(), 1), "is bfloat16"),
    "a bare tensor": (lambda m, _: total(m), r"Return LossTerm\(total, weight\)"),
    "nothing": (lambda _m, _b: None, "returned NoneType"),
    "no term": (lambda _m, _b: [], "at least one"),
    "one name twice": (lambda m, _: [LossTerm(total(m), 1)] * 2, "no name twice"),
    "a list with a number": (lambda m, _: [LossTerm(total(m), 1), 3.0], "list with float in it"),
    "a total without a graph": (
        lambda m, batch: LossTerm(total(m).detach(), batch.numel()),
        "does not depend on any trainable",
    ),
}
