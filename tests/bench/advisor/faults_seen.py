"""Spikes and slow drifts put into healthy noise, and how many of them are told."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from tests.bench.advisor.healthy_runs import EVENT, draws
from trainer_backend.protocol import OptimizerStepMeasured
from trainer_backend.watching.watcher import Watcher

SPIKES: Final = 1_000
SPIKE_RUNS: Final = 10
BEFORE_SPIKES: Final = 1_500
BETWEEN: Final = 60
DRIFTS: Final = 200
BEFORE_DRIFT: Final = 1_200
RISING: Final = 500
AFTER: Final = 250
"""Windows after the rise within which it must have been told."""


def measure() -> dict[str, Any]:
    """Shares found of 1,000 spikes of 6 to 10 deviations, and of 200 drifts of 10 to 30 %."""
    spikes = sum(spikes_found(seed) for seed in range(SPIKE_RUNS)) / SPIKES
    drifts = [drift_found(seed) for seed in range(DRIFTS)]
    return {"spike_recall": round(spikes, 4), "drift_recall": round(sum(drifts) / DRIFTS, 4)}


def spikes_found(seed: int) -> int:
    """Of a run's spikes in the loss, those that an alert names by their step."""
    rng, watcher = np.random.default_rng(seed), Watcher()
    many = SPIKES // SPIKE_RUNS
    noise = draws(rng, BEFORE_SPIKES + many * BETWEEN, heavy=False)
    found, deviation = 0, 0.04
    for place, value in enumerate(noise.tolist()):
        is_spike = place >= BEFORE_SPIKES and (place - BEFORE_SPIKES) % BETWEEN == BETWEEN // 2
        off = rng.uniform(6, 10) if is_spike else value
        told = watcher.take_step(window(place, loss=2 + deviation * off))
        found += is_spike and any(alert.code == "loss-spike" and alert.step == place + 1 for alert in told)
    return found


def drift_found(seed: int) -> bool:
    """Whether a rise of one quantity by 10 to 30 % over 500 windows is told, and not before it began."""
    rng, watcher = np.random.default_rng(5000 + seed), Watcher()
    code, field = (
        ("loss-drift", "loss"), ("gradient-drift", "gradient_norm"), ("step-time-drift", "duration_s"),
    )[seed % 3]  # fmt: skip
    usual, deviation = {"loss": (2.0, 0.05), "gradient_norm": (1.0, 0.1), "duration_s": (0.2, 0.03)}[field]
    rise = rng.uniform(0.1, 0.3)
    noise = draws(rng, BEFORE_DRIFT + RISING + AFTER, heavy=seed % 2 == 1)
    for place, value in enumerate(noise.tolist()):
        level = 1 + rise * min(1.0, max(0.0, (place - BEFORE_DRIFT) / RISING))
        told = watcher.take_step(window(place, **{field: usual * level * (1 + deviation * value)}))
        if any(alert.code == code for alert in told):
            return place >= BEFORE_DRIFT
    return False


def window(place: int, **fields: float) -> OptimizerStepMeasured:
    """One whole window with these values."""
    plain = {"loss": 2.0, "gradient_norm": 1.0, "duration_s": 0.2, "data_wait_s": 0.0}
    return msgspec.structs.replace(
        EVENT, step=place + 1, samples_seen=32 * (place + 1), skipped="", **(plain | fields)
    )
