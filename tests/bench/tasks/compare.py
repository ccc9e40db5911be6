"""Rounds of turns, and what they say."""

from __future__ import annotations

import gc
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch

from tests.bench.tasks.cases import MAKERS, STEPS, Case
from tests.bench.tasks.turns import Turns

RESAMPLED: Final = 2_000
TOLERATED: Final = 0.1
"""Disagreement above it means that two trainers do not do the same work (rounding gives some 0.01)."""


def measure(case: Case, run: Callable[[], Path], clock: Callable[[], float]) -> dict[str, object]:
    """Run a case; gives its part of the result. `run` makes a run directory."""
    names = ("ours", *case.rivals, "raw", "raw_again")
    turns = {name: Turns(name, MAKERS[name](run()), clock) for name in names}
    chance = random.Random()  # noqa: S311 - not for secrets
    spent: dict[str, list[float]] = {name: [] for name in names}
    for each in turns.values():
        each.begin()
    first = {name: weights(each.trainer.model) for name, each in turns.items()}
    gc.collect()
    gc.freeze()  # what was built is looked through in nobody's turn
    for name, each in turns.items():
        each.take(2, 1)
        first[name] = weights(each.trainer.model) - first[name]
    for _ in range(case.rounds):
        for name in chance.sample(names, len(names)):
            gc.collect()
            spent[name].append(turns[name].take(case.untimed, case.timed) / STEPS)
    for each in turns.values():
        each.end()
    gc.unfreeze()
    return said(case, spent) | {f"{case.name}_disagreement": disagreement(first)}


def weights(model: torch.nn.Module) -> torch.Tensor:
    """All parameters, flat."""
    return torch.cat([parameter.detach().flatten().double() for parameter in model.parameters()])


def disagreement(moved: dict[str, torch.Tensor]) -> float:
    """Largest distance of a trainer's weights from the hand-written loop's, over what those have moved."""
    reference = moved["raw"]
    apart = {name: float((change - reference).norm() / reference.norm()) for name, change in moved.items()}
    if max(apart.values()) > TOLERATED:
        raise SystemExit(f"The trainers do not do the same work: {apart}.")
    return round(max(apart.values()), 6)


def said(case: Case, spent: dict[str, list[float]]) -> dict[str, object]:
    """Keys of one case. `spent`: seconds a micro-batch, round by round."""
    kind, result = case.kind, dict[str, object]()

    def put(key: str, values: Sequence[float], digits: int) -> None:
        low, high = interval(values)
        result[key] = round(statistics.median(values), digits)
        result[f"{key}_interval"] = [round(low, digits), round(high, digits)]

    def ratios(one: str, other: str) -> list[float]:
        return [a / b for a, b in zip(spent[one], spent[other], strict=True)]

    for rival in (*case.rivals, "raw"):
        if case.size == "small":
            saved_us = [1e6 * (b - a) for a, b in zip(spent["ours"], spent[rival], strict=True)]
            put(f"{kind}_us_saved_per_micro_batch_over_{rival}", saved_us, 1)
        elif rival != "raw":
            put(f"{kind}_ratio_over_{rival}_50ms", ratios("ours", rival), 4)
    small = "small_" if case.size == "small" else ""
    put(f"{kind}_{small}ratio_over_raw", ratios("ours", "raw"), 4)
    put(f"{case.name}_aa_ratio", ratios("raw_again", "raw"), 4)
    result[f"{case.name}_micro_batch_ms"] = round(1e3 * statistics.median(spent["raw"]), 3)
    return result


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    chance = random.Random(0)  # noqa: S311 - not for secrets
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLED))
    return medians[int(0.025 * RESAMPLED)], medians[int(0.975 * RESAMPLED) - 1]
