"""Gradient accumulation that is exact: one optimizer step with the gradient of the large batch.

It needs no application and no run directory; in a loop of your own it is ten lines:

    >>> import torch
    >>> from trainer_backend.engine import Accumulator, LossTerm, make_optimizer, parameter_groups
    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = make_optimizer("adamw", parameter_groups(model, 0.1), learning_rate=1e-3)
    >>> def loss(model, batch):
    ...     x, target = batch
    ...     total = torch.nn.functional.cross_entropy(model(x), target, reduction="sum")
    ...     return LossTerm(total, weight=len(target))
    >>> accumulator = Accumulator(model, optimizer, loss, max_grad_norm=1.0)
    >>> micro_batches = [(torch.randn(n, 4), torch.randint(2, (n,))) for n in (8, 8, 3)]
    >>> result = accumulator.window(micro_batches)
    >>> result.samples, result.micro_batches, result.updates
    (19, 3, 1)

The loss is a sum and its weight, so short and ragged micro-batches count exactly. Out of memory
makes micro-batches smaller and keeps the step; NaN skips it (or what `non_finite` says).
"""

from __future__ import annotations

from trainer_backend.engine.accumulator import Accumulator
from trainer_backend.engine.batches import Collated
from trainer_backend.engine.compilation import compile_model
from trainer_backend.engine.inspection import inspect_loss, inspect_model, suggested_momentum
from trainer_backend.engine.optimizer_step import StepOutOfMemory
from trainer_backend.engine.optimizers import (
    embeddings_of,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
    parameter_groups,
)
from trainer_backend.engine.private_api import graphs_compiled
from trainer_backend.engine.recompute import checkpoint_modules
from trainer_backend.engine.terms import auxiliary
from trainer_backend.engine.window import NonFiniteError, WindowResult, WindowTotals
from trainer_backend.engine.windows import windows
from trainer_backend.tasks import LossTerm

__all__ = [
    "Accumulator",
    "Collated",
    "LossTerm",
    "NonFiniteError",
    "StepOutOfMemory",
    "WindowResult",
    "WindowTotals",
    "auxiliary",
    "checkpoint_modules",
    "compile_model",
    "embeddings_of",
    "graphs_compiled",
    "inspect_loss",
    "inspect_model",
    "load_optimizer_state",
    "make_optimizer",
    "optimizer_state",
    "parameter_groups",
    "suggested_momentum",
    "windows",
]
