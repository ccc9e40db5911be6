"""Runs without a fault: every alert about them is a false one.

100,000 windows in 40 runs; the noise of every second one has heavy tails. Loss falls by a power law, N
changes twice, step times jitter and hiccup, memory grows while caches fill and then breathes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from tests.support.events import optimizer_step
from trainer_backend.noise_scale import NoiseEstimate
from trainer_backend.protocol import AlertRaised, HostSampled, OptimizerStepMeasured
from trainer_backend.watching.watcher import Watcher

WINDOWS: Final = 100_000
A_RUN: Final = 2_500
READING_EVERY: Final = 4
NOISE_SCALE: Final = 40.0
SIZE: Final = 8
MIB: Final = 2**20
EVENT: Final = optimizer_step()


def measure() -> dict[str, Any]:
    """Alerts of all kinds over all windows."""
    codes: dict[str, int] = {}
    for run in range(WINDOWS // A_RUN):
        for alert in watched(run):
            codes[alert.code] = codes.get(alert.code, 0) + 1
    return {
        "false_alarms": sum(codes.values()), "false_alarm_codes": codes, "healthy_windows": WINDOWS,
        "live_runs_of_10_minutes": 0,
    }  # fmt: skip


def watched(run: int) -> list[AlertRaised]:
    """One healthy run's alerts."""
    rng = np.random.default_rng(1000 + run)
    watcher, found = Watcher(), []
    for place, event in enumerate(healthy(rng, heavy=run % 2 == 1)):
        found += watcher.take_step(event, micro_batch_size=SIZE, noise=noise_known())
        if place % READING_EVERY == 0:
            found += watcher.take_reading(reading(rng, place))
    return found


def noise_known() -> NoiseEstimate:
    """What the run knows of its own noise."""
    return NoiseEstimate(
        windows=400, value=NOISE_SCALE, low=30.0, high=55.0, trace=NOISE_SCALE, squared_gradient=1.0
    )


def draws(rng: np.random.Generator, many: int, *, heavy: bool) -> Any:
    """Values of mean 0 and deviation 1: Gaussian, or Student's t with 3 degrees, or lognormal."""
    if not heavy:
        return rng.standard_normal(many)
    if rng.random() < 0.5:
        return rng.standard_t(3, many) / math.sqrt(3)
    sigma = 0.5
    mean, deviation = math.exp(sigma**2 / 2), math.exp(sigma**2 / 2) * math.sqrt(math.expm1(sigma**2))
    return (rng.lognormal(0, sigma, many) - mean) / deviation


def healthy(
    rng: np.random.Generator, *, heavy: bool, windows: int = A_RUN
) -> Iterator[OptimizerStepMeasured]:
    """Windows of a run in which nothing is wrong."""
    loss_noise, norm_noise, time_noise = (draws(rng, windows, heavy=heavy) for _ in range(3))
    hiccup = rng.random(windows) < 0.005
    changes = {windows * 2 // 5: int(rng.choice([2, 8, 16])), windows * 7 // 10: int(rng.choice([1, 4, 32]))}
    deviation, steps, seen = rng.uniform(0.01, 0.06), 4, 0
    for place in range(windows):
        steps = changes.get(place, steps)
        shrink, batch = math.sqrt(4 / steps), SIZE * steps
        seen += batch
        level = 1.2 + 3.0 * (1 + place / 50) ** -0.7
        norm = math.sqrt(1 + NOISE_SCALE / batch)
        duration = (
            0.02 + 0.05 * steps * (1 + 0.01 * abs(float(time_noise[place]))) + 0.2 * float(hiccup[place])
        )
        yield msgspec.structs.replace(
            EVENT, step=place + 1, updates=place + 1, samples_seen=seen, accumulation_steps=steps,
            micro_batches=steps, micro_batch_size=SIZE, samples=batch,
            loss=level + deviation * shrink * float(loss_noise[place]),
            gradient_norm=abs(norm * (1 + 0.08 * shrink * float(norm_noise[place]))),
            duration_s=duration, data_wait_s=0.02 * duration, skipped="",
        )  # fmt: skip


def reading(rng: np.random.Generator, place: int) -> HostSampled:
    """Memory of the process: it fills for a while, then breathes."""
    used = 800 * MIB + 150 * MIB * (1 - math.exp(-place / 60)) + 10 * MIB * rng.standard_normal()
    return HostSampled(
        process_rss_bytes=int(used), workers_rss_bytes=None, host_memory_used_bytes=4 * 2**30,
        host_memory_total_bytes=2**34, process_cpu_percent=90.0, host_cpu_percent=95.0,
    )  # fmt: skip
