"""Rules that carry a published learning rate over to the effective batch here. No Qt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from trainer_backend.settings import Rule, learning_rate_after

RULES: Final[Mapping[Rule, str]] = {
    "linear": "linear: × ratio",
    "sqrt": "square root: × √ratio",
    "none": "none: as published",
}
"""The ratio is the effective batch here over the published one. Linear: Goyal et al. 2017, section 2.1, for
SGD; square root: Krizhevsky 2014 (arXiv 1404.5997); Malladi et al. 2022 (arXiv 2205.10287) for Adam."""


def effective_batch_of(published: Mapping[str, Any]) -> int | None:
    """The published effective batch: given, or micro-batch × N × devices."""
    accumulation = published.get("accumulation", {})
    run = published.get("run", {})
    if not isinstance(accumulation, Mapping) or not isinstance(run, Mapping):
        return None
    given = _positive(accumulation.get("effective_batch_size"))
    if given is not None:
        return int(given)
    parts = [
        _positive(accumulation.get("micro_batch_size")),
        _positive(accumulation.get("gradient_accumulation_steps", 1)),
        _positive(run.get("devices", 1)),
    ]
    return None if None in parts else int(math.prod(part for part in parts if part))


def learning_rate_of(published: Mapping[str, Any]) -> float | None:
    """The published learning rate, where it is one positive number."""
    optimizer = published.get("optimizer", {})
    return _positive(optimizer.get("learning_rate")) if isinstance(optimizer, Mapping) else None


def _positive(value: Any) -> float | None:  # noqa: ANN401 - plain data
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return value if fits else None


def scaled(learning_rate: float, kappa: float, rule: Rule) -> float:
    """A learning rate carried to an effective batch `kappa` times as large; four significant figures."""
    return float(f"{learning_rate_after(learning_rate, kappa, rule):.4g}")
