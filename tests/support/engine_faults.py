"""What an engine did wrong, read off its gradient: for the tests that break an engine on purpose.

The micro-batches' own shares of the gradient, and that of the window before, are taken as a basis:
the coefficients of the engine's gradient in it say what was left out, counted twice, mis-scaled or
leaked. Right are ones, and zero for the window before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from trainer_backend.verify.certificate import decoys, scaled
from trainer_backend.verify.compare import Gradient, compare, dense
from trainer_backend.verify.plain_pass import plain_pass
from trainer_backend.verify.probe import Judged
from trainer_backend.verify.reference import Reference
from trainer_backend.verify.report import Culprit

_TOLERANCE: Final = 1e-4
"""Of a coefficient; and the share of the gradient that the basis may leave unexplained."""
_ROUNDING: Final = 2e-2
_MOST_BYTES: Final = 4 << 30
_FOLDS: Final = ("equal", "ragged", "tail", "one", "first", "out-of-memory", "clip")
MOST_NAMED: Final = 8


def engine_faults(reference: Reference, failed: Sequence[Judged]) -> list[Culprit]:
    """What the engine did in the windows that failed."""
    ranked = sorted(
        failed,
        key=lambda entry: (entry.window.precision != reference.precision, _FOLDS.index(entry.window.fold)),
    )
    wrong = [entry for entry in ranked if not _gradient_holds(reference, entry)]
    faults = tuple(dict.fromkeys(fault for entry in ranked for fault in entry.comparison.faults))
    found: list[Culprit] = []
    skipped = next((entry.seen.skipped for entry in ranked if entry.seen.skipped), "")
    if skipped:
        found.append(Culprit(code="engine-skipped", values={"reason": skipped}))
    elif "updates" in faults:
        many = next(entry.seen.updates for entry in ranked if "updates" in entry.comparison.faults)
        found.append(Culprit(code="engine-updates", values={"updates": many}))
    if wrong and not skipped:
        found.append(_gradient_culprit(reference, wrong))
    # The norm of a wrong gradient is wrong too; that need not be said twice.
    dependent = ("updates", "gradient-norm") if wrong else ("updates",)
    numbers = tuple(fault for fault in faults if fault not in dependent)
    if numbers and not skipped:
        found.append(Culprit(code="engine-numbers", where=numbers))
    return found


def _gradient_holds(reference: Reference, entry: Judged) -> bool:
    error = entry.comparison.definition_error
    return error <= entry.comparison.limit and not _bad_layers(reference, entry)


def _bad_layers(reference: Reference, entry: Judged) -> set[str]:
    limits, _ = reference.limits(entry.window.precision)
    plain, definition = reference.partition(entry.window.sizes, halved=entry.window.fold == "out-of-memory")
    difference = compare(entry.seen.gradient, scaled(definition, entry.clip))
    scale = max(difference.norm, reference.scale(plain))
    return limits.bad_layers(difference, scale, also=0.0 if entry.clip == 1.0 else entry.comparison.limit)


def _gradient_culprit(reference: Reference, wrong: Sequence[Judged]) -> Culprit:
    """Named by the first window that failed, and by which kinds of window did."""
    folds = {entry.window.fold for entry in wrong}
    first = wrong[0]
    values: dict[str, str | int | float | bool | None] = {
        "steps": first.window.steps,
        "fold": first.window.fold,
        "precision": first.window.precision,
        "error": first.comparison.definition_error,
    }
    if folds == {"clip"}:
        return Culprit(code="engine-clip", values=values)
    if folds == {"out-of-memory"}:
        return Culprit(code="engine-replay", values=values)
    return _decomposed(reference, first, values)


def _decomposed(
    reference: Reference, entry: Judged, values: dict[str, str | int | float | bool | None]
) -> Culprit:
    subject, sizes = reference.subject, entry.window.sizes
    error = entry.comparison.definition_error
    if error <= _ROUNDING and entry.window.precision != reference.precision:
        return Culprit(code="engine-rounding", values=values)
    terms = len(reference.one.terms)
    if subject.parameters * 8 * (terms * len(sizes) + 4) <= _MOST_BYTES:
        plain = plain_pass(subject, reference.parts(sizes), reference.precision, keep_parts=True)
        shares = [plain.part_gradient(index, term) for term in plain.terms for index in range(len(sizes))]
        before = _before(reference, entry)
        coefficients, unexplained = fit(entry.seen.gradient, [*shares, *([before] if before else [])])
        if unexplained <= min(_TOLERANCE, error / 10):
            if before and abs(coefficients[-1]) > _TOLERANCE:
                return Culprit(code="engine-stale", values=values | {"factor": coefficients[-1]})
            many = len(sizes)
            table = {
                term: coefficients[row * many : (row + 1) * many] for row, term in enumerate(plain.terms)
            }
            return _from_coefficients(table, values)
    bad = _bad_layers(reference, entry)
    live = [name for name, value in reference.gradient.items() if value is not None and bool(value.any())]
    if bad and len(live) > 1 and len(bad) <= len(live) / 2:
        return Culprit(code="engine-layers", where=tuple(sorted(bad))[:MOST_NAMED], values=values)
    return Culprit(code="engine-rounding" if error <= _ROUNDING else "engine-gradient", values=values)


def _before(reference: Reference, entry: Judged) -> Gradient | None:
    batches = decoys(reference, entry.window)
    if not batches:
        return None
    cast = [reference.subject.cast(batch, reference.precision) for batch in batches]
    return plain_pass(reference.subject, cast, reference.precision).gradient()


def _from_coefficients(
    table: dict[str, list[float]], values: dict[str, str | int | float | bool | None]
) -> Culprit:
    """What the coefficients say, by term and micro-batch: all of them should be 1."""
    rows = list(table.values())
    first = rows[0][0]
    if all(_close(value, first) for row in rows for value in row):
        return Culprit(code="engine-scale", values=values | {"factor": first})
    if all(_close(value, row[0]) for row in rows for value in row):
        odd = {term: row[0] for term, row in table.items() if not _close(row[0], 1.0)}
        listed = ", ".join(f"{value:.4g}" for value in odd.values())
        return Culprit(code="engine-term", where=tuple(odd), values=values | {"factors": listed})
    columns = [
        max((row[index] for row in rows), key=lambda value: abs(value - 1)) for index in range(len(rows[0]))
    ]
    wrong = [index for index, value in enumerate(columns) if not _close(value, 1.0)]
    where = tuple(f"micro-batch {index}" for index in wrong)
    listed = ", ".join(f"{value:.4g}" for value in columns)
    if all(_close(columns[index], 0.0) for index in wrong):
        return Culprit(code="engine-missing", where=where, values=values)
    if all(_close(columns[index], round(columns[index])) for index in wrong):
        return Culprit(code="engine-repeated", where=where, values=values | {"factors": listed})
    return Culprit(code="engine-weights", where=where, values=values | {"factors": listed})


def _close(one: float, two: float) -> bool:
    return abs(one - two) <= _TOLERANCE * max(abs(two), 1.0)


def fit(gradient: Gradient, basis: Sequence[Gradient]) -> tuple[list[float], float]:
    """Least squares: coefficients, and |what is left| / |gradient|."""
    size = len(basis)
    gram = torch.zeros(size, size, dtype=torch.float64)
    right = torch.zeros(size, dtype=torch.float64)
    for name in set().union(*basis):
        columns = [_flat(vector.get(name)) for vector in basis]
        target = _flat(gradient.get(name))
        for row, one in enumerate(columns):
            if one is None:
                continue
            if target is not None:
                right[row] += torch.dot(one, target)
            for column, two in enumerate(columns):
                if two is not None:
                    gram[row, column] += torch.dot(one, two)
    coefficients = torch.linalg.pinv(gram, rtol=1e-13, hermitian=True) @ right
    listed = [float(value) for value in coefficients]
    rebuilt: dict[str, torch.Tensor | None] = {}
    for factor, vector in zip(listed, basis, strict=True):
        for name, value in vector.items():
            if value is not None:
                present = rebuilt.get(name)
                rebuilt[name] = value * factor if present is None else present + value * factor
    names = dict.fromkeys((*gradient, *rebuilt))
    return listed, compare(rebuilt, {name: gradient.get(name) for name in names}).error


def _flat(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else dense(value).cpu().flatten()
