"""What a run shall reach, what a miss does, when it has stopped getting better, and what it costs.

Tables of the recipe: [targets], [early_stopping], [prices]. Imports neither torch, numpy nor Qt.
"""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from trainer_backend.section import Count, Positive, Samples, Section

Act: TypeAlias = Literal["note", "warn", "pause", "stop", "roll-back"]
"""What a miss does: record it; and warn; wait for an answer; end the run; go back to a good checkpoint."""
Mode: TypeAlias = Literal["min", "max"]
Bound: TypeAlias = Literal["at-most", "at-least"]


class MetricTarget(Section, frozen=True, kw_only=True):
    """Any quantity that evaluations or the trainer measure, held to a bound."""

    name: Annotated[str, Meta(title="Metric", description="loss, or a metric of the task.", min_length=1)]
    at_least: Annotated[float | None, Meta(title="At least")] = None
    at_most: Annotated[float | None, Meta(title="At most")] = None
    by_sample: Annotated[
        Samples | None,
        Meta(title="By sample", description="Empty: by the run's end.", extra={"unit": "samples"}),
    ] = None
    on_miss: Annotated[
        Act | None, Meta(title="On a miss", description="Empty: what targets.on_miss says.")
    ] = None


class TargetsSection(Section, frozen=True, kw_only=True):
    """What the run shall reach, stated before it starts; drawn on the charts and judged while it trains."""

    peak_memory: Annotated[
        Positive | None, Meta(title="Peak memory", description="Upper limit.", extra={"unit": "GiB"})
    ] = None
    step_time: Annotated[
        Positive | None,
        Meta(title="Step time", description="Upper limit of the median.", extra={"unit": "s"}),
    ] = None
    step_time_p95: Annotated[
        Positive | None,
        Meta(
            title="Slow steps",
            description="Upper limit of the 95th percentile.",
            extra={"unit": "s"},
        ),
    ] = None
    throughput: Annotated[
        Positive | None,
        Meta(title="Throughput", description="Lower limit of the median.", extra={"unit": "samples/s"}),
    ] = None
    validation_loss: Annotated[
        float | None, Meta(title="Validation loss", description="Upper limit at the end of the run.")
    ] = None
    cost: Annotated[
        Positive | None,
        Meta(title="Energy", description="Upper limit for the whole run.", extra={"unit": "kWh"}),
    ] = None
    money: Annotated[
        Positive | None,
        Meta(
            title="Money",
            description="Upper limit for the whole run, by the prices below.",
        ),
    ] = None
    time_to_finish: Annotated[
        Positive | None,
        Meta(title="Time to finish", description="Upper limit for the whole run.", extra={"unit": "h"}),
    ] = None
    metric: Annotated[
        tuple[MetricTarget, ...],
        Meta(title="Metrics", description="Any other metric: [[targets.metric]] in the recipe."),
    ] = ()
    on_miss: Annotated[
        Act,
        Meta(
            title="On a miss",
            description="note: record it; warn; pause: wait for your answer; stop: save and end;"
            " roll-back: go back to a good checkpoint, once for each target.",
        ),
    ] = "warn"
    roll_back: Annotated[
        Literal["lower-rate", "skip-samples", "repeat"],
        Meta(
            title="After going back",
            description="lower-rate: with a lower learning rate; skip-samples: without the samples that came"
            " after the checkpoint; repeat: everything again.",
            extra={"advanced": True},
        ),
    ] = "lower-rate"
    roll_back_factor: Annotated[
        float,
        Meta(title="Learning rate ×", description="After going back.", gt=0, le=1, extra={"advanced": True}),
    ] = 0.5
    pause_minutes: Annotated[
        Positive | None,
        Meta(
            title="Wait at most",
            description="For the answer while a miss pauses the run. Empty: without end.",
            extra={"unit": "min"},
        ),
    ] = None
    no_answer: Annotated[
        Literal["continue", "stop", "roll-back"],
        Meta(title="Without an answer", description="What follows when that time is over."),
    ] = "continue"


class EarlyStoppingSection(Section, frozen=True, kw_only=True):
    """End the run when a metric of its evaluations has stopped getting better."""

    patience: Annotated[
        Count | None,
        Meta(
            title="Patience",
            description="Evaluations without a better value after which the run ends. Empty: never.",
            extra={"unit": "evaluations"},
        ),
    ] = None
    metric: Annotated[
        str,
        Meta(
            title="Metric",
            description="loss (of the validation data), or a metric of the task.",
            min_length=1,
        ),
    ] = "loss"
    mode: Annotated[Mode, Meta(title="Better is", description="min: smaller; max: larger.")] = "min"
    min_change: Annotated[
        float,
        Meta(
            title="Smallest change",
            description="A value must be better by more than this to count.",
            ge=0,
            le=1e12,
            extra={"advanced": True},
        ),
    ] = 0.0


class PricesSection(Section, frozen=True, kw_only=True):
    """What time and energy cost, for the target on money and for the report."""

    per_hour: Annotated[
        Annotated[float, Meta(ge=0, le=1e9)] | None,
        Meta(title="Price per hour", description="Of the machine.", extra={"advanced": True}),
    ] = None
    per_kwh: Annotated[
        Annotated[float, Meta(ge=0, le=1e9)] | None,
        Meta(title="Price per kWh", description="Of the energy that is measured.", extra={"advanced": True}),
    ] = None
    currency: Annotated[
        str, Meta(title="Currency", description="Such as EUR.", max_length=12, extra={"advanced": True})
    ] = ""


class Target(Section, frozen=True, kw_only=True):
    """One target as it is judged, whichever way the recipe gave it."""

    key: str
    """targets.step_time, or targets.metric.NAME for one of the list."""
    metric: str
    """The quantity: a key of `QUANTITIES`, or what evaluations call it."""
    bound: Bound
    limit: float
    by_sample: int | None = None
    act: Act = "warn"


QUANTITIES: Final[dict[str, Bound]] = {
    "peak_memory": "at-most",
    "step_time": "at-most",
    "step_time_p95": "at-most",
    "throughput": "at-least",
    "validation_loss": "at-most",
    "cost": "at-most",
    "money": "at-most",
    "time_to_finish": "at-most",
}
"""The targets that are keys of [targets], and which bound each is."""


MEASURED: Final = frozenset(QUANTITIES) - {"validation_loss"}
"""Those that are measured all the time; any other metric comes from evaluations."""


def targets_of(asked: TargetsSection) -> tuple[Target, ...]:
    """Every target of a recipe, in its order."""
    found = [
        Target(key=f"targets.{name}", metric=name, bound=bound, limit=limit, act=asked.on_miss)
        for name, bound in QUANTITIES.items()
        if (limit := getattr(asked, name)) is not None
    ]
    for one in asked.metric:
        bounds: dict[Bound, float | None] = {"at-least": one.at_least, "at-most": one.at_most}
        name = "validation_loss" if one.name == "loss" else one.name
        found += [
            Target(
                key=f"targets.metric.{one.name}", metric=name, bound=bound, limit=limit,
                by_sample=one.by_sample, act=one.on_miss or asked.on_miss,
            )
            for bound, limit in bounds.items()
            if limit is not None
        ]  # fmt: skip
    return tuple(found)


def is_better(value: float, than: float, mode: Mode, by: float = 0.0) -> bool:
    """Whether a value is better by more than `by`; NaN never is."""
    return value < than - by if mode == "min" else value > than + by


def has_stopped_improving(values: list[float], asked: EarlyStoppingSection) -> bool:
    """Whether the last `patience` values brought none that is better than the best before them."""
    if asked.patience is None:
        return False
    best: float | None = None
    since = 0
    for value in values:
        if not math.isnan(value) and (best is None or is_better(value, best, asked.mode, asked.min_change)):
            best, since = value, 0
        else:
            since += 1
    return best is not None and since >= asked.patience
