"""micro-batch × N × world = effective batch, as a draft has them. No Qt."""

from __future__ import annotations

from typing import Final

from gradacc_gui.recipe.draft import Draft
from gradacc_gui.recipe.field_specs import ABSENT
from gradacc_gui.recipe.points import points_fault
from gradacc_gui.words import tr

MICRO_PATH: Final = "accumulation.micro_batch_size"
N_PATH: Final = "accumulation.gradient_accumulation_steps"
BATCH_PATH: Final = "accumulation.effective_batch_size"
STEPS_PATH: Final = "run.max_optimizer_steps"
SAMPLES_PATH: Final = "run.max_samples"
SCHEDULE_PATH: Final = "accumulation.schedule"
MOST_WORDED: Final = 3
"""So many changes of the effective batch are told one by one."""


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
        points = _right_points(draft)
        self.scheduled = bool(points) and points[0][0] == 0
        """Whether the schedule of N sets N from the start, over what its own field says."""
        first = points[0][1] if self.scheduled else None
        if self.effective is not None and first is None:
            divides = one is not None and self.effective % one == 0
            self.steps = self.effective // one if divides and one is not None else None
        else:
            self.steps = first if first is not None else self.steps
            self.effective = one * self.steps if one is not None and self.steps else None
        self.later = tuple((sample, one * steps) for sample, steps in points if sample) if one else ()
        """From which sample on the schedule of N makes which effective batch."""

    def later_words(self) -> str:
        """How the effective batch goes on: ", from sample 6,400 on 64"; empty where N is constant."""
        shown = self.later if len(self.later) <= MOST_WORDED else self.later[: MOST_WORDED - 1]
        words = [
            tr("from sample {sample:,} on {count:,}").format(sample=sample, count=count)
            for sample, count in shown
        ]
        if len(shown) < len(self.later):
            words.append(tr("… and in the end {count:,}").format(count=self.later[-1][1]))
        return "".join(f", {part}" for part in words)


def _right_points(draft: Draft) -> list[tuple[int, int]]:
    """Samples and N of the schedule of N; none while a row of it is wrong."""
    if points_fault(draft.specs[SCHEDULE_PATH], draft.text(SCHEDULE_PATH)):
        return []
    return [(point["from_sample"], point["steps"]) for point in draft.value(SCHEDULE_PATH)]


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
