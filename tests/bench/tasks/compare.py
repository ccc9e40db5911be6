"""Rounds of turns, and what they say."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from tests.bench.figures import interval
from tests.bench.tasks.cases import STEPS, Case
from tests.bench.tasks.rivals import Raw
from tests.bench.tasks.turns import Turns

WARM_UP: Final = 3
"""Windows before the first round."""
TOLERATED: Final = 0.1
"""Disagreement above it means that two trainers do not do the same work (rounding gives some 0.01)."""

Spent = dict[str, list[float]]
"""Seconds a micro-batch of each trainer, round by round; "by_hand" is the mean of both raw loops."""


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
    Raw(run()).build()  # imports what all trainers need, before they are forked
    for _ in range(case.sets):
        take_set(case, run, clock, found)
    return found


def take_set(case: Case, run: Callable[[], Path], clock: str, found: Found) -> None:
    """One set of processes, a trainer each, and its rounds."""
    names = ("ours", *case.rivals, "raw", "raw_again")
    started = random.sample(names, len(names))
    turns = {name: Turns(name.removesuffix("_again"), run(), clock) for name in started}
    spent: Spent = {name: [] for name in names}
    try:
        for each in turns.values():
            each.ready()
        moved = {name: each.weights() for name, each in turns.items()}
        for name, each in turns.items():
            each.take(WARM_UP)
            moved[name] = each.weights() - moved[name]
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
    spent["by_hand"] = list(map(statistics.mean, zip(spent["raw"], spent["raw_again"], strict=True)))
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

    def put(key: str, of: Callable[[float, float], float], one: str, other: str, digits: int) -> None:
        """A figure of two trainers, round by round."""
        rows = [list(map(of, spent[one], spent[other])) for spent in found.spent]
        result[key] = round(statistics.median(itertools.chain(*rows)), digits)
        result[f"{key}_interval"] = interval(rows, digits)
        result[f"{key}_by_set"] = [round(statistics.median(row), digits) for row in rows]

    for rival in (*case.rivals, "by_hand"):
        name = "raw" if rival == "by_hand" else rival
        if case.size == "small":
            put(f"{kind}_us_saved_per_micro_batch_over_{name}", saved_us, "ours", rival, 1)
        elif rival != "by_hand":
            put(f"{kind}_ratio_over_{name}_50ms", operator.truediv, "ours", rival, 4)
    small = "small_" if case.size == "small" else ""
    put(f"{kind}_{small}ratio_over_raw", operator.truediv, "ours", "by_hand", 4)
    put(f"{case.name}_aa_ratio", operator.truediv, "raw_again", "raw", 4)
    by_hand = itertools.chain.from_iterable(spent["by_hand"] for spent in found.spent)
    result[f"{case.name}_micro_batch_ms"] = round(1e3 * statistics.median(by_hand), 3)
    result[f"{case.name}_disagreement"] = round(max(found.disagreements), 6)
    if case.size == "50ms":
        result[f"{kind}_peak_memory_ratio_over_raw"] = round(statistics.median(found.peaks), 4)
    return result


def saved_us(ours: float, other: float) -> float:
    """Microseconds, from seconds."""
    return 1e6 * (other - ours)
