"""What a recipe amounts to: effective batch, optimizer steps, samples, parameters. No Qt."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from gradacc_gui.recipe.draft import Draft
from gradacc_gui.recipe.field_specs import ABSENT
from gradacc_gui.recipe.points import points_fault
from gradacc_gui.words import tr
from trainer_backend.config import AccumulationPoint, RunConfig
from trainer_backend.kinds import LanguageModelTask

MICRO_PATH: Final = "accumulation.micro_batch_size"
N_PATH: Final = "accumulation.gradient_accumulation_steps"
BATCH_PATH: Final = "accumulation.effective_batch_size"
STEPS_PATH: Final = "run.max_optimizer_steps"
SAMPLES_PATH: Final = "run.max_samples"
SCHEDULE_PATH: Final = "accumulation.schedule"
MOST_WORDED: Final = 3
"""So many changes of the effective batch are told one by one."""


class Factors:
    """The factors and their product; None where one is not right."""

    def __init__(self, draft: Draft) -> None:
        self.micro_batch: int | None = draft.valid_value(MICRO_PATH)
        self.world: int | None = draft.valid_value("run.devices")
        self.effective: int | None = draft.valid_value(BATCH_PATH)
        self.steps: int | None = draft.valid_value(N_PATH)
        self.from_batch = draft.value(BATCH_PATH) is not ABSENT
        """Whether the effective batch is what was typed, and N follows."""
        one = self.micro_batch * self.world if self.micro_batch and self.world else None
        points = _right_points(draft)
        self.scheduled = bool(points) and points[0][0] == 0
        """Whether the schedule of N sets N from the start, over what its own field says."""
        first = points[0][1] if self.scheduled else None
        if self.effective is not None and first is None:
            divides = one is not None and self.effective % one == 0
            self.steps = self.effective // one if divides and one is not None else None
        else:
            self.steps = first if first is not None else self.steps
            self.effective = one * self.steps if one is not None and self.steps else None
        self.later = tuple((sample, one * steps) for sample, steps in points if sample) if one else ()
        """From which sample on the schedule of N makes which effective batch."""

    def later_words(self) -> str:
        """How the effective batch goes on: ", from sample 6,400 on 64"; empty where N is constant."""
        shown = self.later if len(self.later) <= MOST_WORDED else self.later[: MOST_WORDED - 1]
        words = [
            tr("from sample {sample:,} on {count:,}").format(sample=sample, count=count)
            for sample, count in shown
        ]
        if len(shown) < len(self.later):
            words.append(tr("… and finally {count:,}").format(count=self.later[-1][1]))
        return "".join(f", {part}" for part in words)


def _right_points(draft: Draft) -> list[tuple[int, int]]:
    """Samples and N of the schedule of N; none while a row of it is wrong."""
    if points_fault(draft.specs[SCHEDULE_PATH], draft.text(SCHEDULE_PATH)):
        return []
    points = [msgspec.convert(point, AccumulationPoint) for point in draft.value(SCHEDULE_PATH)]
    micro, world = draft.valid_value(MICRO_PATH), draft.valid_value("run.devices")
    if not micro or not world or any(point.from_sample is None and point.start for point in points):
        return []  # where tokens decide, nobody knows the sample
    return [(point.start, point.steps_at(micro * world)) for point in points]


def _points(config: RunConfig) -> list[tuple[int, int]]:
    """Sample and N of each point from 0 on; but for those whose start is a token: nobody knows its sample."""
    one = config.accumulation.micro_batch_size * config.run.devices
    points = [
        (point.start, point.steps_at(one))
        for point in config.accumulation.schedule
        if point.from_sample is not None or not point.start
    ]
    if not points or points[0][0] > 0:
        points.insert(0, (0, config.accumulation_steps))
    return points


def converted(draft: Draft, before: str, after: str) -> str | None:
    """What `before` says, said as `after`; None where that is not known or not a whole number."""
    value, factors = draft.valid_value(before), Factors(draft)
    if value is ABSENT or value is None:
        return None
    effective = factors.effective
    if (before, after) == (N_PATH, BATCH_PATH):
        return None if effective is None else str(effective)
    if (before, after) == (BATCH_PATH, N_PATH):
        return None if factors.steps is None else str(factors.steps)
    if (before, after) == (STEPS_PATH, SAMPLES_PATH):
        return None if effective is None else str(value * effective)
    if (before, after) == (SAMPLES_PATH, STEPS_PATH):
        return str(value // effective) if effective and value % effective == 0 else None
    return None


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
    points = _points(config)
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
    points = _points(config)
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
