"""What can be known before the run: things in a model or a loss that accumulation does not make exact."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from trainer_backend.engine.batches import Split, size, split, to_device
from trainer_backend.engine.micro_batches import Loss
from trainer_backend.engine.terms import read_terms
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import Warned
from trainer_backend.tasks import Batch, LossTerm

_BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the base of all of them


def inspect_model(
    model: torch.nn.Module,
    *,
    micro_batch_size: int | None = None,
    accumulation_steps: int = 1,
    loss: Loss | None = None,
    batch: Batch | None = None,
    split_batch: Split | None = None,
    device: torch.device | None = None,
    gradient_dtype: str = "fp32",
) -> list[Warned]:
    """Warnings before the run. With `loss` and one collated `batch`, the loss is tried on it and its halves.

    Codes and their values:
    batch-norm                  modules, first, micro_batch_size, level ("error" at one sample, "high"
                                below 16, "low"), momentum, suggested_momentum (1 - (1 - m)^(1/N))
    optimizer-in-backward       parameter: a hook may change it before the window's border
    reentrant-checkpointing     parameter: shared, under reentrant checkpointing: hooks fire twice
    half-gradients              parameters: gathered in half precision, inexact
    loss-half                   term, dtype: refused when the run starts
    loss-mean                   term: total is a mean, and weight says it is a sum
    loss-weight-not-additive    term: the weight of a batch is not that of its parts together
    loss-not-additive           term: the loss of a batch is not the sum of its parts'
    """
    found = [*_batch_norms(model, micro_batch_size, accumulation_steps), *_hooked(model)]
    halves = sum(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters() if p.requires_grad)
    if gradient_dtype == "parameter" and halves:
        found.append(Warned(code="half-gradients", values={"parameters": halves}))
    if loss is not None and batch is not None:
        there = device or next(model.parameters()).device
        found += _tried(model, loss, batch, split_batch or split, there)
    return found


def _batch_norms(
    model: torch.nn.Module, micro_batch_size: int | None, accumulation_steps: int
) -> Iterator[Warned]:
    """BatchNorm in train mode sees the micro-batch, not the effective batch."""
    norms = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, _BATCH_NORM) and module.training
    ]
    if not norms:
        return
    name, first = norms[0]
    level = "high"
    if micro_batch_size is not None:
        level = "error" if micro_batch_size == 1 else "high" if micro_batch_size < 16 else "low"
    values: dict[str, str | int | float | bool | None] = {
        "modules": len(norms),
        "first": name,
        "micro_batch_size": micro_batch_size,
        "level": level,
        "momentum": first.momentum,
        "suggested_momentum": suggested_momentum(first.momentum, accumulation_steps),
    }
    yield Warned(code="batch-norm", values=values)


def suggested_momentum(momentum: float | None, accumulation_steps: int) -> float | None:
    """m' = 1 - (1 - m)^(1/N): N updates of the running statistics then weigh as one of the large batch."""
    if momentum is None:
        return None
    return 1.0 - math.pow(1.0 - momentum, 1.0 / accumulation_steps)


def _hooked(model: torch.nn.Module) -> Iterator[Warned]:
    """A hook after a gradient is accumulated, such as an optimizer that steps inside the backward."""
    for name, parameter in model.named_parameters():
        hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        if any(not getattr(hook, "of_engine", False) for hook in hooks.values()):
            yield Warned(code="optimizer-in-backward", values={"parameter": name})
            return


def _tried(
    model: torch.nn.Module, loss: Loss, batch: Batch, cut: Split, device: torch.device
) -> Iterator[Warned]:
    """The loss on one batch and on its halves, with dropout off and nothing left behind."""
    with _at_rest(model):
        whole = loss(model, to_device(batch, device))
        terms = _listed(whole)
        for term in terms:
            dtype = getattr(term.total, "dtype", None)
            if dtype in (torch.float16, torch.bfloat16):
                name = str(dtype).removeprefix("torch.")
                yield Warned(code="loss-half", values={"term": term.name, "dtype": name})
                return
        terms = list(read_terms(terms))
        yield from _reentrant(model, terms)
        if size(batch) < 2:
            return
        try:
            parts = list(cut(batch, 2))
        except GradaccError:
            return  # said when it is needed: only out of memory splits a batch
        with torch.no_grad():
            halves = [_listed(loss(model, to_device(part, device))) for part in parts]
        for index, term in enumerate(terms):
            code = _additive(term, [half[index] for half in halves])
            if code:
                yield Warned(code=code, values={"term": term.name})


def _listed(returned: Any) -> list[LossTerm]:  # noqa: ANN401 - whatever the user's loss returned
    """Terms before they are checked."""
    if isinstance(returned, LossTerm):
        return [returned]
    return list(read_terms(returned)) if isinstance(returned, torch.Tensor) else list(returned)


def _additive(whole: LossTerm, parts: list[LossTerm]) -> str:
    """Which of the three, if any, is wrong; in the precision that a forward has."""
    total, weight = float(whole.total.detach()), float(whole.weight)
    totals = [float(part.total) for part in parts]
    weights = [float(part.weight) for part in parts]
    if not math.isclose(weight, sum(weights), rel_tol=1e-3, abs_tol=1e-9):
        return "loss-weight-not-additive"
    if math.isclose(total, sum(totals), rel_tol=2e-2, abs_tol=1e-6):
        return ""
    # A mean over the same elements as the weight counts gives total * W = sum(total_i * w_i).
    mean = sum(part * own for part, own in zip(totals, weights, strict=True)) / weight if weight else 0.0
    near = math.isclose(total, mean, rel_tol=2e-2, abs_tol=1e-6)
    between = min(totals) * 0.98 <= total <= max(totals) * 1.02  # a mean over other elements
    return "loss-mean" if near or between else "loss-not-additive"


def _reentrant(model: torch.nn.Module, terms: list[LossTerm]) -> Iterator[Warned]:
    """Reentrant checkpoints in the graph, and a parameter that more than one module uses."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    shared = [found[0] for found in names.values() if len(found) > 1]
    if shared and any(_has_reentrant(term.total.grad_fn) for term in terms):
        yield Warned(code="reentrant-checkpointing", values={"parameter": shared[0]})


def _has_reentrant(root: Any) -> bool:  # noqa: ANN401 - autograd's node type is not exported
    """Whether `torch.utils.checkpoint` with use_reentrant=True made a node of the graph under `root`."""
    seen: set[Any] = set()
    ahead = [root]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "CheckpointFunctionBackward":
            return True
        ahead += [below for below, _ in node.next_functions]
    return False


@contextlib.contextmanager
def _at_rest(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode, and every module's mode, RNG and `.grad` as before afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes.items():
            module.training = training
