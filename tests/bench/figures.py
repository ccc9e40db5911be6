"""What several benchmarks say of their measurements."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

RESAMPLED: Final = 2_000


def interval(groups: Sequence[Sequence[float]], digits: int) -> list[float]:
    """95 %, for the median of all: groups (processes) are drawn with replacement, and figures in each."""
    draw = random.Random(0).choices  # noqa: S311 - not for secrets
    medians = sorted(
        statistics.median(
            [figure for group in draw(groups, k=len(groups)) for figure in draw(group, k=len(group))]
        )
        for _ in range(RESAMPLED)
    )
    return [round(medians[int(share * RESAMPLED)], digits) for share in (0.025, 0.975)]


def peak_bytes() -> int:
    """Largest resident memory of this process so far (getrusage's would be inherited over exec)."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    assert found is not None
    return int(found[1]) * 1024
