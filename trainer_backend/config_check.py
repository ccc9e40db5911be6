"""From plain data to a `RunConfig`, or to every problem in it: key, value, what would be right.

Nothing is half accepted: wrong types, unknown keys, blanks, decimals where a whole number is meant
and values out of bounds are each a sentence, with the nearest known name where a name is wrong.
"""

from __future__ import annotations

import difflib
import functools
import re
import reprlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect

from trainer_backend.config import KINDS, AccumulationPoint, RunConfig, Section
from trainer_backend.goals import QUANTITIES, MetricTarget
from trainer_backend.optimizer_table import OPTIMIZERS
from trainer_backend.watching.messages import template_fault

RECIPE_VERSION: Final = 1
RENAMED: Final[dict[str, str]] = {
    "accumulation.accumulation_steps": "accumulation.gradient_accumulation_steps",
    "accumulation.batch_size": "accumulation.micro_batch_size",
    "optimizer.lr": "optimizer.learning_rate",
    "optimizer.clip": "optimizer.max_grad_norm",
}
"""Keys of recipes before version 1, and what they are called now."""


class Problem(msgspec.Struct, frozen=True):
    """One fault: the key's path, the value, and a sentence that says what would be right."""

    path: str
    value: Any
    message: str


def check(data: Mapping[str, Any]) -> RunConfig | list[Problem]:
    """Check a whole recipe's data. A version key is taken; older versions are brought up to date."""
    tables = dict(data)
    problems = _take_version(tables)
    if problems:
        return problems
    for name in ("task", "data"):  # left out, they are still to be checked for what they must have
        tables.setdefault(name, {})
    task = tables["task"]
    kind_name = task.get("kind", "language-model") if isinstance(task, Mapping) else None
    kind = KINDS.get(kind_name) if isinstance(kind_name, str) else None
    if isinstance(task, Mapping) and kind is None:
        problems.append(Problem("task.kind", kind_name, _not_one_of("task.kind", kind_name, list(KINDS))))
    known = section_types(kind_name if kind else None)
    sections: dict[str, Section] = {}
    for name, table in tables.items():
        checked = _check_table(name, table, known)
        if isinstance(checked, Section):
            sections[name] = checked
        else:
            problems += checked
    if problems:
        return problems
    config = RunConfig(**sections)  # type: ignore[arg-type]  # by name, each of its own section
    return _across(config) or config


def _check_table(
    name: str,
    table: Any,  # noqa: ANN401 - plain data
    known: dict[str, type[Section] | None],
) -> Section | list[Problem]:
    """Check what stands under one name at the top of a recipe."""
    if name not in known:
        return [Problem(name, table, _unknown(name, name, [*known, "recipe_version"]))]
    if not isinstance(table, Mapping):
        message = f"{name} = {show(table)} is not a table. Write [{name}] and its keys below it."
        return [Problem(name, table, message)]
    section = known[name]
    # Without a section the kind is not known, which is said of the kind itself.
    return [] if section is None else check_section(name, table, section)


def _take_version(tables: dict[str, Any]) -> list[Problem]:
    version = tables.pop("recipe_version", RECIPE_VERSION)
    path = "recipe_version"
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        message = (
            f"{path} = {show(version)} is not a recipe version. Leave it out, or write {RECIPE_VERSION}."
        )
        return [Problem(path, version, message)]
    if version > RECIPE_VERSION:
        message = (
            f"{path} = {version} was written by a newer gradacc; this one reads up to {RECIPE_VERSION}."
            " Update gradacc, or remove the key and check the recipe yourself."
        )
        return [Problem(path, version, message)]
    if version < RECIPE_VERSION:
        _bring_up_to_date(tables)
    return []


def _bring_up_to_date(tables: dict[str, Any]) -> None:
    for old, new in RENAMED.items():
        section, _, key = old.partition(".")
        table = tables.get(section)
        if isinstance(table, Mapping) and key in table:
            table = dict(table)
            table.setdefault(new.partition(".")[2], table.pop(key))
            tables[section] = table


def section_types(kind: str | None) -> dict[str, type[Section] | None]:
    """The recipe's tables and their types; None for task and data while the kind is not known."""
    chosen = KINDS.get(kind) if kind else None
    tasks = {"task": chosen.task if chosen else None, "data": chosen.data if chosen else None}
    return _common_sections() | tasks


@functools.cache
def _common_sections() -> dict[str, type[Section] | None]:
    return {field.name: field.type for field in msgspec.structs.fields(RunConfig)}


def check_section(name: str, table: Mapping[str, Any], section: type[Section]) -> Section | list[Problem]:
    """Check one table against its type."""
    problems: list[Problem] = []
    known = fields(section)
    for key, value in table.items():
        path = f"{name}.{key}"
        if key not in known:
            problems.append(Problem(path, value, _unknown(path, key, list(known))))
        elif (problem := check_value(path, value, section, key)) is not None:
            problems.append(problem)
    problems += [
        Problem(f"{name}.{key}", None, f"{name}.{key} is missing. {_wanted(field.type)}")
        for key, field in known.items()
        if field.required and key not in table
    ]
    if problems:
        return problems
    return msgspec.convert(dict(table), section)


@functools.cache
def fields(section: type[Section]) -> dict[str, inspect.Field]:
    """A section's fields by name, as msgspec sees them."""
    info = inspect.type_info(section)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field for field in info.fields}


def check_value(
    path: str,
    value: Any,  # noqa: ANN401 - plain data
    section: type[Section],
    name: str,
) -> Problem | None:
    """Check one value of a section's field `name`, as a recipe (or a form) holds it."""
    field = fields(section)[name]
    if (isinstance(value, str) and not value.strip() and value) or (
        value == "" and not _takes_blank(field.type)
    ):
        return Problem(path, value, f"{path} is blank. {_wanted(field.type)}")
    try:
        msgspec.convert({"value": value}, _one_field(section, name))
    except msgspec.ValidationError as error:
        found = re.search(r"`\$\.value(.*)`$", str(error))
        place = path + (re.sub(r"\[\.\.\.\]", "", found[1]) if found else "")
        inner = _inner_unknown(str(error), place)
        return Problem(path, value, inner or f"{place} = {show(value)} is not right. {_wanted(field.type)}")
    return None


def _inner_unknown(error: str, place: str) -> str:
    found = re.search(r"unknown field `(\w+)`", error) or re.search(r"missing required field `(\w+)`", error)
    if not found:
        return ""
    if "missing" in error:
        return f"{place}.{found[1]} is missing. Give each entry all of its keys."
    return f"{place}.{found[1]} is not a key. Remove it."


@functools.cache
def _one_field(section: type[Section], name: str) -> type:
    """A struct with this one field, by the annotation that the section has."""
    hints = {field.encode_name: field.type for field in msgspec.structs.fields(section)}
    return msgspec.defstruct("One", [("value", hints[name])])


def _takes_blank(kind: inspect.Type) -> bool:
    kind = bare(kind)
    return isinstance(kind, inspect.StrType) and not kind.min_length and kind.pattern is None


def bare(kind: inspect.Type) -> inspect.Type:
    """A type without its metadata, without None, and without the words that may stand for a number."""
    while True:
        if isinstance(kind, inspect.Metadata):
            kind = kind.type
        elif isinstance(kind, inspect.UnionType):
            others = [part for part in kind.types if not isinstance(part, inspect.NoneType)]
            if len(others) > 1:
                others = [part for part in others if not isinstance(part, inspect.LiteralType)]
            if len(others) != 1:
                return kind
            kind = others[0]
        else:
            return kind


def words_instead(kind: inspect.Type) -> tuple[str, ...]:
    """The words that a field takes in place of a number, such as "never"."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if not isinstance(kind, inspect.UnionType) or isinstance(bare(kind), inspect.LiteralType):
        return ()
    literals = [part for part in kind.types if isinstance(part, inspect.LiteralType)]
    return tuple(str(value) for part in literals for value in part.values)


def metadata(kind: inspect.Type) -> tuple[str, str, dict[str, Any], list[Any]]:
    """A field's title, help, extra (unit, advanced, path) and examples."""
    if not isinstance(kind, inspect.Metadata):
        return "", "", {}, []
    schema = kind.extra_json_schema or {}
    return (
        schema.get("title", ""),
        schema.get("description", ""),
        kind.extra or {},
        schema.get("examples", []),
    )


def _wanted(kind: inspect.Type) -> str:
    """A sentence that says what a field takes."""
    examples = metadata(kind)[3]
    instead = "".join(f', or "{word}"' for word in words_instead(kind))
    kind = bare(kind)
    match kind:
        case inspect.IntType():
            return f"It must be a whole number{_bounds(kind)}{instead}."
        case inspect.FloatType():
            return f"It must be a number{_bounds(kind)}{instead}."
        case inspect.BoolType():
            return "It must be true or false."
        case inspect.LiteralType():
            return f"It must be one of {', '.join(map(str, kind.values))}."
        case inspect.StrType() if examples:
            one_of = "one of " if len(examples) > 1 else ""
            return f"It must look like {one_of}{', '.join(map(str, examples))}."
        case inspect.StrType():
            return "It must be text" + (
                f" of at most {kind.max_length} characters." if kind.max_length else "."
            )
        case inspect.TupleType():
            item = bare(kind.item_types[0])
            each = _bounds(item) if isinstance(item, inspect.IntType | inspect.FloatType) else ""
            numbers = f"It must be a list of {len(kind.item_types)} numbers"
            return f"{numbers}, each{each}." if each else f"{numbers}."
        case inspect.VarTupleType():
            return _wanted_list(kind.item_type)
        case inspect.DictType():
            return "It must be a table of keys and values."
        case _:
            return "HOW-IT-WORKS.md describes the recipe format."


def _wanted_list(item: inspect.Type) -> str:
    item = bare(item)
    if isinstance(item, inspect.StructType):
        keys = ", ".join(
            f"{field.encode_name} ({_wanted(field.type).removeprefix('It must be ').removesuffix('.')})"
            for field in item.fields
        )
        return f"It must be a list of tables with {keys}."
    if isinstance(item, inspect.IntType | inspect.FloatType):
        whole = "whole " if isinstance(item, inspect.IntType) else ""
        return f"It must be a list of {whole}numbers, each{_bounds(item)}."
    return "It must be a list of texts."


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    low = _whole(kind.ge if kind.ge is not None else kind.gt)
    high = _whole(kind.le if kind.le is not None else kind.lt)
    above = "" if kind.gt is None else "above "
    below = "" if kind.lt is None else "below "
    if low is not None and high is not None:
        if not above and not below:
            return f" from {low:,} to {high:,}"
        upper = "to below " if below else "and at most " if above else "to "
        return f" {above or 'from '}{low:,} {upper}{high:,}"
    if low is not None:
        return f" {above or 'from '}{low:,}" + ("" if above else " up")
    return f" {below or 'up to '}{high:,}" if high is not None else ""


def _whole(bound: float | None) -> float | None:
    """1000000.0 is shown as 1,000,000."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def show(value: Any) -> str:  # noqa: ANN401 - plain data
    """A value as TOML would show it, cut short."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{reprlib.repr(value)[1:-1]}"' if isinstance(value, str) else reprlib.repr(value)


def _unknown(path: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(sorted(known))}."
    return f"{path} is not a key of a recipe. {hint}"


def _not_one_of(path: str, value: Any, known: list[str]) -> str:  # noqa: ANN401 - plain data
    near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}? " if near else ""
    return f"{path} = {show(value)} is not right. {hint}It must be one of {', '.join(known)}."


# --------------------------------------------------------------------- rules across keys


ONE_OF: Final = (
    ("run.epochs", "run.max_samples", "run.max_optimizer_steps"),
    ("accumulation.gradient_accumulation_steps", "accumulation.effective_batch_size"),
    ("checkpoint.every_minutes", "checkpoint.every_samples"),
    (
        "schedule.warmup_samples",
        "schedule.warmup_steps",
        "schedule.warmup_ratio",
        "schedule.warmup_tokens",
    ),
)
"""Keys that say the same thing in different units: a recipe gives at most one of each row."""


def alternatives(path: str) -> tuple[str, ...]:
    """The keys that giving `path` takes the place of."""
    return next((tuple(key for key in row if key != path) for row in ONE_OF if path in row), ())


def _across(config: RunConfig) -> list[Problem]:
    return [
        *_length(config),
        *_steps(config),
        *_schedule(config),
        *_checkpoints(config),
        *_notify(config),
        *_goals(config),
        *_kind_rules(config),
    ]


def _length(config: RunConfig) -> list[Problem]:
    names = [path.partition(".")[2] for path in ONE_OF[0]]
    given = [name for name in names if getattr(config.run, name) is not None]
    if len(given) == 1:
        return []
    if not given:
        message = (
            "[run] does not say how long to train. Give one of run.epochs, run.max_samples,"
            " run.max_optimizer_steps."
        )
        return [Problem("run.epochs", None, message)]
    message = f"run.{' and run.'.join(given)} are given together. Keep one of them."
    return [Problem(f"run.{given[-1]}", getattr(config.run, given[-1]), message)]


def _steps(config: RunConfig) -> list[Problem]:
    asked = config.accumulation
    path, value = "accumulation.effective_batch_size", asked.effective_batch_size
    problems = []
    if value is not None and asked.gradient_accumulation_steps is not None:
        message = (
            f"accumulation.gradient_accumulation_steps = {asked.gradient_accumulation_steps} and"
            f" accumulation.effective_batch_size = {value} are both given. Keep one: the other follows."
        )
        return [Problem(path, value, message)]
    if value is None and asked.gradient_accumulation_steps is None and not asked.schedule:
        path = "accumulation.gradient_accumulation_steps"
        message = f"{path} is missing. Give N (4, say), or accumulation.effective_batch_size."
        return [Problem(path, None, message)]
    one = asked.micro_batch_size * config.run.devices
    if value is not None and value % one:
        lower, upper = value // one * one, -(-value // one) * one
        nearest = f"{lower} or {upper}" if lower else str(upper)
        message = (
            f"{path} = {value} is not a multiple of micro-batch size x devices = {one}."
            f" Try {nearest}, or another accumulation.micro_batch_size."
        )
        problems.append(Problem(path, value, message))
    return problems + _by_tokens(config) + _points(config)


def _by_tokens(config: RunConfig) -> list[Problem]:
    """A window that ends at a number of tokens has no fixed N: two things need one."""
    asked, path = config.accumulation, "accumulation.tokens_per_step"
    if asked.tokens_per_step is None:
        return []
    message = ""
    if config.run.devices > 1:
        message = (
            f"{path} works on one device: several must agree on N before they read. Remove it, or set"
            " run.devices = 1."
        )
    elif asked.tail == "drop":
        message = (
            f'{path} and accumulation.tail = "drop" do not go together: no step is known to be whole before'
            ' it is read. Set accumulation.tail = "step" or "carry".'
        )
    return [Problem(path, asked.tokens_per_step, message)] if message else []


def _points(config: RunConfig) -> list[Problem]:
    """What is wrong with the schedule of N: the first thing only."""
    asked, one = config.accumulation, config.accumulation.micro_batch_size * config.run.devices
    path, points = "accumulation.schedule", config.accumulation.schedule
    starts = [point.start for point in points]
    message = next((fault for place, point in enumerate(points) if (fault := _point(place, point, one))), "")
    if message:
        pass
    elif len({point.from_token is None for point in points}) > 1:
        message = f"{path} counts some starts in samples and some in tokens. Use one of the two."
    elif starts != sorted(set(starts)):
        unit = "from_sample" if points[0].from_sample is not None else "from_token"
        message = f"{path} must rise: each {unit} larger than the one before. Sort it."
    elif (
        starts
        and starts[0] > 0
        and asked.gradient_accumulation_steps is None
        and asked.effective_batch_size is None
    ):
        unit = "sample" if points[0].from_sample is not None else "token"
        message = (
            f"{path} starts at {unit} {starts[0]}; N before it is not known."
            f" Start it at from_{unit} = 0, or give accumulation.gradient_accumulation_steps."
        )
    return [Problem(path, starts, message)] if message else []


def _point(place: int, point: AccumulationPoint, one: int) -> str:
    """What is wrong with one row of the schedule of N; empty when nothing is. `one`: samples a round."""
    path, batch = f"accumulation.schedule[{place}]", point.effective_batch_size
    if (point.from_sample is None) == (point.from_token is None):
        return f"{path} must have from_sample or from_token, one of the two, such as from_sample = 64000."
    if (point.steps is None) == (batch is None):
        return f"{path} must have steps or effective_batch_size, one of the two, such as steps = 8."
    if batch is not None and batch % one:
        lower, upper = batch // one * one, -(-batch // one) * one
        return (
            f"{path}.effective_batch_size = {batch} is not a multiple of micro-batch size x devices = {one}."
            f" Try {f'{lower} or {upper}' if lower else upper}."
        )
    return ""


def _schedule(config: RunConfig) -> list[Problem]:
    asked, problems = config.schedule, []
    given = [path for path in ONE_OF[3] if getattr(asked, path.partition(".")[2])]
    if len(given) > 1:
        message = f"{' and '.join(given)} are given together. Keep one of them."
        problems.append(Problem(given[-1], getattr(asked, given[-1].partition(".")[2]), message))
    if asked.kind != "multistep":
        return problems
    path, milestones = "schedule.milestones", list(asked.milestones)
    if not milestones:
        message = (
            f"{path} is missing: schedule.kind = multistep falls at these samples. Try [10_000, 20_000]."
        )
        problems.append(Problem(path, milestones, message))
    elif milestones != sorted(set(milestones)):
        message = f"{path} = {show(milestones)} must rise: each later than the one before. Sort it."
        problems.append(Problem(path, milestones, message))
    return problems


def _checkpoints(config: RunConfig) -> list[Problem]:
    asked = config.checkpoint
    if asked.every_minutes is not None and asked.every_samples is not None:
        message = "checkpoint.every_minutes and checkpoint.every_samples are both given. Keep one of them."
        return [Problem("checkpoint.every_samples", asked.every_samples, message)]
    return []


def _goals(config: RunConfig) -> list[Problem]:
    """Targets that contradict each other, or that nobody will measure."""
    problems = []
    evaluates = config.evaluation.every_samples is not None
    for path, wanted in (
        ("checkpoint.keep_best", config.checkpoint.keep_best > 0),
        ("checkpoint.export_best", config.checkpoint.export_best),
        ("early_stopping.patience", config.early_stopping.patience is not None),
    ):
        if wanted and not evaluates:
            message = f"{path} needs evaluations. Give evaluation.every_samples, or take {path} away."
            problems.append(Problem(path, True, message))
    if config.checkpoint.export_best and not config.checkpoint.keep_best:
        message = "checkpoint.export_best needs a best checkpoint. Set checkpoint.keep_best to 1."
        problems.append(Problem("checkpoint.export_best", True, message))
    prices = config.prices
    if config.targets.money is not None and prices.per_hour is None and prices.per_kwh is None:
        message = "targets.money needs a price. Give prices.per_hour, prices.per_kwh, or both."
        problems.append(Problem("targets.money", config.targets.money, message))
    return problems + [problem for one in config.targets.metric for problem in _metric_target(one, config)]


def _metric_target(one: MetricTarget, config: RunConfig) -> list[Problem]:
    path, measured = "targets.metric", one.name in QUANTITIES and one.name != "validation_loss"
    if one.at_least is None and one.at_most is None:
        message = f"{path}: {one.name} has no bound. Give at_least or at_most."
        return [Problem(path, one.name, message)]
    if one.at_least is not None and one.at_most is not None and one.at_least > one.at_most:
        message = (
            f"{path}: {one.name} cannot be at least {one.at_least:g} and at most {one.at_most:g}."
            " Take one of them away."
        )
        return [Problem(path, one.name, message)]
    end = config.run.max_samples
    if one.by_sample is not None and end is not None and one.by_sample > end:
        message = (
            f"{path}: by_sample = {one.by_sample:,} for {one.name} comes after the run's end"
            f" (run.max_samples = {end:,}). Give an earlier one."
        )
        return [Problem(path, one.name, message)]
    if one.by_sample is not None and not measured and config.evaluation.every_samples is None:
        message = f"{path}: {one.name} is measured by evaluations. Give evaluation.every_samples."
        return [Problem(path, one.name, message)]
    return []


def _notify(config: RunConfig) -> list[Problem]:
    template = config.notify.template
    fault = template_fault(template) if template else ""
    if not fault:
        return []
    message = f"notify.template is not the body of a webhook: {fault}"
    return [Problem("notify.template", template, message)]


def _kind_rules(config: RunConfig) -> list[Problem]:
    problems = []
    optimizer = config.optimizer
    if optimizer.nesterov and not optimizer.momentum:
        message = "optimizer.nesterov = true needs optimizer.momentum above 0. Try 0.9."
        problems.append(Problem("optimizer.nesterov", True, message))
    if OPTIMIZERS[optimizer.name].averages and optimizer.ema_decay is not None:
        message = (
            f"optimizer.ema_decay = {optimizer.ema_decay} averages weights that optimizer.name ="
            f" {optimizer.name} averages itself. Take optimizer.ema_decay away."
        )
        problems.append(Problem("optimizer.ema_decay", optimizer.ema_decay, message))
    width, heads = getattr(config.task, "width", 0), getattr(config.task, "heads", 1)
    if width % heads:
        path = "task.width"
        message = (
            f"{path} = {width} is not a multiple of task.heads = {heads}. Try {-(-width // heads) * heads}."
        )
        problems.append(Problem(path, width, message))
    return problems
