"""What can be known before the run: things in a model or a loss that accumulation does not make exact."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch

from trainer_backend.engine.batches import Split, size, split, to_device
from trainer_backend.engine.micro_batches import Loss
from trainer_backend.engine.precision import HALF, Precision, autocast
from trainer_backend.engine.private_api import BATCH_NORM, post_accumulate_hooks
from trainer_backend.engine.snapshot import Snapshot
from trainer_backend.engine.terms import host_weight, read_terms
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import Warned
from trainer_backend.tasks import Batch, LossTerm

Trial: TypeAlias = Callable[[Batch], list[LossTerm]]


def inspect_model(
    model: torch.nn.Module,
    *,
    micro_batch_size: int | None = None,
    accumulation_steps: int = 1,
    gradient_dtype: str = "fp32",
) -> list[Warned]:
    """Warnings about a model before the run; nothing is run for them.

    Codes and their values:
    batch-norm                  modules, first, micro_batch_size, level ("high" below 16 samples, "low"),
                                momentum, suggested_momentum (1 - (1 - m)^(1/N))
    batch-norm-of-one           the same values at one sample a micro-batch, level "error"
    optimizer-in-backward       parameter: a hook may change it before the window's border
    half-gradients              parameters: gathered in half precision, inexact
    """
    found = [*_batch_norms(model, micro_batch_size, accumulation_steps), *_hooked(model)]
    halves = sum(p.dtype in HALF for p in model.parameters() if p.requires_grad)
    if gradient_dtype == "parameter" and halves:
        found.append(Warned(code="half-gradients", values={"parameters": halves}))
    return found


def inspect_loss(
    model: torch.nn.Module,
    loss: Loss,
    batch: Batch,
    *,
    device: torch.device,
    split_batch: Split | None = None,
    precision: Precision = "fp32",
) -> list[Warned]:
    """Warnings about a loss before the run: it is tried on one collated batch and on its halves.

    Model and generators are as before afterwards. `precision` is the run's. Raises GradaccError for a
    loss that a run would refuse.

    Codes and their values:
    reentrant-checkpointing     parameter: used twice under reentrant checkpointing, so hooks fire twice
    loss-half                   term, dtype: refused when the run starts
    loss-mean                   term: total is a mean, and weight says it is a sum
    loss-weight-not-additive    term: the weight of a batch is not that of its parts together
    loss-not-additive           term: the loss of a batch is not the sum of its parts'
    """
    tried = _trial(model, loss, device, precision)
    found = list(_with_its_graph(model, tried, batch))
    if not any(warned.code == "loss-half" for warned in found):
        found += _over_halves(model, tried, batch, split_batch or split)
    return found


def _batch_norms(
    model: torch.nn.Module, micro_batch_size: int | None, accumulation_steps: int
) -> Iterator[Warned]:
    """BatchNorm in train mode sees the micro-batch, not the effective batch."""
    norms = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, BATCH_NORM) and (module.training or not module.track_running_stats)
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
    yield Warned(code="batch-norm-of-one" if level == "error" else "batch-norm", values=values)


def suggested_momentum(momentum: float | None, accumulation_steps: int) -> float | None:
    """m' = 1 - (1 - m)^(1/N): N updates of the running statistics then weigh as one of the large batch."""
    if momentum is None:
        return None
    return 1.0 - math.pow(1.0 - momentum, 1.0 / accumulation_steps)


def _hooked(model: torch.nn.Module) -> Iterator[Warned]:
    """A hook after a gradient is accumulated, such as an optimizer that steps inside the backward."""
    for name, parameter in model.named_parameters():
        if any(not getattr(hook, "of_engine", False) for hook in post_accumulate_hooks(parameter)):
            yield Warned(code="optimizer-in-backward", values={"parameter": name})
            return


def _trial(model: torch.nn.Module, loss: Loss, device: torch.device, precision: Precision) -> Trial:
    """The loss of a batch on the host, in the precision that a forward has."""

    def tried(batch: Batch) -> list[LossTerm]:
        with autocast(precision, device) or contextlib.nullcontext():
            returned = loss(model, to_device(batch, device))
        return _checked(returned)

    return tried


def _checked(returned: Any) -> list[LossTerm]:  # noqa: ANN401 - the user's own
    """The terms, refused as a run would refuse them: what is looked at here would fail with no sentence.

    Totals in half precision alone come as they are, for they have a warning of their own.
    """
    if isinstance(returned, Iterable) and not isinstance(returned, torch.Tensor):
        returned = tuple(returned)
    listed = returned if isinstance(returned, tuple) else (returned,)
    half = [term for term in listed if isinstance(term, LossTerm) and _dtype(term) in HALF]
    if half:
        return half
    terms = list(read_terms(returned))
    for term in terms:
        host_weight(term)
    return terms


def _dtype(term: LossTerm) -> torch.dtype | None:
    return getattr(term.total, "dtype", None)


def _with_its_graph(model: torch.nn.Module, tried: Trial, batch: Batch) -> Iterator[Warned]:
    """Totals in half precision, and checkpoints in the graph.

    Models of transformers make checkpoints in training only; others are spared a call in that mode,
    which a loss of the user's own may count.
    """
    training = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    with _borrowed(model, training=training), _uses_counted(model) as uses:
        terms = tried(batch)
    for term in terms:
        dtype = _dtype(term)
        if dtype in HALF:
            name = str(dtype).removeprefix("torch.")
            yield Warned(code="loss-half", values={"term": term.name, "dtype": name})
            return
    yield from _reentrant(model, terms, uses)


def _over_halves(model: torch.nn.Module, tried: Trial, batch: Batch, cut: Split) -> Iterator[Warned]:
    """Whether the terms of a batch are the sums of its halves', with dropout off."""
    if size(batch) < 2:
        return
    try:
        parts = list(cut(batch, 2))
    except GradaccError:
        return  # said when it is needed: only out of memory splits a batch
    with _borrowed(model, training=False):
        whole, *halves = [_without_graph(tried(part)) for part in (batch, *parts)]
    for index, term in enumerate(whole):
        # What the task states to be the micro-batch's own is no sum, and is excused.
        code = "" if term.per_micro_batch else _additive(term, [half[index] for half in halves])
        if code:
            yield Warned(code=code, values={"term": term.name})


def _without_graph(terms: list[LossTerm]) -> list[LossTerm]:
    """The same numbers. Under `no_grad` instead, torch would warn of every reentrant checkpoint."""
    return [LossTerm(term.total.detach(), term.weight, term.name, term.per_micro_batch) for term in terms]


def _additive(whole: LossTerm, parts: list[LossTerm]) -> str:
    """Which of the three, if any, is wrong; in the precision that a forward has."""
    total, weight = float(whole.total), float(whole.weight)
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


@contextlib.contextmanager
def _uses_counted(model: torch.nn.Module) -> Iterator[Counter[torch.nn.Parameter]]:
    """How often each parameter is used meanwhile: calls of the modules that hold it."""
    uses: Counter[torch.nn.Parameter] = Counter()

    def count(module: torch.nn.Module, _given: Any) -> None:  # noqa: ANN401 - any forward's arguments
        uses.update(module.parameters(recurse=False))

    handles = [module.register_forward_pre_hook(count) for module in model.modules()]
    try:
        yield uses
    finally:
        for handle in handles:
            handle.remove()


def _reentrant(
    model: torch.nn.Module, terms: list[LossTerm], uses: Counter[torch.nn.Parameter]
) -> Iterator[Warned]:
    """Reentrant checkpoints in the graph, and a parameter of two names or of two uses.

    Each such checkpoint runs a backward of its own, so that parameter's gradient may come in parts.
    """
    names = Counter(parameter for _, parameter in model.named_parameters(remove_duplicate=False))
    again = [
        name for name, parameter in model.named_parameters() if max(names[parameter], uses[parameter]) > 1
    ]
    if again and any(_has_reentrant(term.total.grad_fn) for term in terms):
        yield Warned(code="reentrant-checkpointing", values={"parameter": again[0]})


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
def _borrowed(model: torch.nn.Module, *, training: bool) -> Iterator[None]:
    """In that mode; every module's mode, buffer and every generator is as before afterwards.

    BatchNorm is at rest in both: it refuses a single sample, and moves with each batch.
    """
    modes = {module: module.training for module in model.modules()}
    snapshot = Snapshot(model, next(model.parameters()).device)
    snapshot.take()
    for module in modes:
        module.training = training and not isinstance(module, BATCH_NORM)
    try:
        yield
    finally:
        snapshot.restore()
        for module, before in modes.items():
            module.training = before
