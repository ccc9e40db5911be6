"""Where each field stands on the page; fields that exclude each other, or do not apply. No Qt.

A field that is named nowhere here stands at the end of the panel of its own table, so that a new key
of the configuration shows in the form by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from gradacc_gui.recipe.field_specs import FieldSpec, all_specs
from trainer_backend.optimizer_table import keys_of_some, names_that_take
from trainer_backend.schedule_curves import curves_that_take, keys_of_some_curves


class Alternatives(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of which a recipe has one: shown as one number with a choice of what it counts."""

    key: str
    title: str
    help: str
    paths: tuple[str, ...]
    words: tuple[str, ...]
    """What each path counts, in the choice."""


CHOICES: Final = (
    Alternatives(
        key="length",
        title="Length",
        help="How long the run trains.",
        paths=("run.max_optimizer_steps", "run.max_samples", "run.epochs"),
        words=("optimizer steps", "samples", "epochs"),
    ),
    Alternatives(
        key="accumulation",
        title="Accumulation",
        help="",
        paths=("accumulation.gradient_accumulation_steps", "accumulation.effective_batch_size"),
        words=("steps N", "effective batch"),
    ),
    Alternatives(
        key="checkpoint",
        title="Checkpoint every",
        help='Empty: every 10 minutes. "never": only at a stop and at the end.',
        paths=("checkpoint.every_minutes", "checkpoint.every_samples"),
        words=("minutes", "samples"),
    ),
    Alternatives(
        key="warmup",
        title="Warm-up",
        help="",
        paths=(
            "schedule.warmup_samples",
            "schedule.warmup_steps",
            "schedule.warmup_ratio",
            "schedule.warmup_tokens",
        ),
        words=("samples", "optimizer steps", "share of the run", "tokens"),
    ),
)
CHOICE_OF: Final[Mapping[str, Alternatives]] = {path: choice for choice in CHOICES for path in choice.paths}


class Arrangement(msgspec.Struct, frozen=True, kw_only=True):
    """One panel: its words, the tables whose fields it gets, and which of them come first."""

    title: str
    hint: str
    tables: tuple[str, ...]
    first: tuple[str, ...] = ()
    folded: bool = False
    """Whether all of its fields wait behind *More*."""


PANELS: Final = (
    Arrangement(title="Task", hint="what is trained, on what", tables=("task", "data"), first=("data.path",)),
    Arrangement(
        title="Accumulation",
        hint="micro-batch × N × world = effective batch",
        tables=("accumulation",),
        first=(
            "accumulation.micro_batch_size",
            "accumulation.gradient_accumulation_steps",
            "accumulation.normalization",
            "run.precision",
            "accumulation.tail",
            "accumulation.non_finite",
        ),
    ),
    Arrangement(
        title="Optimizer and schedule",
        hint="schedules count samples, whatever N is",
        tables=("optimizer", "schedule"),
        first=(
            "optimizer.name",
            "optimizer.learning_rate",
            "optimizer.weight_decay",
            "schedule.kind",
            "schedule.warmup_samples",
            "optimizer.max_grad_norm",
        ),
    ),
    Arrangement(
        title="Run",
        hint="how long, where, what is saved",
        tables=("run", "evaluation", "checkpoint"),
        first=(
            "run.max_optimizer_steps",
            "run.device",
            "run.name",
            "run.seed",
            "evaluation.every_samples",
            "checkpoint.every_minutes",
        ),
    ),
    Arrangement(
        title="Targets",
        hint="judged while the run trains and at its end",
        tables=("targets", "early_stopping", "prices"),
        first=(
            "targets.validation_loss",
            "targets.step_time",
            "targets.throughput",
            "targets.peak_memory",
            "targets.on_miss",
            "early_stopping.patience",
        ),
        folded=True,
    ),
    Arrangement(title="Notifications", hint="sent by the trainer itself", tables=("notify",), folded=True),
)

RARE: Final = frozenset(
    {
        "data.pattern",
        "data.num_workers",
        "data.shuffle",
        "data.validation_fraction",
        "data.broken",
        "schedule.samples",
        "checkpoint.keep",
        "checkpoint.keep_best",
        "evaluation.max_samples",
    }
)
"""Fields that wait behind *More* on a page, though they are plain to whoever reads a recipe."""

TITLES: Final[Mapping[str, str]] = {
    "evaluation.every_samples": "Evaluate every",
    "evaluation.max_samples": "Evaluate at most",
    "checkpoint.keep": "Checkpoints kept",
    "checkpoint.mode": "Best is",
    "early_stopping.patience": "Stop early after",
    "early_stopping.metric": "Early stopping by",
}
"""Titles that are clear inside their own table only."""

BLANKS: Final[Mapping[str, str]] = {
    "run.name": "the recipe's name",
    "optimizer.max_grad_norm": "no clipping",
    "optimizer.ema_decay": "none",
    "optimizer.clip_value": "no clipping",
    "schedule.samples": "the run's length",
    "schedule.warmup_samples": "none",
    "schedule.warmup_steps": "none",
    "schedule.warmup_ratio": "none",
    "schedule.warmup_tokens": "none",
    "schedule.cycles": "once down",
    "schedule.timescale_samples": "the warm-up's length",
    "evaluation.every_samples": "never",
    "evaluation.max_samples": "all",
    "checkpoint.every_minutes": "10",
    "early_stopping.patience": "never",
    "targets.pause_minutes": "without end",
    "prices.per_hour": "none",
    "prices.per_kwh": "none",
    "checkpoint.every_samples": "every 10 minutes",
}
"""What an empty field means."""

_ONLY: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    **{f"optimizer.{key}": ("optimizer.name", names_that_take(key)) for key in keys_of_some()},
    **{f"schedule.{key}": ("schedule.kind", curves_that_take(key)) for key in keys_of_some_curves()},
    "task.lora_rank": ("task.method", ("lora", "qlora")),
    "task.lora_alpha": ("task.method", ("lora", "qlora")),
    "task.lora_dropout": ("task.method", ("lora", "qlora")),
    "task.lora_targets": ("task.method", ("lora", "qlora")),
    "task.modules_to_save": ("task.method", ("lora", "qlora")),
    "task.export_merged": ("task.method", ("lora", "qlora")),
    "task.token_budget": ("task.layout", ("padding",)),
}


def applies(path: str, text_of: Callable[[str], str]) -> bool:
    """Whether a field means anything beside the others as they stand; `text_of` gives any field's text."""
    rule = _ONLY.get(path)
    return rule is None or text_of(rule[0]) in rule[1]


def switches() -> frozenset[str]:
    """The fields on which others depend."""
    return frozenset(path for path, _ in _ONLY.values())


def is_rare(spec: FieldSpec, panel: Arrangement) -> bool:
    """Whether a field waits behind *More*."""
    return spec.advanced or panel.folded or (spec.path in RARE and not spec.required)


def span_of(spec: FieldSpec, columns: int) -> int:
    """How many of a panel's columns a field takes."""
    if spec.shape == "table":
        return columns
    needs_two = spec.browse or spec.path in CHOICE_OF or spec.path in _LONG
    return 2 if needs_two and columns > 2 else 1


_LONG: Final = frozenset(
    {
        "data.pattern",
        "task.generate",
        "task.added_tokens",
        "task.lora_targets",
        "task.modules_to_save",
        "accumulation.schedule",
    }
)


def title_of(spec: FieldSpec) -> str:
    """A field's title where all tables stand on one page."""
    choice = CHOICE_OF.get(spec.path)
    if choice is not None and choice.key != "accumulation":
        return choice.title
    return TITLES.get(spec.path, spec.title)


def fields_of(panel: Arrangement, kind: str) -> Iterator[FieldSpec]:
    """A panel's fields in order; of those that exclude each other the first stands for all."""
    specs = all_specs(kind)
    elsewhere = {path for other in PANELS if other is not panel for path in other.first}
    rest = [path for path, spec in specs.items() if spec.section in panel.tables and path not in elsewhere]
    # Where the data lie comes before how the model looks; else table by table.
    rest.sort(key=lambda path: (not specs[path].browse, panel.tables.index(path.partition(".")[0])))
    for path in dict.fromkeys((*panel.first, *rest)):
        choice = CHOICE_OF.get(path)
        if path in specs and (choice is None or choice.paths[0] == path):
            yield specs[path]
