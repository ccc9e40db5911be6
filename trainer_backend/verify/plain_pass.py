"""The reference that engines are held against: plain forward and backward, no engine, added up in fp64.

A window's gradient is  sum_t  (sum_i d total_ti) / (sum_i weight_ti)  for terms t and micro-batches i.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from trainer_backend.engine.batches import size, to_device
from trainer_backend.engine.precision import autocast
from trainer_backend.engine.terms import OWN_BACKWARD, host_weight, read_terms
from trainer_backend.errors import GradaccError
from trainer_backend.tasks import Batch
from trainer_backend.verify.compare import Gradient, added, dense
from trainer_backend.verify.report import ComputePrecision
from trainer_backend.verify.subject import Subject
from trainer_backend.verify.torch_modes import LossCall


class PlainMicroBatch:
    """One micro-batch of a plain pass: each term's total and weight, and its gradient where kept."""

    __slots__ = ("gradients", "samples", "stated", "totals", "weights")

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.totals: dict[str, float] = {}
        self.weights: dict[str, float] = {}
        self.stated: set[str] = set()
        self.gradients: dict[str, Gradient] = {}


class PlainPass:
    """What a plain pass gave: gradients by term (of the totals, not yet divided), and the parts' numbers."""

    def __init__(self, names: Sequence[str]) -> None:
        self.parts: list[PlainMicroBatch] = []
        self.by_term: dict[str, dict[str, torch.Tensor | None]] = {}
        self.spread = 0.0
        """Sum over micro-batches of |their share of the gradient|: what may have cancelled."""
        self._names = names
        self._norms: list[dict[str, float]] = []

    @property
    def terms(self) -> list[str]:
        """Names of the loss's terms."""
        return list(self.by_term)

    @property
    def stated(self) -> set[str]:
        """Terms that the task says belong to the micro-batch as a whole."""
        return set().union(*(part.stated for part in self.parts))

    def denominator(self, term: str) -> float:
        """The denominator D of a term over all samples."""
        return math.fsum(part.weights.get(term, 0.0) for part in self.parts)

    def mean(self, term: str) -> float | None:
        """total / D of a term; None where D is 0."""
        weight = self.denominator(term)
        total = math.fsum(part.totals[term] for part in self.parts if part.weights.get(term, 0.0) > 0)
        return total / weight if weight > 0 else None

    def loss(self) -> float | None:
        """Sum of the terms' means; None where no term has a weight."""
        means = [mean for term in self.terms if (mean := self.mean(term)) is not None]
        return math.fsum(means) if means else None

    def gradient(self, *, without: Collection[str] = ()) -> dict[str, torch.Tensor | None]:
        """The window's gradient, of all terms but those left out."""
        whole: dict[str, torch.Tensor | None] = dict.fromkeys(self._names)
        for term in self.by_term:
            if term not in without:
                added(whole, self.term_gradient(term))
        return whole

    def term_gradient(self, term: str) -> dict[str, torch.Tensor | None]:
        """One term's share of the gradient."""
        weight = self.denominator(term)
        share: dict[str, torch.Tensor | None] = dict.fromkeys(self._names)
        if weight > 0:
            added(share, self.by_term[term], 1.0 / weight)
        return share

    def part_gradient(self, index: int, term: str) -> dict[str, torch.Tensor | None]:
        """One micro-batch's share of one term's gradient (when parts were kept)."""
        share: dict[str, torch.Tensor | None] = dict.fromkeys(self._names)
        if (weight := self.denominator(term)) > 0:
            added(share, self.parts[index].gradients.get(term, {}), 1.0 / weight)
        return share

    def norms(self) -> list[float]:
        """|share of the gradient| of each micro-batch, terms added."""
        return [
            math.fsum(norm / weight for term, norm in norms.items() if (weight := self.denominator(term)) > 0)
            for norms in self._norms
        ]

    def note(self, norms: dict[str, float]) -> None:
        """Remember one micro-batch's norms by term."""
        self._norms.append(norms)


def plain_pass(
    subject: Subject,
    batches: Sequence[Batch],
    precision: ComputePrecision,
    *,
    model: torch.nn.Module | None = None,
    seed: int | None = 0,
    keep_parts: bool = False,
    heard: list[LossCall] | None = None,
    around: Callable[[torch.nn.Module], contextlib.AbstractContextManager[Any]] | None = None,
) -> PlainPass:
    """Forward and backward of each batch on one fresh model, gradients of each term added in fp64."""
    run = subject.model(precision) if model is None else model
    parameters = {name: value for name, value in run.named_parameters() if value.requires_grad}
    plain = PlainPass(tuple(parameters))
    device = subject.place(precision)
    context = None if precision == "fp64" else autocast(precision, device)
    with subject.controlled(run, precision, seed=seed, heard=heard):
        for batch in batches:
            with around(run) if around is not None else contextlib.nullcontext():
                _one(
                    plain, subject, run, parameters, to_device(batch, device), context, keep_parts=keep_parts
                )
    return plain


def _one(
    plain: PlainPass,
    subject: Subject,
    model: torch.nn.Module,
    parameters: dict[str, torch.nn.Parameter],
    batch: Batch,
    context: contextlib.AbstractContextManager[Any] | None,
    *,
    keep_parts: bool,
) -> None:
    """One micro-batch; its gradients are added to `plain`."""
    with context if context is not None else contextlib.nullcontext():
        terms = read_terms(subject.definition(model, batch))
    if any(value.grad is not None for value in parameters.values()):
        raise GradaccError(OWN_BACKWARD)
    part = PlainMicroBatch(_samples(subject, batch))
    norms: dict[str, float] = {}
    for left, term in enumerate(terms, start=1 - len(terms)):
        weight = host_weight(term)
        part.totals[term.name] = term.total.item()
        part.weights[term.name] = weight
        if getattr(term, "per_micro_batch", False):
            part.stated.add(term.name)
        whole = plain.by_term.setdefault(term.name, {})
        if weight == 0.0 or not term.total.requires_grad:
            continue
        for parameter in parameters.values():
            parameter.grad = None
        term.total.backward(retain_graph=left < 0)  # type: ignore[no-untyped-call]
        own = {name: value.grad for name, value in parameters.items() if value.grad is not None}
        added(whole, own)
        norms[term.name] = math.sqrt(math.fsum(dense(value).norm().item() ** 2 for value in own.values()))
        if keep_parts:
            kept: dict[str, torch.Tensor | None] = {}
            added(kept, own)
            part.gradients[term.name] = kept
        for parameter in parameters.values():
            parameter.grad = None
    plain.parts.append(part)
    plain.note(norms)


def _samples(subject: Subject, batch: Batch) -> int:
    count = getattr(subject.task, "count", None)
    return int(count(batch)[0]) if callable(count) else size(batch)
