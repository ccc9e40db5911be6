"""What can be seen before a run starts, in a second: things that accumulation cannot make right.

`model_findings` only looks; `loss_findings` runs one batch and leaves model and generators as they were.
The trainer tells them as `Warned`, with the same codes and values; `words.REMARKS` words them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

from trainer_backend.engine.batches import size, split, to_device
from trainer_backend.engine.snapshot import Snapshot
from trainer_backend.engine.terms import read_terms
from trainer_backend.errors import GradaccError
from trainer_backend.tasks import Batch, LossTerm
from trainer_backend.verify.report import Remark, Scalar
from trainer_backend.verify.subject import BATCH_NORM

_NAMED = 4
_MEAN_LIKE = 0.02
"""How near a total must be to the mean of its halves' totals, relative."""


def model_findings(model: torch.nn.Module, *, micro_batch_size: int) -> list[Remark]:
    """BatchNorm in train mode with its micro-batch size, and optimizers that step inside the backward."""
    found = []
    norms = [
        name
        for name, module in model.named_modules()
        if isinstance(module, BATCH_NORM) and (module.training or not module.track_running_stats)
    ]
    if norms:
        code = "batch-norm-of-one" if micro_batch_size == 1 else "batch-norm"
        values: dict[str, Scalar] = {
            "layers": len(norms),
            "micro_batch_size": micro_batch_size,
            "where": _listed(norms),
        }
        found.append(Remark(code=code, values=values))
    hooked = [
        name
        for name, parameter in model.named_parameters()
        if getattr(parameter, "_post_accumulate_grad_hooks", None)
    ]
    if hooked:
        found.append(Remark(code="optimizer-in-backward", values={"where": _listed(hooked)}))
    return found


def loss_findings(
    model: torch.nn.Module,
    loss: Callable[[torch.nn.Module, Batch], LossTerm | Iterable[LossTerm]],
    batch: Batch,
    *,
    device: torch.device,
    cut: Callable[[Batch, int], Any] | None = None,
) -> list[Remark]:
    """A gradient that arrives twice in one backward, and a loss that returns a mean.

    Raises GradaccError for what the engine would refuse too, such as a total in half precision.
    """
    snapshot = Snapshot(model, device)
    snapshot.take()
    try:
        found = _arrives_twice(model, loss, to_device(batch, device))
        snapshot.restore()
        return found + _returns_mean(model, loss, batch, device, cut or split)
    finally:
        snapshot.restore()
        for parameter in model.parameters():
            parameter.grad = None


def _arrives_twice(model: torch.nn.Module, loss: Callable[[Any, Any], Any], batch: Batch) -> list[Remark]:
    """Leaf hooks of each parameter, counted over one backward of the first term."""
    counted: Counter[str] = Counter()

    def hook_of(name: str) -> Callable[[torch.Tensor], None]:
        def count(_gradient: torch.Tensor) -> None:
            counted[name] += 1

        return count

    handles = [
        parameter.register_hook(hook_of(name))  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    try:
        total = read_terms(loss(model, batch))[0].total
        if total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()
    twice = [name for name, many in counted.items() if many > 1]
    return [Remark(code="gradient-hook-twice", values={"where": _listed(twice)})] if twice else []


def _returns_mean(
    model: torch.nn.Module,
    loss: Callable[[Any, Any], Any],
    batch: Batch,
    device: torch.device,
    cut: Callable[[Batch, int], Any],
) -> list[Remark]:
    """Whether a total is the mean of its halves' totals, where a sum is their sum."""
    if size(batch) < 2:
        return []
    try:
        halves = [read_terms(loss(model, to_device(half, device))) for half in cut(batch, 2)]
        whole = read_terms(loss(model, to_device(batch, device)))
    except GradaccError:  # a batch that cannot be split is a matter of its own
        return []
    if len(halves) != 2:
        return []
    found = []
    for index, term in enumerate(whole):
        total = term.total.item()
        parts = [half[index].total.item() for half in halves]
        if math.isfinite(total) and total and abs(total - sum(parts) / 2) <= _MEAN_LIKE * abs(total):
            found.append(Remark(code="loss-returns-mean", values={"term": term.name}))
    return found


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
