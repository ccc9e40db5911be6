"""What a task is: the model, its data and its loss, in code that users write themselves too.

    from trainer_backend.tasks import Batch, Datasets, LossTerm

A loss is a *sum* and its *weight* (its own denominator), not a mean: so gradients of micro-batches
of any size add up to that of the large batch (.github/HOW-IT-WORKS.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch

Batch: TypeAlias = Any
"""What `collate` returns: a tensor, or a dict, list, tuple or dataclass of tensors (and other values)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Datasets:
    """Training and validation data: map-style (`__len__`, `__getitem__`) or iterable."""

    train: Any
    validation: Any | None = None


@dataclasses.dataclass(frozen=True)
class LossTerm:
    """One term of the loss: its gradient is that of `total / weight`, over the whole window.

    `total`: 0-d fp32 or fp64 tensor, the sum of weighted element losses.
    `weight`: its denominator (int, float or 0-d tensor); 0 is valid, negative or non-finite is not.
    `per_micro_batch`: the loss belongs to the micro-batch as a whole (expert load balancing, batch-wide
    Dice), so the window's is the weighted mean over micro-batches, and not the large batch's: said, the
    certificate counts it as stated.
    """

    total: torch.Tensor
    weight: float | torch.Tensor
    name: str = "loss"
    per_micro_batch: bool = False


@runtime_checkable
class Task(Protocol):
    """Any object with these three methods; the optional ones are looked up by name.

    collate(samples: list) -> Batch
    collate_training(samples: list) -> Batch     instead of `collate` where it trains: mixing samples, say
    weights(batch) -> dict[str, float]       denominators before the forward, by term name
    split(batch, parts) -> list[Batch]       default: tensors are cut along their first dimension
    optimizer(parameters) -> Optimizer       default: the recipe's, decaying all parameters
    evaluate(model, batch) -> dict[str, LossTerm]    metrics beside the loss, as sums and weights
    count(batch) -> tuple[int, int]          samples and tokens; default: first dimension, and the weight
    """

    def model(self) -> torch.nn.Module:
        """The module to train, on the CPU, in the dtype it shall keep."""
        ...

    def datasets(self) -> Datasets:
        """Training and validation data."""
        ...

    def loss(self, model: torch.nn.Module, batch: Batch) -> LossTerm | Iterable[LossTerm]:
        """The terms of one micro-batch, which lies on the model's device."""
        ...
