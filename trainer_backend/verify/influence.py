"""Whether samples of a micro-batch influence one another: in collate, in a module, or in the loss."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from trainer_backend.engine.batches import tensors_of
from trainer_backend.engine.terms import host_weight, read_terms
from trainer_backend.errors import GradaccError
from trainer_backend.verify.reference import Reference
from trainer_backend.verify.subject import Subject

_FEW: Final = 4
"""Samples of the small batches that are tried."""
_SEEDS: Final = range(1, 5)
"""One of them may pair a sample with itself (one in four times): four do not."""
_EXACT: Final[dict[str, float]] = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 5e-2, "fp16": 5e-2}
"""By how much values may differ that ought to be the same, in parts of the largest: other shapes may be
computed by other kernels."""


def collate_mixes(subject: Subject) -> bool:
    """Whether what `collate` makes of a sample depends on the samples beside it, random numbers alike.

    The last sample is replaced; rows of the others must stay as they are (MixUp's and CutMix's do not).
    Batches whose shapes change with it (padding) are not compared.
    """
    few = min(_FEW, len(subject.samples) - 1)
    if few < 2:
        return False
    for seed in _SEEDS:
        one = dict(tensors_of(subject.collated(range(few), seed)))
        for other in range(few, min(len(subject.samples), few + 4)):
            two = dict(tensors_of(subject.collated([*range(few - 1), other], seed)))
            alike = [
                key for key in one.keys() & two.keys() if one[key].shape == two[key].shape and one[key].dim()
            ]
            rows = [key for key in alike if one[key].shape[0] == few]
            if any(not torch.equal(one[key][: few - 1], two[key][: few - 1]) for key in rows):
                return True
    return False


# ---------------------------------------------------------------------------------------- in the model


def where_samples_mix(reference: Reference) -> str | None:
    """The module in which what is computed for a sample first depends on the other samples; None: in none.

    The name is empty where it is the forward of the model itself.
    """
    few = min(_FEW, reference.total - 1)
    if few < 2:
        return None
    limit = _EXACT.get(reference.grade, 5e-2)
    numbers = list(range(few))
    base = _heard(reference, numbers)
    for place, kept in ((few - 1, slice(0, few - 1)), (0, slice(1, few))):
        changed = [few if number == place else number for number in numbers]
        found = _first_difference(base, _heard(reference, changed), few, kept, limit)
        if found is not None:
            return found
    return None


class _Event:
    """What a module was given or gave: its name (of the enclosing one, for what it was given) and tensors."""

    def __init__(self, name: str, tensors: list[torch.Tensor]) -> None:
        self.name = name
        self.tensors = tensors


def _heard(reference: Reference, numbers: Sequence[int]) -> list[_Event]:
    subject, precision = reference.subject, reference.precision
    model = subject.model(precision, freeze_batch_norm=bool(subject.batch_norms()))
    batch = subject.cast(subject.batch(numbers), precision)
    events: list[_Event] = []
    with subject.controlled(model, precision), torch.no_grad(), _listening(model, events):
        subject.loss(model, batch)
    return events


@contextlib.contextmanager
def _listening(model: torch.nn.Module, events: list[_Event]) -> Iterator[None]:
    """Notes each module's arguments and result, in the order in which they come."""
    stack: list[str] = []
    handles = []
    for name, module in model.named_modules():

        def enter(_module: Any, args: Any, kwargs: Any, name: str = name) -> None:  # noqa: ANN401
            if stack:  # what the whole model is given is the batch
                events.append(_Event(stack[-1], _copies((args, kwargs))))
            stack.append(name)

        def leave(_module: Any, _args: Any, given: Any, name: str = name) -> None:  # noqa: ANN401
            if stack:
                stack.pop()
            events.append(_Event(name, _copies(given)))

        handles += [
            module.register_forward_pre_hook(enter, with_kwargs=True),
            module.register_forward_hook(leave),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _copies(given: Any) -> list[torch.Tensor]:  # noqa: ANN401 - whatever a module takes or gives
    return [tensor.detach().clone() for _, tensor in tensors_of(given) if tensor.is_floating_point()]


def _first_difference(
    one: list[_Event], two: list[_Event], few: int, kept: slice, limit: float
) -> str | None:
    if [event.name for event in one] != [event.name for event in two]:
        return None  # which modules run depends on the samples: nothing can be laid side by side
    for before, after in zip(one, two, strict=True):
        for left, right in zip(before.tensors, after.tensors, strict=False):
            if left.shape != right.shape or not left.dim() or left.shape[0] != few:
                continue
            rows, others = left[kept].double(), right[kept].double()
            largest = max(rows.abs().max().item(), others.abs().max().item())
            if not (rows - others).abs().max().item() <= limit * largest:
                return before.name
    return None


# ----------------------------------------------------------------------------------------- in the loss


def is_ratio(reference: Reference, term: str) -> bool:
    """Whether a term's mean over any samples B is (a + sum_B a_i) / (s + sum_B s_i), as Dice or a mean is.

    Then r(B) · (s + sum_B s_i) - (a + sum_B a_i) = 0 for all fifteen subsets of four samples: linear in ten
    unknowns, so that a solution other than 0 is no chance. Its denominators must be positive.
    """
    few = min(_FEW, reference.total)
    rows, means = [], []
    for many in range(1, few + 1):
        for subset in itertools.combinations(range(few), many):
            mean = _mean(reference, subset, term)
            if mean is None or not math.isfinite(mean):
                return False
            inside = [1.0, *(1.0 if number in subset else 0.0 for number in range(few))]
            rows.append([mean * value for value in inside] + [-value for value in inside])
            means.append(inside)
    matrix = torch.tensor(rows, dtype=torch.float64)
    scale = matrix[:, : few + 1].abs().max().item() or 1.0
    matrix[:, : few + 1] /= scale
    if len(rows) <= matrix.shape[1]:
        return False  # too few samples to prove anything
    _, values, vectors = torch.linalg.svd(matrix)
    if values[-1].item() > _EXACT.get(reference.grade, 5e-2) * values[0].item():
        return False
    denominators = torch.tensor(means, dtype=torch.float64) @ vectors[-1][: few + 1]
    smallest, largest = denominators.abs().min().item(), denominators.abs().max().item()
    same_sign = bool((denominators > 0).all()) or bool((denominators < 0).all())
    return same_sign and smallest > 1e-6 * largest


def _mean(reference: Reference, numbers: Sequence[int], term: str) -> float | None:
    """A term's total over its weight for a few samples; None where they have no weight, or cannot be run."""
    subject, precision = reference.subject, reference.precision
    model = subject.model(precision, freeze_batch_norm=bool(subject.batch_norms()))
    batch = subject.cast(subject.batch(numbers), precision)
    try:
        # A batch of one was our idea: what a loss warns of then is no news to its author.
        with warnings.catch_warnings(), subject.controlled(model, precision), torch.no_grad():
            warnings.simplefilter("ignore")
            terms = {given.name: given for given in read_terms(subject.definition(model, batch))}
    except (GradaccError, RuntimeError, ValueError, IndexError):  # such as a loss that a single sample breaks
        return None
    weight = host_weight(terms[term]) if term in terms else 0.0
    return terms[term].total.item() / weight if weight > 0 else None
