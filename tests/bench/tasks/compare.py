"""Rounds of turns, and what they say."""

from __future__ import annotations

import dataclasses
import itertools
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from tests.bench.tasks.cases import STEPS, Case
from tests.bench.tasks.turns import Turns

WARM_UP: Final = 3
"""Windows before the first round."""
RESAMPLED: Final = 2_000
TOLERATED: Final = 0.1
"""Disagreement above it means that two trainers do not do the same work (rounding gives some 0.01)."""

Spent = dict[str, list[float]]
"""Seconds a micro-batch of each trainer, round by round."""
Rows = list[list[float]]
"""A figure of each round, set by set."""


@dataclasses.dataclass
class Found:
    """What the sets of processes of one case gave."""

    spent: list[Spent] = dataclasses.field(default_factory=list)
    peaks: list[float] = dataclasses.field(default_factory=list)
    """The product's peak memory over that of the loops written by hand."""
    disagreements: list[float] = dataclasses.field(default_factory=list)


def measure(case: Case, folder: Path, clock: str) -> Found:
    """Run a case in as many sets of fresh processes as it asks for. `folder` is made."""
    run, found = case.runs(folder), Found()
    for _ in range(case.sets):
        take_set(case, run, folder / "weights", clock, found)
    return found


def take_set(case: Case, run: Callable[[], Path], file: Path, clock: str, found: Found) -> None:
    """One set of processes, a trainer each, and its rounds."""
    names = ("ours", *case.rivals, "raw", "raw_again")
    turns = {name: Turns(name.removesuffix("_again"), run(), clock) for name in names}
    spent: Spent = {name: [] for name in names}
    try:
        for each in turns.values():
            each.ready()
        moved = {name: each.weights(file) for name, each in turns.items()}
        for name, each in turns.items():
            each.take(WARM_UP)
            moved[name] = each.weights(file) - moved[name]
        for _ in range(case.rounds):
            took_s = dict.fromkeys(names, 0.0)
            for _ in range(case.turns):
                for name in random.sample(names, len(names)):
                    took_s[name] += turns[name].take(case.windows)
            for name in names:
                spent[name].append(took_s[name] / case.turns / case.windows / STEPS)
        peak = {name: each.peak_bytes() for name, each in turns.items()}
    finally:
        for each in turns.values():
            each.end()
    found.spent.append(spent)
    found.peaks.append(2 * peak["ours"] / (peak["raw"] + peak["raw_again"]))
    found.disagreements.append(disagreement(moved))


def disagreement(moved: dict[str, torch.Tensor]) -> float:
    """Largest distance of a trainer's weights from the hand-written loop's, over what those have moved."""
    reference = moved["raw"]
    apart = {name: float((change - reference).norm() / reference.norm()) for name, change in moved.items()}
    if max(apart.values()) > TOLERATED:
        raise SystemExit(f"The trainers do not do the same work: {apart}.")
    return max(apart.values())


def said(case: Case, found: Found) -> dict[str, object]:
    """Keys of one case."""
    kind, result = case.kind, dict[str, object]()

    def put(key: str, rows: Rows, digits: int) -> None:
        result[key] = round(statistics.median(itertools.chain(*rows)), digits)
        result[f"{key}_interval"] = [round(bound, digits) for bound in interval(rows)]
        result[f"{key}_by_set"] = [round(statistics.median(row), digits) for row in rows]

    by_hand = [
        [(one + other) / 2 for one, other in zip(spent["raw"], spent["raw_again"], strict=True)]
        for spent in found.spent
    ]

    def against(rival: str) -> list[list[tuple[float, float]]]:
        others = by_hand if rival == "raw" else [spent[rival] for spent in found.spent]
        return [
            list(zip(spent["ours"], other, strict=True))
            for spent, other in zip(found.spent, others, strict=True)
        ]

    for rival in (*case.rivals, "raw"):
        rows = against(rival)
        if case.size == "small":
            saved = [[1e6 * (other - ours) for ours, other in row] for row in rows]
            put(f"{kind}_us_saved_per_micro_batch_over_{rival}", saved, 1)
        elif rival != "raw":
            put(f"{kind}_ratio_over_{rival}_50ms", [[ours / other for ours, other in row] for row in rows], 4)
    small = "small_" if case.size == "small" else ""
    put(f"{kind}_{small}ratio_over_raw", [[ours / other for ours, other in row] for row in against("raw")], 4)
    put(
        f"{case.name}_aa_ratio",
        [
            [one / other for one, other in zip(spent["raw_again"], spent["raw"], strict=True)]
            for spent in found.spent
        ],
        4,
    )
    result[f"{case.name}_micro_batch_ms"] = round(1e3 * statistics.median(itertools.chain(*by_hand)), 3)
    result[f"{case.name}_disagreement"] = round(max(found.disagreements), 6)
    if case.size == "50ms":
        result[f"{kind}_peak_memory_ratio_over_raw"] = round(statistics.median(found.peaks), 4)
    return result


def interval(rows: Rows) -> tuple[float, float]:
    """95 % for the median of all: sets are drawn with replacement, and rounds in each."""
    chance = random.Random(0)  # noqa: S311 - not for secrets
    medians = sorted(
        statistics.median(
            [value for row in chance.choices(rows, k=len(rows)) for value in chance.choices(row, k=len(row))]
        )
        for _ in range(RESAMPLED)
    )
    return medians[int(0.025 * RESAMPLED)], medians[int(0.975 * RESAMPLED) - 1]
