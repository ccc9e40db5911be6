"""micro-batch × N × world = effective batch, as a draft has them. No Qt."""

from __future__ import annotations

from typing import Any, Final

from gradacc_gui.form.draft import Draft
from gradacc_gui.form.specs import ABSENT

MICRO_PATH: Final = "accumulation.micro_batch_size"
N_PATH: Final = "accumulation.gradient_accumulation_steps"
BATCH_PATH: Final = "accumulation.effective_batch_size"
STEPS_PATH: Final = "run.max_optimizer_steps"
SAMPLES_PATH: Final = "run.max_samples"


class Factors:
    """The factors and their product; None where one is not right."""

    def __init__(self, draft: Draft) -> None:
        self.micro_batch: int | None = draft.valid_value(MICRO_PATH)
        self.world: int | None = draft.valid_value("run.devices")
        self.effective: int | None = draft.valid_value(BATCH_PATH)
        self.steps: int | None = draft.valid_value(N_PATH)
        self.from_batch = draft.value(BATCH_PATH) is not ABSENT
        """Whether the effective batch is what was typed, and N follows."""
        one = self.micro_batch * self.world if self.micro_batch and self.world else None
        first = _first_point(draft.valid_value("accumulation.schedule"))
        if self.effective is not None and first is None:
            divides = one is not None and self.effective % one == 0
            self.steps = self.effective // one if divides and one is not None else None
        else:
            self.steps = first if first is not None else self.steps
            self.effective = one * self.steps if one is not None and self.steps else None


def _first_point(points: Any) -> int | None:  # noqa: ANN401 - plain data
    """N that the schedule of N sets at sample 0."""
    if isinstance(points, list) and points and points[0].get("from_sample") == 0:
        steps: int = points[0]["steps"]
        return steps
    return None


def converted(draft: Draft, before: str, after: str) -> str | None:
    """What `before` says, said as `after`; None where that is not known or not a whole number."""
    value, factors = draft.valid_value(before), Factors(draft)
    if value is ABSENT or value is None:
        return None
    effective = factors.effective
    if (before, after) == (N_PATH, BATCH_PATH):
        return None if effective is None else str(effective)
    if (before, after) == (BATCH_PATH, N_PATH):
        return None if factors.steps is None else str(factors.steps)
    if (before, after) == (STEPS_PATH, SAMPLES_PATH):
        return None if effective is None else str(value * effective)
    if (before, after) == (SAMPLES_PATH, STEPS_PATH):
        return str(value // effective) if effective and value % effective == 0 else None
    return None
