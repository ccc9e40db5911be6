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

PLACES: Final = 241
"""Heights of one drawing: enough for every pixel that is seen."""


class SchedulePreview(msgspec.Struct, frozen=True):
    """The learning rate over its peak at evenly spaced samples from 0 to the end, and what it says."""

    ratios: tuple[float, ...]
    """Empty where the end is not known, or nothing changes."""
    sentence: str
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
        return SchedulePreview(_ratios(schedule, end or horizon), sentence, warns=True)
    if end is None or (schedule.kind == "constant" and not schedule.warmup_samples):
        return SchedulePreview((), "")
    return SchedulePreview(_ratios(schedule, end), _sentence(config, schedule, end))


def _ratios(schedule: Schedule, end: int) -> tuple[float, ...]:
    return tuple(schedule.ratio(round(end * place / (PLACES - 1))) for place in range(PLACES))


def _sentence(config: RunConfig, schedule: Schedule, end: int) -> str:
    peak = config.optimizer.learning_rate
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
