"""scikit-learn's digits: the noise scale that a run shows, against the batch size that training prefers.

B_crit comes from runs of many batch sizes to a loss of 0.2, each at its best learning rate, by fitting
E = E_min (1 + B / B_crit) (McCandlish et al. 2018, equation 2.11). An MLP 64-32-10 under SGD.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from trainer_backend.engine import Accumulator, LossTerm, WindowResult
from trainer_backend.noise_scale import NoiseScale

TARGET: Final = 0.2
BATCHES: Final = (8, 16, 32, 64, 128, 256, 512)
RATES: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.2)
SEEDS: Final = (0, 1, 2)
MOST_STEPS: Final = 600
HELD: Final = 5
"""Steps over which the loss must be below the target on average: a single lucky one is none."""
RUN: Final = (8, 8, 0.2)
"""Micro-batch, N and learning rate of the run whose noise scale is taken."""


def measure() -> dict[str, Any]:
    """How many times the two differ, the larger over the smaller, at the run's middle and end."""
    torch.set_num_threads(1)
    x, y = data()
    steps = {batch: fewest_steps(x, y, batch) for batch in BATCHES}
    b_crit = critical_batch({batch: many for batch, many in steps.items() if many is not None})
    shown = noise_scales(x, y)
    return {
        "digits_b_crit_factor": round(max(max(value / b_crit, b_crit / value) for value in shown), 2),
        "digits_b_crit": round(b_crit, 1),
        "digits_noise_scales": [round(value, 1) for value in shown],
        "digits_steps": {str(batch): many for batch, many in steps.items()},
    }


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures of 64 numbers, centred and scaled, and their digits."""
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    return (x - x.mean(0)) / (x.std(0) + 0.1), torch.tensor(digits.target)


def fresh(seed: int) -> nn.Module:
    """The model as it begins."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def fewest_steps(x: torch.Tensor, y: torch.Tensor, batch: int) -> float | None:
    """Optimizer steps to the target at the best learning rate, the mean over the seeds."""
    found = []
    for rate in RATES:
        counts = [steps_to_target(x, y, batch, rate, seed) for seed in SEEDS]
        if None not in counts:
            found.append(sum(count for count in counts if count is not None) / len(counts))
    return min(found, default=None)


def steps_to_target(x: torch.Tensor, y: torch.Tensor, batch: int, rate: float, seed: int) -> int | None:
    """Steps of plain SGD until the loss over all data is below the target."""
    model, losses = fresh(seed), deque[float](maxlen=HELD)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    rng = np.random.default_rng(seed)
    for step in range(1, MOST_STEPS + 1):
        rows = torch.from_numpy(rng.integers(0, len(x), batch))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        whole = whole_loss(model, x, y)
        losses.append(whole)
        if len(losses) == HELD and sum(losses) / HELD < TARGET:
            return step
        if not math.isfinite(whole):
            return None
    return None


def whole_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """The mean loss over all data."""
    with torch.no_grad():
        return float(functional.cross_entropy(model(x), y))


def critical_batch(steps: dict[int, float]) -> float:
    """B_crit by least squares of log samples over a fine grid; E_min follows from each."""
    batches = np.array(list(steps))
    samples = np.log(batches * np.array(list(steps.values())))

    def off(b_crit: float) -> float:
        rest = samples - np.log1p(batches / b_crit)
        return float(np.var(rest))

    candidates: list[float] = np.geomspace(2, 2000, 400).tolist()
    return min(candidates, key=off)


def noise_scales(x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """What a live run to the same loss shows at its middle and at its end."""
    micro, steps, rate = RUN
    model, scale = fresh(0), NoiseScale()
    shown: list[float] = []

    def take(result: WindowResult) -> None:
        if result.noise is not None:
            scale.add(result.noise)
        estimate = scale.estimate()
        shown.append(math.nan if estimate is None or estimate.value is None else estimate.value)

    engine = Accumulator(
        model, torch.optim.SGD(model.parameters(), lr=rate), _loss, gradient_norm_every=1, on_window=take
    )
    rng = np.random.default_rng(0)
    for _ in range(MOST_STEPS):
        rows = [torch.from_numpy(rng.integers(0, len(x), micro)) for _ in range(steps)]
        engine.window([(x[part], y[part]) for part in rows])
        if whole_loss(model, x, y) < TARGET:
            break
    engine.flush()
    return [shown[len(shown) // 2], shown[-1]]


def _loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> LossTerm:
    x, y = batch
    return LossTerm(functional.cross_entropy(model(x), y, reduction="sum"), len(y))
