"""The learning rate over the run as the form draws it: heights, and a sentence beside them. No Qt."""

from __future__ import annotations

from typing import Final

import msgspec

from gradacc_gui.recipe import estimate
from gradacc_gui.words import tr
from trainer_backend.config import RunConfig
from trainer_backend.errors import UsageError
from trainer_backend.published import number_text
from trainer_backend.schedule import horizon_of, schedule_of
from trainer_backend.schedule_curves import CURVES, Schedule
from trainer_backend.settings import Settings, stages

PLACES: Final = 241
"""Heights of one drawing: enough for every pixel that is seen."""


class SchedulePreview(msgspec.Struct, frozen=True):
    """The learning rate over its peak at evenly spaced samples from 0 to the end, and what it says."""

    ratios: tuple[float, ...]
    """Empty where the end is not known, or nothing changes."""
    sentence: str
    batches: tuple[float, ...] = ()
    """The effective batch over its largest at the same samples; empty where N is constant."""
    warns: bool = False
    """Whether the sentence says something that was hardly meant."""


def preview(config: RunConfig, samples_an_epoch: int | None) -> SchedulePreview:
    """What a recipe's schedule does. `samples_an_epoch`: an estimate, where the data were looked at."""
    try:
        horizon = horizon_of(config, samples_an_epoch)
    except UsageError:  # only the trainer will know how long the data are
        return SchedulePreview((), "")
    schedule = schedule_of(config, horizon)
    end = estimate.totals(config, samples_an_epoch).samples or horizon
    if horizon is not None and schedule.warmup_samples > horizon:
        words = tr("The warm-up ({warmup:,} samples) is longer than the schedule ({horizon:,} samples).")
        sentence = words.format(warmup=schedule.warmup_samples, horizon=horizon)
        return SchedulePreview(_ratios(config, schedule, end or horizon), sentence, warns=True)
    changes = _changes(config)
    if end is None or (schedule.kind == "constant" and not schedule.warmup_samples and not changes):
        return SchedulePreview((), changes)
    sentence = " · ".join(part for part in (_sentence(config, schedule, end), changes) if part)
    return SchedulePreview(_ratios(config, schedule, end), sentence, _batches(config, end))


def _ratios(config: RunConfig, schedule: Schedule, end: int) -> tuple[float, ...]:
    """The learning rate over the highest peak that the schedule of N makes."""
    peaks = [settings.learning_rate or 0.0 for settings in _by_place(config, end)]
    highest = max(peaks) or 1.0
    return tuple(schedule.ratio(_sample(end, place)) * peak / highest for place, peak in enumerate(peaks))


def _batches(config: RunConfig, end: int) -> tuple[float, ...]:
    batches = [settings.effective_batch for settings in _by_place(config, end)]
    return tuple(batch / max(batches) for batch in batches) if len(set(batches)) > 1 else ()


def _sample(end: int, place: int) -> int:
    return round(end * place / (PLACES - 1))


def _by_place(config: RunConfig, end: int) -> list[Settings]:
    """The settings at each place of the drawing; the first ones where the schedule of N counts tokens."""
    found = stages(config) if _counts_samples(config) else stages(config)[:1]
    return [
        [settings for start, settings in found if start <= _sample(end, place)][-1] for place in range(PLACES)
    ]


def _counts_samples(config: RunConfig) -> bool:
    return all(point.from_token is None for point in config.accumulation.schedule)


def _changes(config: RunConfig) -> str:
    """What the schedule of N does from the first to the last of its points; empty where there is none."""
    found = stages(config)
    if len(found) < 2:
        return ""
    first, last = found[0][1], found[-1][1]
    words = tr("Effective batch {before:,} → {after:,}")
    if not _counts_samples(config):
        words = tr("Effective batch {before:,} → {after:,} by tokens (not drawn)")
    parts = [words.format(before=first.effective_batch, after=last.effective_batch)]
    names = {
        "learning_rate": tr("learning rate"), "beta2": "β₂", "weight_decay": tr("weight decay"),
        "ema_decay": tr("EMA decay"),
    }  # fmt: skip
    for field, name in names.items():
        before, after = getattr(first, field), getattr(last, field)
        if before != after:
            shown = [number_text(float(f"{value:.4g}")) for value in (before, after)]
            parts.append(f"{name} {shown[0]} → {shown[1]}")
    return ", ".join(parts)


def _sentence(config: RunConfig, schedule: Schedule, end: int) -> str:
    peak = _by_place(config, end)[-1].learning_rate or 0.0
    parts = []
    if schedule.warmup_samples:
        words = tr("Warm-up over {count:,} samples")
        parts.append(words.format(count=schedule.warmup_samples))
    elif schedule.warmup_tokens:
        words = tr("Warm-up over {count:,} tokens (not drawn)")
        parts.append(words.format(count=schedule.warmup_tokens))
    if schedule.kind != "constant":
        last = number_text(float(f"{peak * schedule.ratio(end):.3g}"))
        words = tr("{curve} to {rate} at {count:,} samples")
        parts.append(words.format(curve=tr(CURVES[schedule.kind].title), rate=last, count=end))
    return " · ".join(parts)
