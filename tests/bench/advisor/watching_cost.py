"""What watching a run costs its training thread: detectors and noise scale, a window."""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import numpy as np

from tests.bench.advisor.healthy_runs import SIZE, healthy
from trainer_backend.noise_scale import NoiseScale, sums_of, window_noise
from trainer_backend.watching.watcher import Watcher

WINDOWS: Final = 20_000
ROUNDS: Final = 5


def measure() -> dict[str, Any]:
    """Microseconds a window, the median of five rounds."""
    rng = np.random.default_rng(3)
    events = list(healthy(rng, heavy=True, windows=WINDOWS))
    took = []
    for _ in range(ROUNDS):
        watcher, scale = Watcher(), NoiseScale()
        began = time.perf_counter()
        for event in events:
            steps = event.micro_batches
            norm = event.gradient_norm or 0.0
            sample = window_noise(sums_of([float(SIZE)] * steps, [1.1 * norm] * steps), norm, event.samples)
            if sample is not None:
                scale.add(sample)
            watcher.take_step(event, micro_batch_size=SIZE, noise=scale.estimate())
            watcher.take_update_ratio(0.001)
        took.append((time.perf_counter() - began) / WINDOWS * 1e6)
    return {"watching_cost_us_per_window": round(statistics.median(took), 1)}
