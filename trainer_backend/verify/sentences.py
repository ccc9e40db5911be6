"""The certificate's sentences, made from codes and values, in one place. No torch.

`tr` is the seam for a translation: it gets the English template with its {names}.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from trainer_backend.verify.report import Comparison, Culprit, Remark, Verdict, VerifyProgress, VerifyReport

Translate: TypeAlias = Callable[[str], str]


class Said(NamedTuple):
    """What is so, and what can be done."""

    sentence: str
    remedy: str


def english(text: str) -> str:
    """The text unchanged: English is the language of the source."""
    return text


VERDICTS: Final[dict[Verdict, str]] = {
    "equal": "Equal",
    "per-micro-batch": "Equal to the stated per-micro-batch definition",
    "not-equal": "Not equal",
}
MEANINGS: Final[dict[Verdict, str]] = {
    "equal": "N micro-batches give the gradient of the one large batch, for this model, loss and data.",
    "per-micro-batch": "The gradient is exactly that of the task's own definition, part of which belongs to "
    "each micro-batch and so is not the large batch's.",
    "not-equal": "N micro-batches do not give the gradient of the one large batch.",
}
FOLDS: Final[dict[str, str]] = {
    "one": "one batch",
    "first": "first window of a run",
    "equal": "equal parts",
    "ragged": "ragged parts",
    "tail": "tail of an epoch",
    "clip": "clipped",
    "out-of-memory": "out of memory, replayed",
}
FAULTS: Final[dict[str, str]] = {
    "updates": "the number of optimizer steps",
    "left-over": "gradients left behind the window",
    "samples": "the number of samples",
    "denominator": "the denominator D",
    "loss": "the reported loss",
    "gradient-norm": "the reported gradient norm",
}
PROGRESS: Final[dict[str, str]] = {
    "importing-torch": "Importing torch…",
    "reading-data": "Reading the data…",
    "building-model": "Building the model…",
    "choosing-size": "Timing a pass, to choose how many samples end in a minute…",
    "reference": "Computing the large batch's gradient…",
    "comparing": "Comparing N = {steps}, {fold}, {precision}…",
    "diagnosing": "Looking for what breaks equality…",
}

CULPRITS: Final[dict[str, Said]] = {
    "batch-norm": Said(
        "BatchNorm normalizes each micro-batch by its own statistics ({layers} layers): a ghost batch of"
        " {micro_batch_size} samples, not of the effective batch.",
        "Use momentum {momentum_for_steps} instead of {momentum}, so that the running statistics move once a "
        "window of {steps}; or freeze these layers (eval mode); or use GroupNorm.",
    ),
    "per-micro-batch-term": Said(
        "These loss terms belong to the micro-batch as a whole, as the task states: the window's value is "
        "their weighted mean over micro-batches.",
        "Nothing to do. Give terms that shall be the large batch's as sums over samples.",
    ),
    "returns-mean": Said(
        "This loss term is a mean: the same samples given twice give the same total, where a sum doubles.",
        "Return the sum and its weight: LossTerm(losses.sum(), weight=the number of elements summed).",
    ),
    "class-weighted-mean": Said(
        "This loss term is a mean over class weights: each micro-batch is divided by its own "
        "classes' weights.",
        "Give it its own denominator: reduction='sum', and weight = class_weights[targets].sum().",
    ),
    "other-denominator": Said(
        "This loss term is a mean times another count than its own denominator.",
        "Use reduction='sum', and give what the mean divides by (the valid elements) as the weight.",
    ),
    "ratio": Said(
        "This loss term is a ratio over the whole micro-batch (such as Dice, or a mean over valid elements).",
        "Return numerator and denominator as total and weight; where it is not such a ratio (Dice), sum it"
        " per sample, or state it: LossTerm(…, per_micro_batch=True).",
    ),
    "in-batch-negatives": Said(
        "Each sample is scored against the others of its micro-batch (in-batch negatives), so fewer samples "
        "mean fewer negatives.",
        "GradCache gives the large batch exactly (two forwards); or state it: LossTerm(…, "
        "per_micro_batch=True).",
    ),
    "model-mixes-samples": Said(
        "What the model computes for a sample depends on the other samples of its micro-batch; first in "
        "{module}.",
        "Look there for a mean, a norm, attention or recurrence over the batch dimension (also a wrong "
        "batch_first); where it is meant, state it: LossTerm(…, per_micro_batch=True).",
    ),
    "collate-mixes-samples": Said(
        "collate mixes samples of a micro-batch with one another (as MixUp and CutMix do), so N "
        "micro-batches mix other samples than one large batch; the sums over what was collated are exact.",
        "Where that is meant, state it: LossTerm(…, per_micro_batch=True); else mix in the data set, sample "
        "by sample.",
    ),
    "samples-influence-each-other": Said(
        "Samples of a micro-batch influence each other in this loss term, so it is not a sum over samples.",
        "With in-batch negatives, GradCache gives the large batch exactly; a statistic over the batch can be "
        "taken per sample; else state it: LossTerm(…, per_micro_batch=True).",
    ),
    "weight-not-additive": Said(
        "The weights of the micro-batches do not add up to the large batch's ({weights_of_parts} against "
        "{weight}): the weight depends on what is collated together.",
        "Count only valid elements (no padding), each in exactly one micro-batch.",
    ),
    "collate": Said(
        "Collating other samples together changes a sample's own loss: padding is not masked out.",
        "Mask padding in the model and in the loss, or pad every sample to one length.",
    ),
    "random-numbers": Said(
        "The same batch gives another gradient with other random numbers, dropout switched off.",
        "Look for rand, bernoulli or noise in the forward pass or the loss; use nn.Dropout for dropout.",
    ),
    "state": Said(
        "A forward pass leaves something behind that changes the next one.",
        "Let no value that the forward uses be kept in the model or the task from one micro-batch to "
        "the next; "
        "update it once a window.",
    ),
    "order": Said(
        "The same samples in reversed order give another gradient: the loss depends on the place in "
        "the batch.",
        "Weigh each sample by itself, not by its index in the batch.",
    ),
    "half-precision": Said(
        "Part of the gradient is computed in half precision whatever the run's precision is.",
        "Take .half(), .bfloat16() or a fixed autocast off the model and the loss; sum losses in fp32.",
    ),
    "non-finite": Said(
        "The gradient is not finite for the samples taken.",
        "Look at these samples and the loss (log of 0, division by a count of 0) before training.",
    ),
    "engine-skipped": Said(
        "The engine skipped the window ({reason}).",
        "Look for a loss or gradient that overflows in the run's precision.",
    ),
    "engine-fault": Said(
        "gradacc's engine did not keep to the task's own definition: N = {steps} in {precision}, "
        "error {error}.",
        "This is a fault in gradacc, not in your task. Please report it, with this certificate as JSON.",
    ),
    "unknown": Said(
        "The gradients differ, and no known cause fits.",
        "Compare the worst layers below with what the model does in them.",
    ),
}
REMARKS: Final[dict[str, str]] = {
    "fp64-cannot-run": "fp64 cannot run here ({reason}), so fp32 and its floor are the reference: faults"
    " below 1e-5 are not detected.",
    "large-batch-does-not-fit": "The large batch of {wanted} samples does not fit in memory. "
    "{samples} samples were "
    "compared with one batch; all {wanted} only between two cuts and two orders.",
    "generator-out-of-reach": "Random numbers come from {generator}, which a window that is replayed (after "
    "out of memory) and a resume cannot take back. Keep it as an attribute of the model or the task.",
    "collate-draws-lots": "Collating draws random numbers, so one collated batch was cut by split() instead.",
    "fewer-samples": "{samples} samples instead of {wanted}, which would take about {minutes} minutes here; "
    "--samples sets another number.",
    "too-few-samples": "{samples} samples are too few for N = {steps}.",
    "cannot-split": "Batches cannot be split, so a run cannot recover from out of memory: {reason}",
    "fp32-inside": "Something rounds to fp32 inside the fp64 run ({where}), so its limit is that of fp32.",
    "weights-in-fp32": "The loss counts weights in fp32, so denominators of the same samples differ "
    "by rounding; "
    "sum them in fp64 for exact ones.",
    "half-inside": "Something computes in half precision inside the fp64 run ({where}).",
    "precision-is-coarse": "One batch in {precision} already differs from fp64 by {error}; this error comes"
    " from the precision, not from accumulation.",
    "task-warned": "The task warns: {code}.",
    "optimizer-in-backward": "A hook on {parameter} runs inside the backward: an optimizer that steps there "
    "sees one micro-batch, not the window.",
    "reentrant-checkpointing": "Under reentrant checkpointing {parameter} is used more than once, so its "
    "gradient may come in parts: norms of single micro-batches are then not known. Use use_reentrant=False.",
    "half-gradients": "{parameters} parameters gather their gradients in half precision, which is inexact; "
    "accumulation.gradient_dtype = fp32 is exact.",
    "batch-norm": "{modules} BatchNorm layers in train mode see {micro_batch_size} samples at a time.",
    "batch-norm-of-one": "{modules} BatchNorm layers in train mode, {first} first, see a single sample at a"
    " time in the run: each is normalised by itself, or refused where it has one value"
    " per channel. Use a larger micro-batch, freeze them, or use GroupNorm.",
}


def culprit(entry: Culprit, tr: Translate = english) -> tuple[str, str]:
    """What is so, and what can be done."""
    sentence, remedy = CULPRITS[entry.code]
    values = _Shown(entry.values)
    if entry.code == "batch-norm" and "momentum" not in entry.values:
        remedy = "Freeze these layers (eval mode), or use GroupNorm."
    where = ", ".join(FAULTS.get(name, name) for name in entry.where)
    told = tr(sentence).format_map(values)
    return (f"{told} ({where})" if entry.code == "engine-fault" and where else told), tr(remedy).format_map(
        values
    )


def remark(entry: Remark, tr: Translate = english) -> str:
    """A remark in words."""
    return tr(REMARKS[entry.code]).format_map(_Shown(entry.values))


def progress(entry: VerifyProgress, tr: Translate = english) -> str:
    """The step of a certificate that runs now, in words."""
    values = dict(entry.values)
    if "fold" in values:
        values["fold"] = tr(FOLDS[str(values["fold"])])
    return tr(PROGRESS[entry.code]).format_map(_Shown(values))


def headline(report: VerifyReport, tr: Translate = english) -> str:
    """The verdict and, where it is another than the recipe declares, that."""
    said = tr(VERDICTS[report.verdict])
    if report.as_declared:
        return said
    return tr("{verdict}, and the recipe declares: {expected}").format(
        verdict=said, expected=tr(VERDICTS[report.expected]).lower()
    )


def meaning(report: VerifyReport, tr: Translate = english) -> str:
    """The verdict in a sentence with its numbers."""
    steps = sorted({entry.steps for entry in report.comparisons if entry.steps > 1})
    listed = ", ".join(map(str, steps))
    return tr("{meaning} {samples} samples, N = {steps}, {parameters} parameters.").format(
        meaning=tr(MEANINGS[report.verdict]), samples=report.samples, steps=listed,
        parameters=f"{report.parameters:,}",
    )  # fmt: skip


def sizes(entry: Comparison) -> str:
    """The samples of the micro-batches: 4 x 4, or 6, 2, 6, 2."""
    first = entry.sizes[0]
    if len(entry.sizes) > 1 and all(size == first for size in entry.sizes):
        return f"{len(entry.sizes)} × {first}"
    return ", ".join(map(str, entry.sizes))


def small(value: float | None) -> str:
    """An error: two figures and a power of ten."""
    if value is None:
        return "–"
    return "0" if value == 0 else f"{value:.1e}"


def plain(value: float | None) -> str:
    """Any number, six figures."""
    return "–" if value is None else f"{value:.6g}"


def holds(entry: Comparison, tr: Translate = english) -> str:
    """What a comparison says, in a word or two."""
    if entry.holds and entry.equals_large_batch:
        return tr("equal")
    if entry.holds:
        return tr("as defined")
    if entry.faults:
        return tr("wrong: {what}").format(what=", ".join(tr(FAULTS[name]) for name in entry.faults))
    return tr("not equal")


def worst_comparison(report: VerifyReport) -> Comparison | None:
    """The comparison whose layers are worth a look: a failed one, else the largest share of its limit."""
    if not report.comparisons:
        return None

    def badness(entry: Comparison) -> tuple[bool, bool, float]:
        share = entry.error / entry.limit if entry.limit else 0.0
        return (not entry.holds, not entry.equals_large_batch, math.inf if math.isnan(share) else share)

    return max(report.comparisons, key=badness)


def facts(report: VerifyReport, tr: Translate = english) -> list[tuple[str, str]]:
    """What was certified, and with what: names (to be translated) and values."""
    found = [
        ("Kind", report.kind),
        ("Parameters", f"{report.parameters:,}"),
        ("Samples", f"{report.samples:,}"),
        ("Loss", plain(report.loss)),
        ("Denominator D", plain(report.denominator)),
        ("Gradient norm", plain(report.gradient_norm)),
        ("Precision", report.precision),
        ("Reference", report.reference),
        ("Device", report.device),
        ("Duration", f"{report.duration_s:.1f} s"),
        ("Versions", f"gradacc {report.version}, torch {report.torch_version}"),
    ]
    for term in report.terms if len(report.terms) > 1 or not report.terms[0].additive else ():
        kind = "" if term.additive else ", " + tr("per micro-batch")
        found.append(
            (f"{tr('Term')} {term.name}", f"{plain(term.loss)}, D = {plain(term.denominator)}{kind}")
        )
    return [(name, value) for name, value in found if value]


class _Shown(dict[str, object]):
    """Values as people read them; a name without a value shows as a dash."""

    def __getitem__(self, key: str) -> object:
        value = super().__getitem__(key)
        if isinstance(value, float):
            return f"{value:.4g}"
        return "–" if value is None else value

    def __missing__(self, key: str) -> object:
        return "–"
