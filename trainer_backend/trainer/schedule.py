"""The learning rate over samples consumed, so that N bends no curve. Pure; no torch."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from trainer_backend.config import RunConfig
from trainer_backend.errors import UsageError


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A warm-up from 0, then the curve down to `final_ratio` at the horizon, and flat behind it."""

    kind: Literal["constant", "cosine", "linear"]
    warmup_samples: int
    horizon_samples: int | None
    """None only where the curve needs no end (constant)."""
    final_ratio: float

    def ratio(self, samples: int) -> float:
        """Learning rate over its peak for the window that ends when `samples` were consumed."""
        if samples < self.warmup_samples:
            return samples / self.warmup_samples
        if self.kind == "constant" or self.horizon_samples is None:
            return 1.0
        length = self.horizon_samples - self.warmup_samples
        done = min(1.0, (samples - self.warmup_samples) / length) if length > 0 else 1.0
        fall = (1.0 + math.cos(math.pi * done)) / 2.0 if self.kind == "cosine" else 1.0 - done
        return self.final_ratio + (1.0 - self.final_ratio) * fall


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
    if config.schedule.kind == "constant":
        return None
    message = (
        f"schedule.kind = {config.schedule.kind} needs to know where it ends, and this training data has no"
        " length. Give schedule.samples, or run.max_samples instead of run.epochs."
    )
    raise UsageError(message)


def schedule_of(config: RunConfig, horizon_samples: int | None) -> Schedule:
    """The run's schedule with its horizon."""
    asked = config.schedule
    return Schedule(
        kind=asked.kind,
        warmup_samples=asked.warmup_samples,
        horizon_samples=horizon_samples,
        final_ratio=asked.final_ratio,
    )
