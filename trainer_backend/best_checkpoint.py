"""Which of a run's checkpoints is the best, told from the evaluations that lie in them. No torch."""

from __future__ import annotations

import json
import math
from pathlib import Path

from trainer_backend.goals import Mode
from trainer_backend.run_directory import checkpoints_in

EVALUATION = "evaluation"
"""The key in a checkpoint's state.json of what was measured there, by metric; loss is the validation's."""


def evaluation_in(path: Path) -> dict[str, float]:
    """What was measured at a checkpoint's step; empty when nothing was, or it cannot be read."""
    try:
        found = json.loads((path / "state.json").read_text("utf-8")).get(EVALUATION)
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    values = found.items() if isinstance(found, dict) else ()
    return {str(name): float(value) for name, value in values if isinstance(value, int | float)}


def ranked(folder: Path, metric: str, mode: Mode) -> list[tuple[int, float]]:
    """Steps and values of the checkpoints in `folder` at which `metric` was measured, the best first.

    Of equal ones the later is first.
    """
    found = [
        (step, value)
        for step, path in checkpoints_in(folder).items()
        if (value := evaluation_in(path).get(metric)) is not None and not math.isnan(value)
    ]
    sign = 1 if mode == "min" else -1
    return sorted(found, key=lambda one: (sign * one[1], -one[0]))
