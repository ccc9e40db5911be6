"""What a configuration amounts to: parameters, optimizer steps, samples. No Qt."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from trainer_backend.config import RunConfig
from trainer_backend.kinds import LanguageModelTask

BYTES: Final = 256
"""Symbols of the byte-level language model."""


class Totals(msgspec.Struct, frozen=True):
    """How long a run is; None where the data decide it."""

    optimizer_steps: int | None
    samples: int | None
    exact: bool = True
    """False when the data's size was only estimated."""


def parameters(config: RunConfig) -> int | None:
    """Parameters of the model, where the recipe alone decides them."""
    task = config.task
    if not isinstance(task, LanguageModelTask):
        return None
    width = task.width
    # A block: attention 4 w² + 4 w, feed-forward 8 w² + 5 w, two layer norms 4 w; the head is tied.
    block = 12 * width**2 + 13 * width
    return BYTES * width + task.context_length * width + task.layers * block + 2 * width


def steps_for(config: RunConfig, samples: int) -> int:
    """Optimizer steps that consume `samples`, following the schedule of N; the last may be short."""
    steps, seen = 0, 0
    points = [(point.from_sample, point.steps) for point in config.accumulation.schedule]
    if not points or points[0][0] > 0:
        points.insert(0, (0, config.accumulation_steps))
    per_micro_batch = config.accumulation.micro_batch_size * config.run.devices
    for (_, count), following in zip(points, [*points[1:], None], strict=True):
        until = samples if following is None else min(following[0], samples)
        if until > seen:
            more = math.ceil((until - seen) / (per_micro_batch * count))
            # A window that started under this N is finished under it.
            steps, seen = steps + more, seen + more * per_micro_batch * count
    return steps


def samples_for(config: RunConfig, optimizer_steps: int) -> int:
    """Samples that `optimizer_steps` windows consume, following the schedule of N."""
    seen, left = 0, optimizer_steps
    points = [(point.from_sample, point.steps) for point in config.accumulation.schedule]
    if not points or points[0][0] > 0:
        points.insert(0, (0, config.accumulation_steps))
    per_micro_batch = config.accumulation.micro_batch_size * config.run.devices
    for (_, count), following in zip(points, [*points[1:], None], strict=True):
        window = per_micro_batch * count
        here = left if following is None else min(left, max(0, math.ceil((following[0] - seen) / window)))
        seen, left = seen + here * window, left - here
    return seen


def totals(config: RunConfig, samples_an_epoch: int | None = None) -> Totals:
    """The run's length. `samples_an_epoch` is an estimate from the data's size, when there is one."""
    run = config.run
    if run.max_optimizer_steps is not None:
        return Totals(run.max_optimizer_steps, samples_for(config, run.max_optimizer_steps))
    if run.max_samples is not None:
        return Totals(steps_for(config, run.max_samples), run.max_samples)
    if run.epochs is None or not samples_an_epoch:
        return Totals(None, None)
    return Totals(
        steps_for(config, run.epochs * samples_an_epoch), run.epochs * samples_an_epoch, exact=False
    )


def in_steps(samples: int, effective_batch: int) -> str:
    """A number of samples as optimizer steps: "= 20 optimizer steps", "≈ 20.3 optimizer steps"."""
    whole, rest = divmod(samples, effective_batch)
    if not rest:
        return f"= {whole:,} optimizer step" + ("" if whole == 1 else "s")
    return (
        f"≈ {samples / effective_batch:,.3g} optimizer steps"
        if whole < 100
        else f"≈ {whole:,} optimizer steps"
    )
