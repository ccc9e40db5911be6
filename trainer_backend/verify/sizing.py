"""How many samples a certificate takes, where nobody says: as many as end in about a minute."""

from __future__ import annotations

import math
import time
from typing import Final

from trainer_backend.engine.memory import free, is_out_of_memory
from trainer_backend.errors import GradaccError
from trainer_backend.tasks import Batch
from trainer_backend.verify.plain_pass import plain_pass
from trainer_backend.verify.report import ComputePrecision, Remark
from trainer_backend.verify.subject import Subject

WITHIN_S: Final = 45.0
"""What reading the data and importing torch leave of a minute."""
PASSES: Final = 40
"""Passes over all samples: windows, their floors, and what looks for the culprits."""


def fit_samples(subject: Subject, within_s: float = WITHIN_S) -> Remark | None:
    """Drop samples that there is no time for; gives what is then to be known.

    One pass over the fewest samples is timed. At least two micro-batches of the smallest size stay.
    """
    fewest = 2 * subject.smallest
    wanted = len(subject.samples)
    if wanted <= fewest:
        return None
    seconds = _seconds(subject, fewest)
    if seconds is None:
        return None
    usable = max(fewest, math.floor(within_s / PASSES / (seconds / fewest)))
    if usable >= wanted:
        return None
    subject.samples = subject.samples[:usable]
    subject.decoys = subject.decoys[: max(subject.smallest, usable // 2)]
    seconds = PASSES * seconds / fewest * wanted
    return Remark(
        code="fewer-samples",
        values={"samples": usable, "wanted": wanted, "minutes": math.ceil(seconds / 60)},
    )


def _seconds(subject: Subject, few: int) -> float | None:
    """What a pass over `few` samples takes; None where it cannot run, which the reference finds out too."""
    precisions: tuple[ComputePrecision, ...] = ("fp64", "fp32")
    for precision in precisions:
        try:
            parts = subject.parts((few,), precision)
            return min(_timed(subject, parts, precision) for _ in range(2))  # the first one warms up
        except GradaccError:
            return None
        except Exception as error:  # noqa: BLE001 - a kernel without fp64: its own words come with the reference
            if is_out_of_memory(error):
                free(subject.device)
    return None


def _timed(subject: Subject, parts: list[Batch], precision: ComputePrecision) -> float:
    begun = time.perf_counter()
    plain_pass(subject, parts, precision)
    return time.perf_counter() - begun
