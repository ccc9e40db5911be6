"""A run's schedule from its recipe: where it ends, how long its warm-up is. Pure; no torch."""

from __future__ import annotations

import math

from trainer_backend.config import RunConfig
from trainer_backend.errors import UsageError
from trainer_backend.schedule_curves import CURVES, DEFAULT_TIMESCALE_STEPS, Schedule


def needs_horizon(config: RunConfig) -> bool:
    """Whether the learning rate cannot be known without knowing where the schedule ends."""
    return CURVES[config.schedule.kind].needs_end or bool(config.schedule.warmup_ratio)


def horizon_of(config: RunConfig, samples_per_epoch: int | None) -> int | None:
    """Where the schedule ends, in samples, fixed when the run starts. Raises UsageError.

    Given, else the run's own length: its samples, its epochs, or its steps at the first effective batch.
    """
    run = config.run
    if config.schedule.samples is not None:
        return config.schedule.samples
    if run.max_samples is not None:
        return run.max_samples
    if run.max_optimizer_steps is not None:
        return run.max_optimizer_steps * config.effective_batch
    if run.epochs is not None and samples_per_epoch is not None:
        return run.epochs * samples_per_epoch
    if not needs_horizon(config):
        return None
    asked = config.schedule
    what = f"schedule.kind = {asked.kind}" if CURVES[asked.kind].needs_end else "schedule.warmup_ratio"
    message = (
        f"{what} needs to know where the schedule ends, and this training data has no length."
        " Give schedule.samples, or run.max_samples instead of run.epochs."
    )
    raise UsageError(message)


def warmup_samples_of(config: RunConfig, horizon_samples: int | None) -> int:
    """The warm-up in samples: as given, in steps of the first effective batch, or a share of the horizon.

    A share is rounded up to whole optimizer steps, as transformers does (`get_warmup_steps`).
    0 where the warm-up is in tokens.
    """
    asked, batch = config.schedule, config.effective_batch
    if asked.warmup_steps is not None:
        return asked.warmup_steps * batch
    if asked.warmup_ratio and horizon_samples is not None:
        return math.ceil(math.ceil(horizon_samples / batch) * asked.warmup_ratio) * batch
    return asked.warmup_samples or 0


def schedule_of(config: RunConfig, horizon_samples: int | None) -> Schedule:
    """The run's schedule with its horizon."""
    asked = config.schedule
    warmup_samples = warmup_samples_of(config, horizon_samples)
    default_timescale = warmup_samples or DEFAULT_TIMESCALE_STEPS * config.effective_batch
    return Schedule(
        kind=asked.kind,
        warmup_samples=warmup_samples,
        warmup_tokens=asked.warmup_tokens or 0,
        warmup_from_ratio=asked.warmup_from_ratio,
        horizon_samples=horizon_samples,
        final_ratio=asked.final_ratio,
        cycles=asked.cycles,
        power=asked.power,
        timescale_samples=asked.timescale_samples or default_timescale,
        decay_ratio=asked.decay_ratio,
        decay_shape=asked.decay_shape,
        milestones=asked.milestones,
        milestone_factor=asked.milestone_factor,
    )
