"""Which branches there are from a checkpoint, and what their ends say. Pure; no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from tomlkit.toml_document import TOMLDocument

from trainer_backend.config import AccumulationSection
from trainer_backend.errors import UsageError
from trainer_backend.recipe import set_value
from trainer_backend.settings import Settings, with_micro_batches, with_rules

FACTORS: Final = (0.5, 1.0, 2.0, 4.0)
"""Effective batches that are tried, as multiples of the present one."""
WINDOWS: Final = 32
"""Optimizer steps at the present effective batch that a branch lasts, unless asked otherwise."""
CLEAR: Final = 2.0
"""Standard errors by which two losses must differ to be called different."""
_TABLES_LEFT_OUT: Final = ("targets", "notify", "early_stopping", "published")
"""What a branch must not act on: it is a trial, nobody is to be told of it."""


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One way to go on: the settings, and what they amount to."""

    factor: float
    settings: Settings


class BranchEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a branch ended."""

    factor: float
    effective_batch: int
    accumulation_steps: int
    learning_rate: float | None
    optimizer_steps: int
    samples: int
    loss: float | None
    """Of the validation data where there are any, else the mean over the last quarter of the samples."""
    loss_error: float | None
    """Standard error of a mean of training losses; None of a validation loss, which has the same data."""
    duration_s: float


class BranchReport(msgspec.Struct, frozen=True, kw_only=True):
    """All branches from one checkpoint."""

    from_step: int
    from_samples: int
    samples: int
    measure: str
    """"validation" or "training"."""
    ends: tuple[BranchEnd, ...]


def branches_of(settings: Settings, rules: AccumulationSection) -> list[Branch]:
    """A branch for each factor that whole micro-batches make, with the companions of the recipe's rules."""
    found = []
    for factor in FACTORS:
        many = settings.micro_batches * factor
        if many < 1 or many != int(many):
            continue
        after = with_micro_batches(settings, int(many))
        found.append(
            Branch(
                factor=factor,
                settings=msgspec.structs.replace(
                    with_rules(settings, after, settings, rules), schedule_points=0
                ),
            )
        )
    return found


def samples_for_branches(settings: Settings, asked: int | None) -> int:
    """Samples that each branch consumes: a multiple of the largest window, so all end alike."""
    largest = int(settings.effective_batch * max(FACTORS))
    wanted = settings.effective_batch * WINDOWS if asked is None else asked
    if wanted < 1:
        message = f"--samples {wanted} is not right. Give at least {largest}, one step of the largest branch."
        raise UsageError(message)
    return max(1, math.ceil(wanted / largest)) * largest


def edit_for_branch(document: TOMLDocument, branch: Branch, *, until: int, device: str | None) -> None:
    """Make a copy of the run's recipe that of a branch that ends at sample `until`."""
    values: dict[str, Any] = {
        "run.max_samples": until, "run.epochs": None, "run.max_optimizer_steps": None,
        "accumulation.gradient_accumulation_steps": branch.settings.accumulation_steps,
        "accumulation.effective_batch_size": None, "accumulation.schedule": None,
        "accumulation.tokens_per_step": None,
        "accumulation.micro_batch_size": branch.settings.micro_batch_size,
        "optimizer.learning_rate": branch.settings.learning_rate,
        "checkpoint.every_minutes": "never", "checkpoint.every_samples": None,
        "evaluation.every_samples": None,
    }  # fmt: skip
    if device is not None:
        values["run.device"] = device
    for key, value in values.items():
        set_value(document, key, value)
    for table in _TABLES_LEFT_OUT:
        document.pop(table, None)


def mean_of_last(losses: Sequence[tuple[float, int]]) -> tuple[float | None, float | None]:
    """Mean and standard error of the losses of the last quarter of the samples; (loss, samples) a window."""
    left = sum(samples for _, samples in losses) / 4
    kept: list[tuple[float, int]] = []
    for loss, samples in reversed(losses):
        if left <= 0 and len(kept) > 1:
            break
        kept.append((loss, samples))
        left -= samples
    total = sum(samples for _, samples in kept)
    if not total:
        return None, None
    mean = sum(loss * samples for loss, samples in kept) / total
    if len(kept) < 2:
        return mean, None
    spread = sum(samples * (loss - mean) ** 2 for loss, samples in kept) / total
    return mean, math.sqrt(spread / (len(kept) - 1))


def verdict(report: BranchReport) -> str:
    """What the ends say of the effective batch, in a sentence; that nothing is clear, where it is not."""
    known = [end for end in report.ends if end.loss is not None and math.isfinite(end.loss)]
    here = next((end for end in known if end.factor == 1.0), None)
    if here is None or len(known) < 2:
        return "Nothing can be compared: the present effective batch, or all others, gave no loss."
    alike = [end for end in known if end.factor > 1.0 and not _is_worse(end, here)]
    largest = max(alike, key=lambda end: end.factor, default=None)
    if largest is not None:
        return (
            f"An effective batch of {largest.effective_batch:,} loses nothing that shows over these samples,"
            f" in {largest.optimizer_steps:,} instead of {here.optimizer_steps:,} optimizer steps."
        )
    smaller = [end for end in known if end.factor < 1.0 and _is_worse(here, end)]
    if smaller:
        best = smaller[0]
        return (
            f"An effective batch of {best.effective_batch:,} learns more from the same samples: the present"
            f" one, {here.effective_batch:,}, is larger than they need."
        )
    return (
        f"Larger batches learn less from the same samples; the present one, {here.effective_batch:,}, is as"
        " good as half of it."
    )


def _is_worse(one: BranchEnd, other: BranchEnd) -> bool:
    """Whether `one` ended clearly higher: beyond the noise, or, on the same validation data, by 0.5 %."""
    assert one.loss is not None
    assert other.loss is not None
    if one.loss_error is None or other.loss_error is None:
        return one.loss > other.loss + 0.005 * abs(other.loss)
    return one.loss - other.loss > CLEAR * math.hypot(one.loss_error, other.loss_error)


def table(report: BranchReport) -> list[str]:
    """The ends, a line each."""
    lines = [
        f"{'batch':>8} {'N':>6} {'learning rate':>14} {'steps':>7} {report.measure + ' loss':>18} {'s':>8}"
    ]
    for end in report.ends:
        loss = "-" if end.loss is None else f"{end.loss:.4f}"
        error = "" if end.loss_error is None else f" ± {end.loss_error:.4f}"
        rate = "-" if end.learning_rate is None else f"{end.learning_rate:.4g}"
        lines.append(
            f"{end.effective_batch:>8,} {end.accumulation_steps:>6,} {rate:>14} {end.optimizer_steps:>7,}"
            f" {loss + error:>18} {end.duration_s:>8.1f}"
        )
    return lines
