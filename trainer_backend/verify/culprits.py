"""Why a comparison failed: chance, the loss, the model, or the engine; each with what shows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import torch

from trainer_backend.errors import GradaccError
from trainer_backend.protocol import Scalar
from trainer_backend.verify import partitions
from trainer_backend.verify.compare import Gradient, GradientDifference, added, compare
from trainer_backend.verify.influence import collate_mixes, is_ratio, where_samples_mix
from trainer_backend.verify.limits import CAPS
from trainer_backend.verify.plain_pass import PlainPass, plain_pass
from trainer_backend.verify.probe import Judged
from trainer_backend.verify.reference import COUNTED_ALIKE, HALF, Reference
from trainer_backend.verify.report import Culprit, Remark

_SAME: Final = 1e-6
"""Relative difference below which two totals are the same number (loss values may be fp32 inside)."""
_HALF_ROUNDS: Final = 5e-2
"""What half precision alone may be wrong by."""
_MAYBE_COLLATE: Final = frozenset(
    {"samples-influence-each-other", "model-mixes-samples", "ratio", "other-denominator"}
)
MOST_NAMED: Final = 8
DiagnoseEngine: TypeAlias = Callable[[Reference, Sequence[Judged]], list[Culprit]]
"""Names what an engine did in windows that failed."""


def find_culprits(reference: Reference, judged: Sequence[Judged], diagnose: DiagnoseEngine) -> list[Culprit]:
    """What breaks equality; empty where nothing does. Remarks are added to `reference`."""
    if not math.isfinite(reference.norm):
        return [Culprit(code="non-finite", where=_non_finite(reference.gradient))]
    _remark_on_generators(reference)
    by_chance = chance(reference)
    _remark_on_precision(reference, judged if not by_chance else [])
    found = list(by_chance)
    not_equal = [entry for entry in judged if not entry.comparison.equals_large_batch]
    if not by_chance and not_equal:
        sizes = next(
            (entry.window.sizes for entry in not_equal
             if entry.window.precision == reference.precision
             and not _adds_up(reference, entry.window.sizes)),
            None,
        )  # fmt: skip
        if sizes is not None:
            found += task_culprits(reference, sizes)
    failed = [entry for entry in judged if not entry.comparison.holds]
    if failed and not by_chance and not any(culprit.code == "state" for culprit in found):
        found += diagnose(reference, failed)
    if (not_equal or failed) and not found and (half := _half(reference)):
        found.append(Culprit(code="half-precision", where=half))
    if (not_equal or failed) and not found:
        found.append(Culprit(code="unknown", where=_worst(judged)))
    if reference.subject.by_splitting and collate_mixes(reference.subject):
        stated = set(reference.one.terms) <= reference.stated
        found.append(Culprit(code="collate-mixes-samples", stated=stated))
    return found


def engine_fault(reference: Reference, failed: Sequence[Judged]) -> list[Culprit]:
    """That the engine did not keep to the definition: no fault of the task's, so nothing finer is told.

    A skipped window is told apart: losses that overflow in the run's precision are the user's to mend.
    """
    skipped = next((entry.seen.skipped for entry in failed if entry.seen.skipped), "")
    if skipped:
        return [Culprit(code="engine-skipped", values={"reason": skipped})]
    # The reference's own precision first: there rounding explains least.
    worst = min(
        failed,
        key=lambda entry: (entry.window.precision != reference.precision, -entry.comparison.definition_error),
    )
    values: dict[str, Scalar] = {
        "steps": worst.window.steps,
        "precision": worst.window.precision,
        "error": worst.comparison.definition_error,
    }
    return [Culprit(code="engine-fault", where=worst.comparison.faults, values=values)]


def is_excused(culprits: Sequence[Culprit]) -> bool:
    """Whether all that breaks equality is a definition that the task states."""
    return bool(culprits) and all(culprit.stated for culprit in culprits)


def _half(reference: Reference) -> tuple[str, ...]:
    return tuple(place for place, dtype in reference.narrowed.items() if dtype in HALF)[:MOST_NAMED]


def _remark_on_generators(reference: Reference) -> None:
    """Generators that no replay of a window can take back."""
    subject = reference.subject
    for path in sorted(filter(subject.is_out_of_reach, subject.drawn_from)):
        reference.remarks.append(Remark(code="generator-out-of-reach", values={"generator": path}))


def _remark_on_precision(reference: Reference, judged: Sequence[Judged]) -> None:
    if reference.narrowed:
        places = ", ".join(list(reference.narrowed)[:MOST_NAMED])
        code = "half-inside" if _half(reference) else "fp32-inside"
        reference.remarks.append(Remark(code=code, values={"where": places}))
    for precision in dict.fromkeys(entry.window.precision for entry in judged):
        error = reference.limits(precision)[1].one_fold_error
        if error > 0.1:
            reference.remarks.append(
                Remark(code="precision-is-coarse", values={"precision": precision, "error": error})
            )
    if reference.weights_are_rounded:
        reference.remarks.append(Remark(code="weights-in-fp32"))
    if reference.samples_partition:
        values: dict[str, Scalar] = {"samples": reference.total, "wanted": reference.samples_partition}
        reference.remarks.append(Remark(code="large-batch-does-not-fit", values=values))


def _non_finite(gradient: Gradient) -> tuple[str, ...]:
    bad = [name for name, value in gradient.items() if value is not None and not value.isfinite().all()]
    return tuple(bad[:MOST_NAMED])


def _worst(judged: Sequence[Judged]) -> tuple[str, ...]:
    entry = max(judged, key=lambda entry: entry.comparison.error)
    return tuple(layer.name for layer in entry.comparison.worst_layers)


# -------------------------------------------------------------------------------------------- chance


def chance(reference: Reference) -> list[Culprit]:
    """Random numbers, memory from call to call, or the order of the samples, seen without any engine."""
    _, floor = reference.limits(reference.precision)
    cap = CAPS[reference.grade]
    if not floor.repeat <= cap:
        again = plain_pass(
            reference.subject, reference.parts((reference.total,)), reference.precision
        ).gradient()
        is_random = compare(again, reference.gradient).error <= cap
        code = "random-numbers" if is_random else "state"
        drawn = tuple(sorted(reference.subject.drawn_from)) if is_random else ()
        return [Culprit(code=code, where=drawn, values={"error": floor.repeat})]
    if not floor.order <= cap:
        terms = _unequal_terms_by_order(reference)
        if (module := where_samples_mix(reference)) is not None:
            return [_mixing(module, terms)]
        return [Culprit(code="order", values={"error": floor.order}, where=terms)]
    return []


def _mixing(module: str, terms: tuple[str, ...]) -> Culprit:
    """That a module computes what it gives for a sample from other samples too."""
    return Culprit(code="model-mixes-samples", where=(module or "the model's forward",), values={
        "terms": ", ".join(terms), "module": module or "the model's forward",
    })  # fmt: skip


def _unequal_terms_by_order(reference: Reference) -> tuple[str, ...]:
    order = range(reference.total - 1, -1, -1)
    backwards = plain_pass(
        reference.subject, reference.parts((reference.total,), order=order), reference.precision
    )
    return tuple(
        term
        for term in reference.one.terms
        if compare(backwards.term_gradient(term), reference.one.term_gradient(term)).error
        > CAPS[reference.grade]
    )


# ---------------------------------------------------------------------------- the model and the loss


def _adds_up(reference: Reference, sizes: tuple[int, ...]) -> bool:
    plain, gradient = reference.partition(sizes)
    limits, _ = reference.limits(reference.precision)
    return _within(
        reference, compare(gradient, reference.target(plain), at_least=reference.scale(plain)), limits.whole
    )


def _within(reference: Reference, difference: GradientDifference, limit: float) -> bool:
    limits, _ = reference.limits(reference.precision)
    return difference.error <= limit and not limits.bad_layers(difference, difference.norm)


def task_culprits(reference: Reference, sizes: tuple[int, ...]) -> list[Culprit]:
    """Why the sums over these micro-batches are not the large batch's gradient."""
    limit = reference.limits(reference.precision)[0].whole
    plain, gradient = reference.partition(sizes)
    alone = [plain_pass(reference.subject, [part], reference.precision) for part in reference.parts(sizes)]
    if not compare(_joined(alone).gradient(), gradient, at_least=reference.scale(plain)).error <= limit:
        return [Culprit(code="state", values={"micro_batches": len(sizes)})]
    found: list[Culprit] = []
    one, many = reference.one, plain
    norms = reference.subject.batch_norms()
    if norms:
        found.append(_batch_norm(reference, norms, sizes))
        one = _frozen(reference, (reference.total,))
        many = _frozen(reference, sizes)
    errors = {term: term_difference(reference, term, one, many) for term in one.terms}
    bad = [term for term, difference in errors.items() if not _within(reference, difference, limit)]
    if _half(reference):
        bad = [term for term in bad if errors[term].error > _HALF_ROUNDS]
    stated = [term for term in bad if term in reference.stated]
    if stated:
        found.append(Culprit(code="per-micro-batch-term", stated=True, where=tuple(stated)))
    unstated = [term for term in bad if term not in reference.stated]
    named = [_term_culprit(reference, term, one, many) for term in unstated]
    if any(culprit.code in _MAYBE_COLLATE for culprit in named) and _collate_is_it(
        reference, len(sizes), limit
    ):
        return [*found, Culprit(code="collate", where=tuple(unstated))]
    return found + named


def term_difference(reference: Reference, term: str, one: PlainPass, many: PlainPass) -> GradientDifference:
    """One term's gradient over micro-batches against the large batch's, denominators counted alike."""
    whole, parts = one.denominator(term), many.denominator(term)
    share: dict[str, torch.Tensor | None] = dict.fromkeys(reference.gradient)
    rounded = whole > 0 and abs(parts / whole - 1) <= COUNTED_ALIKE
    if whole > 0:
        added(share, one.by_term[term], 1.0 / (parts if rounded else whole))
    return compare(many.term_gradient(term), share, at_least=reference.scale(many))


def _joined(passes: Sequence[PlainPass]) -> PlainPass:
    """Passes over single micro-batches, as if they had been one pass."""
    first = passes[0]
    for other in passes[1:]:
        first.parts += other.parts
        for term, gradient in other.by_term.items():
            whole = first.by_term.setdefault(term, {})
            for name, value in gradient.items():
                present = whole.get(name)
                whole[name] = value if present is None else present if value is None else present + value
    return first


def _frozen(reference: Reference, sizes: tuple[int, ...]) -> PlainPass:
    model = reference.subject.model(reference.precision, freeze_batch_norm=True)
    return plain_pass(reference.subject, reference.parts(sizes), reference.precision, model=model)


def _batch_norm(reference: Reference, names: tuple[str, ...], sizes: tuple[int, ...]) -> Culprit:
    """BatchNorm as ghost batch: each micro-batch is normalised by its own statistics, as stated."""
    module = reference.subject.prototype.get_submodule(names[0])
    momentum = getattr(module, "momentum", None)
    values: dict[str, Scalar] = {
        "layers": len(names),
        "steps": len(sizes),
        "micro_batch_size": reference.subject.micro_batch_size,
    }
    if momentum is not None:
        values |= {"momentum": momentum, "momentum_for_steps": 1 - (1 - momentum) ** (1 / len(sizes))}
    return Culprit(code="batch-norm", stated=True, where=names[:MOST_NAMED], values=values)


def _collate_is_it(reference: Reference, parts: int, limit: float) -> bool:
    """Whether the loss adds up when the one collated batch is cut, and not when parts are collated."""
    subject, sizes = reference.subject, partitions.equal(reference.total, parts)
    if subject.by_splitting or parts < 2 or _adds_up(reference, sizes):
        return False
    subject.by_splitting = True
    try:
        cut = plain_pass(subject, reference.parts(sizes), reference.precision)
    except GradaccError:  # a batch that cannot be split says nothing about collating
        return False
    finally:
        subject.by_splitting = False
    return compare(cut.gradient(), reference.gradient, at_least=reference.scale(cut)).error <= limit


def _term_culprit(reference: Reference, term: str, one: PlainPass, many: PlainPass) -> Culprit:
    """What kind of loss this is, told by how it answers to the same samples given twice."""
    numbers = [*range(reference.total), *range(reference.total)]
    batch = reference.subject.cast(reference.subject.batch(numbers), reference.precision)
    model = reference.subject.model(
        reference.precision, freeze_batch_norm=bool(reference.subject.batch_norms())
    )
    twice = plain_pass(reference.subject, [batch], reference.precision, model=model).parts[0]
    once = one.parts[0]
    growth = twice.totals[term] / once.totals[term] if once.totals[term] else math.nan
    weights = math.fsum(part.weights[term] for part in many.parts)
    values: dict[str, Scalar] = {
        "weight": once.weights[term],
        "weights_of_parts": weights,
    }
    means = [call for call in reference.heard if call.reduction == "mean"]
    has_class_weights = any(call.class_weights for call in means)
    if any(call.square for call in reference.heard):
        code = "in-batch-negatives"
    elif has_class_weights and (_same(growth, 1.0) or _same(growth, 2.0)):
        code = "class-weighted-mean"
    elif _same(growth, 1.0):
        code = "returns-mean"
    elif not _same(weights, once.weights[term]):
        code = "weight-not-additive"
    elif means and _same(growth, 2.0):
        code = "other-denominator"
    elif is_ratio(reference, term):
        code = "ratio"
    elif (module := where_samples_mix(reference)) is not None:
        return _mixing(module, (term,))
    else:
        code = "samples-influence-each-other"
    if means:
        values["function"] = means[0].function
    return Culprit(code=code, where=(term,), values=values)


def _same(one: float, two: float) -> bool:
    return abs(one - two) <= _SAME * max(abs(two), 1e-30)
