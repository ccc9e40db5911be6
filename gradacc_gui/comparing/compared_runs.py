"""What is compared: runs in groups of repetitions, what differs between their settings, and their results.

    RunDirectory ─ recipe, journal ─▶ ComparedRun ─ same but for the seed ─▶ RunGroup ─▶ differences, results

Differences in per cent are against the baseline, the first group unless a person chose another. No Qt.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np

from gradacc_gui.charts.ticks import per_cent
from gradacc_gui.recipe.field_specs import all_specs
from gradacc_gui.run.numbers import DASH, clock_s, gibibytes, real, short
from gradacc_gui.series import Floats, Groups
from gradacc_gui.store import RunStore, View
from gradacc_gui.words import tr
from trainer_backend.protocol import (
    DeviceSampled,
    EvaluationMeasured,
    Event,
    HostSampled,
    OptimizerStepMeasured,
)
from trainer_backend.run_directory import RunDirectory

EFFECTIVE_BATCH: Final = "effective batch"
"""A derived setting: micro-batch x N x world."""
SEED: Final = "run.seed"
NOT_COMPARED: Final = frozenset({"run.name", "accumulation.effective_batch_size"})
"""A run's name is its own; the wanted effective batch is in N and the micro-batch."""
FIRST: Final = (
    "accumulation.gradient_accumulation_steps",
    "accumulation.micro_batch_size",
    EFFECTIVE_BATCH,
    "optimizer.learning_rate",
    "optimizer.name",
    "optimizer.betas",
    "optimizer.weight_decay",
)
"""Settings in the order in which people ask for them; the others follow by name."""
SHORT: Final[Mapping[str, str]] = {
    "accumulation.gradient_accumulation_steps": "N",
    "accumulation.micro_batch_size": "b",
    EFFECTIVE_BATCH: "batch",
    "optimizer.learning_rate": "lr",
    "optimizer.name": "",
    "optimizer.weight_decay": "decay",
}
"""How a group is named by the one setting in which it differs."""
_WHOLE_PIXELS: Final = 1 << 16
Better: TypeAlias = Literal["less", "more"]


class ComparedRun:
    """One run: its settings as they are in force, and its data."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.store = RunStore(run)
        self.settings = settings_of(run)
        self.name = run.asked_name or run.id

    def poll(self, budget_s: float) -> bool:
        """Take what the journal has; True when something changed."""
        return self.store.poll(budget_s)

    def close(self) -> None:
        """Close the journal."""
        self.store.close()


class RunGroup(msgspec.Struct, frozen=True):
    """Runs that differ in nothing but their seed."""

    runs: tuple[ComparedRun, ...]
    label: str
    """What it is called in legends: by the setting in which it differs, else by name."""

    @property
    def first(self) -> ComparedRun:
        """The run that stands for the settings of all."""
        return self.runs[0]

    @property
    def names(self) -> str:
        """The names of its runs; of many, the first and how many there are."""
        names = list(dict.fromkeys(run.name for run in self.runs))
        told = names[0] if len(names) == 1 else tr("{name} and others").format(name=names[0])
        many = len(self.runs)
        return told if many == 1 else tr("{name} · {count} runs").format(name=told, count=many)


def settings_of(run: RunDirectory) -> dict[str, Any]:
    """Every setting of a run's recipe by `table.key`, defaults included, and the effective batch.

    Empty where the recipe cannot be read: the run is compared by its data alone.
    """
    config = run.config()
    if config is None:
        return {}
    tables = msgspec.to_builtins(config)
    flat = {
        f"{table}.{key}": value
        for table, section in tables.items()
        if isinstance(section, Mapping)
        for key, value in section.items()
        if f"{table}.{key}" not in NOT_COMPARED
    }
    b, n = (flat.get(f"accumulation.{key}") for key in ("micro_batch_size", "gradient_accumulation_steps"))
    if isinstance(b, int) and isinstance(n, int):
        devices = flat.get("run.devices")
        flat[EFFECTIVE_BATCH] = b * n * (devices if isinstance(devices, int) and devices > 1 else 1)
    return flat


def grouped(runs: Sequence[ComparedRun]) -> list[RunGroup]:
    """Runs in groups whose settings agree but for the seed, in the order of their first runs."""
    places: dict[bytes, list[ComparedRun]] = {}
    for run in runs:
        same = {key: value for key, value in run.settings.items() if key != SEED}
        key = msgspec.json.encode(same, order="sorted") if same else run.run.id.encode()
        places.setdefault(key, []).append(run)
    groups = list(places.values())
    labels = _labels([members[0] for members in groups])
    return [RunGroup(tuple(members), name) for members, name in zip(groups, labels, strict=True)]


def _labels(runs: Sequence[ComparedRun]) -> list[str]:
    """By the first setting that alone tells all groups apart, else by name, else by id."""
    for key in FIRST:
        values = [run.settings.get(key) for run in runs]
        if key in SHORT and len(runs) > 1 and None not in values and len(set(map(repr, values))) == len(runs):
            word = SHORT[key]
            return [f"{word} = {shown(value)}" if word else shown(value) for value in values]
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else run.run.id for run in runs]


# ------------------------------------------------------------------------------------- what differs


class Differences(msgspec.Struct, frozen=True):
    """Settings that are not the same in all groups, and how many are."""

    keys: tuple[str, ...]
    same: tuple[str, ...]

    @property
    def titles(self) -> list[str]:
        """What the differing settings are called."""
        return [title_of(key) for key in self.keys]


def differences(groups: Sequence[RunGroup]) -> Differences:
    """Compare all settings of all runs, seeds included."""
    runs = [run for group in groups for run in group.runs]
    keys = sorted({key for run in runs for key in run.settings}, key=_rank)
    differs = [key for key in keys if len({repr(run.settings.get(key)) for run in runs if run.settings}) > 1]
    return Differences(tuple(differs), tuple(key for key in keys if key not in differs))


def _rank(key: str) -> tuple[int, str]:
    return (FIRST.index(key) if key in FIRST else len(FIRST) + (key == SEED), key)


def title_of(key: str) -> str:
    """A setting's title in the form; of an unknown one its key."""
    if key == EFFECTIVE_BATCH:
        return tr("Effective batch")
    spec = all_specs("custom").get(key)
    return tr(spec.title) if spec is not None else key


def shown(value: Any) -> str:  # noqa: ANN401 - plain data of a recipe
    """A setting's value as text."""
    match value:
        case None:
            return DASH
        case bool():
            return tr("yes") if value else tr("no")
        case float():
            return real(value)
        case list() | tuple():
            return ", ".join(shown(entry) for entry in value)
        case _:
            return str(value)


def cell_of(group: RunGroup, key: str, baseline: RunGroup) -> tuple[str, str]:
    """A group's value of a setting, and beside it its ratio to the baseline's; empty where there is none."""
    values = list(dict.fromkeys(shown(run.settings.get(key)) for run in group.runs))
    own, other = group.first.settings.get(key), baseline.first.settings.get(key)
    return ", ".join(values), ratio_text(own, other) if key != SEED else ""


def ratio_text(own: Any, other: Any) -> str:  # noqa: ANN401 - plain data of a recipe
    """× 2, ÷ 4, × √2 where a number is such a multiple of another; empty where it is none."""
    if isinstance(own, bool) or not all(
        isinstance(value, int | float) and value > 0 for value in (own, other)
    ):
        return ""
    ratio = own / other
    if math.isclose(ratio, 1.0, rel_tol=1e-9):
        return ""
    sign, factor = ("×", ratio) if ratio > 1 else ("÷", 1 / ratio)
    if math.isclose(factor, round(factor), rel_tol=1e-3):
        return f"{sign} {round(factor)}"
    square = factor * factor
    if math.isclose(square, round(square), rel_tol=5e-3) and square < 1000:
        return f"{sign} √{round(square)}"
    return ""


# ------------------------------------------------------------------------------------------ results


class Result(msgspec.Struct, frozen=True):
    """One number of a group: its runs' values (None: not measured), how it is written, what is better."""

    title: str
    values: tuple[float | None, ...]
    write: Literal["real", "short", "bytes", "ms", "time"]
    better: Better

    @property
    def mean(self) -> float | None:
        """Over the runs that measured it."""
        known = [value for value in self.values if value is not None and math.isfinite(value)]
        return statistics.fmean(known) if known else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over two or more runs."""
        known = [value for value in self.values if value is not None and math.isfinite(value)]
        return statistics.stdev(known) if len(known) > 1 else None

    @property
    def text(self) -> str:
        """The mean; of losses with their deviation."""
        own = written(self.mean, self.write)
        return own if self.spread is None or self.write != "real" else f"{own} ± {self.spread:.2g}"


def written(value: float | None, how: str) -> str:
    """A number with its unit."""
    match how:
        case "bytes":
            return gibibytes(None if value is None else int(value))
        case "ms":
            return DASH if value is None else f"{1000 * value:.3g} ms"
        case "time":
            return clock_s(value)
        case "short":
            return short(value)
        case _:
            return real(value)


class BesideBaseline(msgspec.Struct, frozen=True):
    """A result beside the baseline's."""

    text: str
    """+1.2 %; empty for the baseline itself, and where one of the two is not known."""
    verdict: Literal["better", "worse", "same"]
    """`same` within the spread of the repetitions, or within half a per mille."""


def against(own: Result, baseline: Result) -> BesideBaseline:
    """The difference in per cent of the baseline."""
    one, other = own.mean, baseline.mean
    if one is None or other is None or not other:
        return BesideBaseline("", "same")
    share = (one - other) / abs(other)
    noise = max(own.spread or 0.0, baseline.spread or 0.0)
    if abs(share) < 5e-4 or abs(one - other) <= noise:
        verdict: Literal["better", "worse", "same"] = "same"
    else:
        verdict = "better" if (share < 0) == (own.better == "less") else "worse"
    return BesideBaseline(per_cent(share), verdict)


def results_of(group: RunGroup) -> list[Result]:
    """Loss, speed and memory of a group, in the order of the table."""
    return [
        _result(tr("Final loss"), group, _last_loss, "real", "less"),
        _result(tr("Best loss"), group, _best_loss, "real", "less"),
        _result(tr("Samples / s"), group, _speed, "short", "more"),
        _result(tr("Step time, p95"), group, _step_p95, "ms", "less"),
        _result(tr("Peak memory"), group, _peak_memory, "bytes", "less"),
        _result(tr("Active time"), group, _active, "time", "less"),
    ]


def _result(
    title: str,
    group: RunGroup,
    read: Any,  # noqa: ANN401 - a function of a run
    write: Literal["real", "short", "bytes", "ms", "time"],
    better: Better,
) -> Result:
    return Result(title, tuple(read(run) for run in group.runs), write, better)


def uses_validation(groups: Sequence[RunGroup]) -> bool:
    """Whether every run was evaluated: then its loss is compared, else the training loss is."""
    return all(_whole(run, EvaluationMeasured, "loss").finite.any() for group in groups for run in group.runs)


def _whole(run: ComparedRun, kind: type[Event], field: str) -> Groups:
    low, high = run.store.extent("steps")
    return run.store.items(kind, field, View("steps", low, max(high, 1.0), _WHOLE_PIXELS))


def _known(items: Groups) -> tuple[Floats, Floats, Floats]:
    """Means, least values and weights of the groups that have a finite value."""
    there = items.finite > 0
    return items.total[there] / items.finite[there], items.lo[there], items.finite[there]


def losses(run: ComparedRun) -> Groups:
    """Validation losses; where there are none, those of the optimizer steps."""
    validation = _whole(run, EvaluationMeasured, "loss")
    return validation if validation.finite.any() else _whole(run, OptimizerStepMeasured, "loss")


def _last_loss(run: ComparedRun) -> float | None:
    means, _, _ = _known(losses(run))
    return float(means[-1]) if len(means) else None


def _best_loss(run: ComparedRun) -> float | None:
    _, least, _ = _known(losses(run))
    return float(least.min()) if len(least) else None


def _speed(run: ComparedRun) -> float | None:
    """The median over the run: the first steps are slow."""
    return _quantile(_whole(run, OptimizerStepMeasured, "samples_per_s"), 0.5)


def _step_p95(run: ComparedRun) -> float | None:
    return _quantile(_whole(run, OptimizerStepMeasured, "duration_s"), 0.95)


def _quantile(items: Groups, share: float) -> float | None:
    """Of the rows; of a run so long that rows are joined, of their means."""
    means, _, weights = _known(items)
    if not len(means):
        return None
    order = np.argsort(means)
    reached = np.cumsum(weights[order])
    return float(means[order][int(np.searchsorted(reached, share * reached[-1]))])


def _peak_memory(run: ComparedRun) -> float | None:
    """The most that torch was seen to have allocated; on a CPU, the process's largest resident set."""
    for kind, field in ((DeviceSampled, "torch_allocated_bytes"), (HostSampled, "process_rss_bytes")):
        items = _whole(run, kind, field)
        there = items.finite > 0
        if there.any():
            return float(items.hi[there].max())
    return None


def _active(run: ComparedRun) -> float | None:
    seconds = run.store.extent("time")[1]
    return seconds if seconds > 0 else None


def table_of_differences(groups: Sequence[RunGroup], baseline: int = 0) -> list[list[str]]:
    """What differs as plain rows, a header first: for copying and for files."""
    found = differences(groups)
    rows = [[tr("Run"), tr("Name"), *found.titles]]
    for group in groups:
        cells = [cell_of(group, key, groups[baseline])[0] for key in found.keys]
        rows.append([group.label, group.names, *cells])
    return rows


def table_of_results(groups: Sequence[RunGroup], baseline: int = 0) -> list[list[str]]:
    """Results as plain rows, a header first, each number followed by its difference from the baseline."""
    results = [results_of(group) for group in groups]
    header = [tr("Run"), tr("Name")]
    for result in results[0] if results else ():
        header += [result.title, tr("against the baseline")]
    rows = [header]
    for place, (group, own) in enumerate(zip(groups, results, strict=True)):
        row = [group.label, group.names]
        for one, other in zip(own, results[baseline], strict=True):
            row += [one.text, "" if place == baseline else against(one, other).text]
        rows.append(row)
    return rows


def x_extent(groups: Sequence[RunGroup], axis: Any) -> float:  # noqa: ANN401 - an Axis
    """Where the longest run stands on an x-axis."""
    return max((run.store.extent(axis)[1] for group in groups for run in group.runs), default=0.0)
