"""The chosen pair against the best of them all, by an exhaustive interleaved sweep.

Every pair (b, N) of the effective batch runs whole windows in one process, round by round, so that what
disturbs the machine disturbs them alike. Regret: the chosen pair's time over the best one's, less one.
"""

from __future__ import annotations

import functools
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.bench.advisor._probed_tasks import written
from trainer_backend.planner.pairs import sizes_for
from trainer_backend.planner.plan_command import make_plan, probe_process
from trainer_backend.planner.probing import Prober
from trainer_backend.recipe import load_recipe

EFFECTIVE_BATCH: Final = 32
ROUNDS: Final = 7
LEAST_SPREAD: Final = 1.5
"""The slowest pair over the fastest, so that a choice matters."""
MODELS: Final = {
    "convolutional": ("Pictures", {"width": 16, "side": 16}),
    "transformer": ("Tokens", {"layers": 2, "width": 256, "length": 16}),
}


def measure() -> dict[str, Any]:
    """The largest regret, and what a plan takes."""
    regrets, spreads, took = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (entry, options) in MODELS.items():
            path = written(Path(folder), entry, EFFECTIVE_BATCH, **options)
            began = time.monotonic()
            plan = make_plan(load_recipe(path), functools.partial(probe_process, str(path)), lambda _: None)
            took[name] = round(time.monotonic() - began, 1)
            assert plan.best is not None
            by_size = swept(path)
            best = min(by_size.values())
            regrets[name] = round(by_size[plan.best.micro_batch_size] / best - 1, 4)
            spreads[name] = round(max(by_size.values()) / best, 2)
            assert spreads[name] >= LEAST_SPREAD, "these pairs do not differ enough"
            shown = {size: round(1e3 * value, 2) for size, value in by_size.items()}
            print(f"{name}: chose {plan.best.micro_batch_size} of {shown} ms", file=sys.stderr, flush=True)
    return {
        "plan_regret": max(regrets.values()), "plan_regrets": regrets, "plan_spreads": spreads,
        "plan_s": max(took.values()), "plan_s_by_model": took,
    }  # fmt: skip


def swept(path: Path) -> dict[int, float]:
    """Median seconds of a whole window of each micro-batch size that divides the effective batch."""
    prober = Prober(load_recipe(path))
    sizes = sizes_for(EFFECTIVE_BATCH, prober.samples)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for turn in range(ROUNDS + 1):
        for size in sizes if turn % 2 else reversed(sizes):
            seconds = prober.timed(size, EFFECTIVE_BATCH // size)
            if turn:  # the first round warms everything up
                times[size].append(seconds)
    return {size: statistics.median(values) for size, values in times.items()}
