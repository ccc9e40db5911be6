"""The certificate: every window of the plan through the engine, judged, and a verdict.

Read downwards:

    certify       reference, windows in the reference precision, windows in the run's own, culprits, verdict

Two questions are kept apart. Does the *engine* hand the optimizer what the task's own sums over these
micro-batches amount to (`definition_error`)? And are these sums the *large batch's* gradient (`error`)?
The first is answered by the engine, the second by the loss and the model.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch

import trainer_backend
from trainer_backend.engine.memory import free, is_out_of_memory
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import Scalar
from trainer_backend.verify import partitions
from trainer_backend.verify.compare import Gradient, GradientDifference, compare, ratio
from trainer_backend.verify.culprits import (
    DiagnoseEngine,
    engine_fault,
    find_culprits,
    is_excused,
    term_difference,
)
from trainer_backend.verify.inspected import inspected
from trainer_backend.verify.limits import CANCELLED, Limits
from trainer_backend.verify.plain_pass import PlainPass, plain_pass
from trainer_backend.verify.probe import (
    Judged,
    MakeEngine,
    PlannedWindow,
    Seen,
    close_enough,
    run_window,
    trainers_engine,
)
from trainer_backend.verify.reference import Reference
from trainer_backend.verify.report import (
    Comparison,
    Culprit,
    Fold,
    Layer,
    Remark,
    Term,
    Verdict,
    VerifyProgress,
    VerifyReport,
)
from trainer_backend.verify.subject import Subject

STEPS: Final = (2, 4, 8)
WORST_LAYERS: Final = 5
CLIPPED: Final = 0.1
"""Of the gradient's norm is what clipping leaves of it in windows that are clipped."""
_CLIP_EPSILON: Final = 2e-6
"""torch's clip_grad_norm_ adds 1e-6 to the norm that it divides by."""
ReportProgress = Callable[[VerifyProgress], None]


def certify(
    subject: Subject,
    *,
    engine: MakeEngine = trainers_engine,
    diagnose: DiagnoseEngine = engine_fault,
    steps: Sequence[int] = STEPS,
    expected: Verdict = "equal",
    on_progress: ReportProgress | None = None,
) -> VerifyReport:
    """Compare one large batch with N micro-batches for each N of `steps`, through `engine`.

    `diagnose` names what an engine did in windows that failed.

    Raises GradaccError for what a task must not do at all (a half-precision total, a weight below 0).
    """
    started = time.time()
    report_progress = on_progress or (lambda _progress: None)
    total = wanted = len(subject.samples)
    while True:
        found = _attempt(
            subject, total, wanted, engine=engine, diagnose=diagnose, steps=steps,
            report_progress=report_progress,
        )  # fmt: skip
        if found is not None:
            return _report(*found, expected=expected, started=started)
        # What fitted once need not fit beside an engine: begin again with half as many samples.
        free(subject.device)
        total //= 2
        if total < 2 * subject.smallest:
            raise GradaccError(
                "Out of memory with a handful of samples, so nothing can be compared. Use a smaller model or "
                "shorter samples."
            )


def _attempt(
    subject: Subject,
    total: int,
    wanted: int,
    *,
    engine: MakeEngine,
    diagnose: DiagnoseEngine,
    steps: Sequence[int],
    report_progress: ReportProgress,
) -> tuple[Reference, list[Judged], list[Culprit]] | None:
    """Reference, windows and culprits over `total` samples at once, or None when memory ran out."""
    try:
        report_progress(VerifyProgress(code="reference"))
        reference = Reference(subject, total)
        reference.samples_partition = wanted if reference.total < wanted else 0
        judged = _all_judged(reference, engine, steps, report_progress)
        culprits = find_culprits(reference, judged, diagnose)
        reference.remarks += inspected(reference, culprits)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    return reference, judged, culprits


def _all_judged(
    reference: Reference, engine: MakeEngine, steps: Sequence[int], report_progress: ReportProgress
) -> list[Judged]:
    """Every window of the plan, run and judged."""
    _check(reference)
    windows = list(plan(reference, steps))
    judged: list[Judged] = []
    for done, window in enumerate(windows):
        values: dict[str, Scalar] = {
            "steps": window.steps, "fold": window.fold, "precision": window.precision,
        }  # fmt: skip
        report_progress(VerifyProgress(code="comparing", done=done, of=len(windows), values=values))
        judged.append(_judge(reference, window, engine))
    if reference.samples_partition:
        judged += _invariance(reference, engine, max(window.steps for window in windows))
    report_progress(VerifyProgress(code="diagnosing", done=len(windows), of=len(windows)))
    return judged


def _check(reference: Reference) -> None:
    loss = reference.one.loss()
    if loss is None:
        raise GradaccError(
            f"None of the {reference.total} samples taken has a weight: there is no valid element to learn "
            "from. Take more samples (--samples), or look at the task's weights."
        )


def plan(reference: Reference, steps: Sequence[int]) -> Iterator[PlannedWindow]:
    """The windows to run: every cut in the reference precision, equal and ragged parts in the run's own."""
    subject, total, best = reference.subject, reference.total, reference.precision
    usable, not_usable = partitions.usable_steps(total, steps, subject.smallest)
    if not_usable:
        values: dict[str, Scalar] = {"steps": ", ".join(map(str, not_usable)), "samples": total}
        reference.remarks.append(Remark(code="too-few-samples", values=values))
    if not usable:
        raise GradaccError(
            f"{total} samples cannot be cut in {min(steps)} micro-batches of at least {subject.smallest} "
            "each. Take more samples (--samples)."
        )
    yield PlannedWindow(1, "one", (total,), best)
    for number in usable:
        equal = partitions.equal(total, number)
        uneven = _uneven(reference, number)
        yield PlannedWindow(number, "equal", equal, best)
        if uneven != equal:
            yield PlannedWindow(number, "ragged", uneven, best)
    most, fewest = usable[-1], usable[0]
    yield PlannedWindow(fewest, "first", _uneven(reference, fewest), best)
    yield PlannedWindow(most, "tail", partitions.tail(total, most), best)
    yield PlannedWindow(most, "clip", partitions.equal(total, most), best)
    halves = partitions.equal(total, fewest)
    can_be_halved = all(size == halves[0] and size % 2 == 0 for size in halves)
    if can_be_halved and halves[0] >= 2 * subject.smallest and _splits(reference, halves):
        yield PlannedWindow(fewest, "out-of-memory", halves, best)
    own = subject.precision
    if own != best:
        yield PlannedWindow(1, "one", (total,), own)
        for number in usable:
            uneven = _uneven(reference, number)
            is_equal = uneven == partitions.equal(total, number)
            yield PlannedWindow(number, "equal" if is_equal else "ragged", uneven, own)


def _uneven(reference: Reference, steps: int) -> tuple[int, ...]:
    """Ragged parts; equal ones where one collated batch is cut, since a task's `split` makes no others."""
    if reference.subject.by_splitting:
        return partitions.equal(reference.total, steps)
    return partitions.ragged(reference.total, steps, reference.subject.smallest)


def _splits(reference: Reference, sizes: Sequence[int]) -> bool:
    """Whether the task's batches can be split; where not, a run cannot recover from out of memory."""
    try:
        reference.subject.split(reference.parts(sizes)[0], 2)
    except GradaccError as error:
        reference.remarks.append(Remark(code="cannot-split", values={"reason": str(error)}))
        return False
    return True


def _judge(reference: Reference, window: PlannedWindow, engine: MakeEngine) -> Judged:
    """Run one window, and hold what the optimizer got against both truths.

    Where it is the large batch's gradient, and so are the numbers beside it, the task's own sums over
    these micro-batches need not be run.
    """
    norm = reference.norm
    first = _against(
        reference, window, _run(reference, window, engine, norm), reference.one, reference.gradient
    )
    if first.comparison.holds and first.comparison.equals_large_batch:
        return first
    plain, definition = reference.partition(window.sizes, halved=window.fold == "out-of-memory")
    norm = compare(definition, definition).norm
    # Clipping depends on the norm, so that the window must run again with this one's.
    seen = _run(reference, window, engine, norm) if window.fold == "clip" else first.seen
    return _against(
        reference, window, seen, plain, definition, reference.limits_over(window.sizes, window.precision)
    )


def _run(reference: Reference, window: PlannedWindow, engine: MakeEngine, norm: float) -> Seen:
    return run_window(
        engine, reference.subject, reference.parts(window.sizes, window.precision), window.precision,
        steps=window.steps, before=decoys(reference, window),
        max_grad_norm=CLIPPED * norm if window.fold == "clip" and norm > 0 else None,
        out_of_memory=window.fold == "out-of-memory",
    )  # fmt: skip


def _against(
    reference: Reference,
    window: PlannedWindow,
    seen: Seen,
    plain: PlainPass,
    definition: Gradient,
    limits: Limits | None = None,
) -> Judged:
    """The comparison with a definition and with the large batch; `limits`: other than the large batch's."""
    limits = limits or reference.limits(window.precision)[0]
    norm = compare(definition, definition).norm
    clip = CLIPPED if window.fold == "clip" and norm > 0 else 1.0
    also = 0.0 if clip == 1.0 else _CLIP_EPSILON / norm
    limit = max(limits.whole, also)
    scale = max(norm, reference.scale(plain)) * clip
    by_definition = compare(seen.gradient, scaled(definition, clip), at_least=scale)
    target = reference.target(plain)
    by_large_batch = (
        by_definition
        if target is definition
        else compare(seen.gradient, scaled(target, clip), at_least=scale)
    )
    faults = _faults(seen, plain, norm, limits)
    comparison = Comparison(
        steps=window.steps,
        fold=window.fold,
        sizes=window.sizes,
        precision=window.precision,
        error=by_large_batch.error,
        definition_error=by_definition.error,
        limit=limit,
        holds=by_definition.error <= limit
        and not limits.bad_layers(by_definition, scale, also=also)
        and not faults,
        equals_large_batch=by_large_batch.error <= limit
        and not limits.bad_layers(by_large_batch, scale, also=also),
        alpha=by_large_batch.alpha,
        cosine=by_large_batch.cosine,
        loss=seen.loss,
        denominator=seen.denominator,
        gradient_norm=seen.gradient_norm,
        faults=faults,
        worst_layers=worst(by_large_batch, limits, scale, also=also),
        duration_s=seen.duration_s,
    )
    return Judged(window, comparison, seen, clip)


def decoys(reference: Reference, window: PlannedWindow) -> list[object]:
    """A window of other samples before the one that counts, of another number of micro-batches."""
    subject = reference.subject
    many = 0 if window.fold == "first" else len(subject.decoys)
    parts = min(3 if len(window.sizes) != 3 else 2, many // subject.smallest)
    if parts < 1:
        return []
    edges = [many * part // parts for part in range(parts + 1)]
    batches = [subject.batch(range(low, high), decoy=True) for low, high in itertools.pairwise(edges)]
    return [subject.cast(batch, window.precision) for batch in batches]


def scaled(gradient: Gradient, factor: float) -> Gradient:
    """`gradient` times a number."""
    if factor == 1.0:
        return gradient
    return {name: None if value is None else value * factor for name, value in gradient.items()}


def _faults(seen: Seen, plain: PlainPass, norm: float, limits: Limits) -> tuple[str, ...]:
    """Which of the numbers beside the gradient are wrong."""
    first = plain.terms[0]
    samples = sum(part.samples for part in plain.parts)
    checks = {
        "updates": seen.updates == 1 and not seen.skipped,
        "left-over": not seen.left_over,
        "samples": seen.samples == samples,
        "denominator": close_enough(seen.denominator, plain.denominator(first), 1e-6),
        "loss": limits.loss_holds(seen.loss, plain.loss(), _loss_scale(plain)),
        "gradient-norm": close_enough(seen.gradient_norm, norm, max(limits.number, 1e-6))
        or abs((seen.gradient_norm or 0.0) - norm) <= limits.number * CANCELLED * sum(plain.norms()),
    }
    return tuple(name for name, right in checks.items() if not right)


def _loss_scale(plain: PlainPass) -> float:
    """What a loss that has cancelled (rewards, log-likelihoods of both signs) is held against."""
    return sum(
        abs(part.totals[term]) / weight
        for term in plain.terms
        if (weight := plain.denominator(term)) > 0
        for part in plain.parts
    )


def worst(
    difference: GradientDifference, limits: Limits, scale: float, *, also: float = 0.0
) -> tuple[Layer, ...]:
    """The tensors with the largest errors, worst first."""
    bad = limits.bad_layers(difference, scale, also=also)
    listed = sorted(
        difference.layers,
        key=lambda layer: (layer.name in bad, _sortable(difference.layer_error(layer))),
        reverse=True,
    )
    return tuple(
        Layer(
            name=layer.name,
            error=difference.layer_error(layer),
            alpha=layer.product / layer.norm**2 if layer.norm**2 else None,
            cosine=ratio(layer.product, layer.norm * layer.other_norm)
            if layer.norm and layer.other_norm
            else None,
            holds=layer.name not in bad,
        )
        for layer in listed[:WORST_LAYERS]
    )


def _sortable(error: float) -> float:
    return math.inf if math.isnan(error) else error


def _invariance(reference: Reference, engine: MakeEngine, steps: int) -> list[Judged]:
    """All the samples, where the large batch did not fit: two cuts in two orders.

    Each window is held against the task's own sums over its micro-batches, and the second against the
    first in the large batch's stead.
    """
    subject, total, best = reference.subject, reference.samples_partition, reference.precision
    steps = max(steps, -(-total // max(1, reference.total // 2)))  # micro-batches that fit
    equal, uneven = partitions.equal(total, steps), partitions.ragged(total, steps, subject.smallest)
    if subject.by_splitting:
        uneven = equal
    backwards = None if subject.by_splitting else range(total - 1, -1, -1)
    limits, _ = reference.limits(best)
    judged: list[Judged] = []
    before: Gradient | None = None
    folds: tuple[tuple[Fold, tuple[int, ...], Sequence[int] | None], ...] = (
        ("equal", equal, None), ("ragged", uneven, backwards),
    )  # fmt: skip
    for fold, sizes, order in folds:
        plain = plain_pass(subject, reference.parts(sizes, order=order), best)
        definition = plain.gradient()
        seen = run_window(engine, subject, reference.parts(sizes, order=order), best, steps=steps)
        own = compare(seen.gradient, definition)
        other = compare(seen.gradient, before or definition)
        before = dict(seen.gradient)
        faults = _faults(seen, plain, own.norm, limits)
        comparison = Comparison(
            steps=steps, fold=fold, sizes=sizes, precision=best, error=other.error,
            definition_error=own.error, limit=limits.whole,
            holds=own.error <= limits.whole and not limits.bad_layers(own, own.norm) and not faults,
            equals_large_batch=other.error <= limits.whole and not limits.bad_layers(other, other.norm),
            alpha=other.alpha, cosine=other.cosine, loss=seen.loss, denominator=seen.denominator,
            gradient_norm=seen.gradient_norm, faults=faults, worst_layers=worst(other, limits, other.norm),
            duration_s=seen.duration_s,
        )  # fmt: skip
        judged.append(Judged(PlannedWindow(steps, fold, sizes, best), comparison, seen, 1.0))
    return judged


# --------------------------------------------------------------------------------------- the verdict


def verdict_of(comparisons: Sequence[Comparison], culprits: Sequence[Culprit]) -> Verdict:
    """`equal` where all windows hold and equal the large batch; else what excuses the rest, or not."""
    if any(not culprit.stated for culprit in culprits) or not all(entry.holds for entry in comparisons):
        return "not-equal"
    if not culprits and all(entry.equals_large_batch for entry in comparisons):
        return "equal"
    return "per-micro-batch" if is_excused(culprits) else "not-equal"


def _report(
    reference: Reference,
    judged: Sequence[Judged],
    culprits: Sequence[Culprit],
    *,
    expected: Verdict,
    started: float,
) -> VerifyReport:
    subject = reference.subject
    comparisons = tuple(entry.comparison for entry in judged)
    floors = [
        reference.limits(precision)[1]
        for precision in dict.fromkeys(entry.precision for entry in comparisons)
    ]
    return VerifyReport(
        verdict=verdict_of(comparisons, culprits),
        expected=expected,
        made_at=started,
        duration_s=time.time() - started,
        version=trainer_backend.__version__,
        torch_version=str(torch.__version__),
        device=str(subject.device),
        precision=subject.precision,
        reference=reference.precision,
        parameters=subject.parameters,
        samples=reference.total,
        samples_partition=reference.samples_partition,
        gradient_norm=reference.norm,
        loss=reference.one.loss(),
        denominator=reference.one.denominator(reference.one.terms[0]),
        terms=tuple(_term(reference, name, judged) for name in reference.one.terms),
        floors=tuple(floors),
        comparisons=comparisons,
        culprits=tuple(culprits),
        remarks=tuple(reference.remarks),
    )


def _term(reference: Reference, name: str, judged: Sequence[Judged]) -> Term:
    """One term, and whether its gradient adds up in the cut that showed a difference, if one did."""
    additive = True
    for entry in judged:
        if entry.comparison.equals_large_batch or entry.window.precision != reference.precision:
            continue
        plain, _ = reference.partition(entry.window.sizes, halved=entry.window.fold == "out-of-memory")
        difference = term_difference(reference, name, reference.one, plain)
        additive = additive and difference.error <= reference.limits(reference.precision)[0].whole
    return Term(
        name=name,
        loss=reference.one.mean(name),
        denominator=reference.one.denominator(name),
        additive=additive,
        stated=name in reference.stated,
    )
