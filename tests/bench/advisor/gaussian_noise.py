"""Gaussian gradients with tr(Sigma) = 50 and |G|^2 = 0.5, so a noise scale of 100: what is found."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from trainer_backend.noise_scale import NoiseSample, NoiseScale, sums_of, window_noise

DIMENSIONS: Final = 2000
SIZE: Final = 4
"""Samples a micro-batch."""
TRACE, SQUARED, TRUE = 50.0, 0.5, 100.0
STEPS: Final = (2, 4, 8, 16)
WINDOWS: Final = 4000
RUNS: Final = 500
"""Runs a number of micro-batches, each with one interval."""
RUN_WINDOWS: Final = 400


def measure() -> dict[str, Any]:
    """Error of the noise scale at its worst N, and how often the 95 % interval holds the true one."""
    rng = np.random.default_rng(20)
    found = {steps: long_run(rng, steps) for steps in STEPS}
    covered = [covers(rng, steps) for steps in STEPS for _ in range(RUNS)]
    said = [one for one in covered if one is not None]
    return {
        "noise_scale_rel_error": round(max(abs(value / TRUE - 1) for value in found.values()), 4),
        "noise_scale_by_n": {str(steps): round(value, 1) for steps, value in found.items()},
        "interval_coverage": round(sum(said) / len(said), 4),
        "intervals": len(said),
        "intervals_not_said": len(covered) - len(said),
    }


def long_run(rng: np.random.Generator, steps: int) -> float:
    """The noise scale after 4,000 windows of whole gradient vectors, each counting alike."""
    scale = NoiseScale(half_life=1e9)
    gradient = np.full(DIMENSIONS, math.sqrt(SQUARED / DIMENSIONS))
    deviation = math.sqrt(TRACE / DIMENSIONS / SIZE)
    for _ in range(WINDOWS):
        means = gradient + deviation * rng.standard_normal((steps, DIMENSIONS))
        norms = np.linalg.norm(means, axis=1).tolist()
        whole = float(np.linalg.norm(means.mean(axis=0)))
        sample = window_noise(sums_of([float(SIZE)] * steps, norms), whole, SIZE * steps)
        assert sample is not None
        scale.add(sample)
    estimate = scale.estimate()
    assert estimate is not None
    assert estimate.value is not None
    return estimate.value


def covers(rng: np.random.Generator, steps: int) -> bool | None:
    """Whether a run's interval holds the true noise scale; None where it gives none.

    The window's two sums are drawn from their own distributions (chi-square, non-central for the mean's).
    """
    scale = NoiseScale()
    variance = TRACE / DIMENSIONS / SIZE
    mean_square = (
        variance / steps * rng.noncentral_chisquare(DIMENSIONS, SQUARED * steps / variance, RUN_WINDOWS)
    )
    within = variance * rng.chisquare(DIMENSIONS * (steps - 1), RUN_WINDOWS)
    traces = SIZE * within / (steps - 1)
    for trace, square in zip(traces.tolist(), mean_square.tolist(), strict=True):
        scale.add(
            NoiseSample(micro_batches=steps, trace=trace, squared_gradient=square - trace / (SIZE * steps))
        )
    estimate = scale.estimate()
    assert estimate is not None
    if estimate.low is None:
        return None
    return estimate.low <= TRUE and (estimate.high is None or estimate.high >= TRUE)
