"""`python -m tests.bench.tasks [--quick] [--only causal_lm …]`: see the package's text."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Final

MEMORY_WINDOWS: Final = 6
MEMORY_PROCESSES: Final = 3


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two short rounds of small micro-batches: only that everything works",
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="KIND", help="causal_lm, segmentation, …")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="the process's CPU time, not the wall clock: on a busy machine",
    )
    parser.add_argument("--rounds", type=int, help="rounds of each case, instead of its own")
    asked = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    home = Path(tempfile.mkdtemp(prefix="gradacc-bench-"))
    os.environ["GRADACC_HOME"] = str(home)
    warnings.simplefilter("ignore")  # other trainers' advice
    try:
        result = measure(
            home, quick=asked.quick, only=asked.only, cpu_time=asked.cpu_time, rounds=asked.rounds
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps(result))


def measure(
    home: Path, *, quick: bool, only: list[str], cpu_time: bool, rounds: int | None
) -> dict[str, object]:
    """All cases."""
    import dataclasses

    import torch

    from tests.bench.tasks import compare
    from tests.bench.tasks.cases import CASES
    from tests.bench.tasks.memory import peak_ratio

    torch.set_num_threads(1)
    result: dict[str, object] = {}
    for case in CASES:
        if only and case.kind not in only:
            continue
        if quick:
            small = next(one for one in CASES if one.kind == case.kind)
            case = dataclasses.replace(  # noqa: PLW2901 - the same, shorter
                case, prepare=small.prepare, rounds=2, untimed=1, timed=1
            )
        elif rounds:
            case = dataclasses.replace(case, rounds=rounds)  # noqa: PLW2901 - likewise
        run = case.runs(home / case.name)
        found = compare.measure(case, run, time.process_time if cpu_time else time.perf_counter)
        print(found, file=sys.stderr, flush=True)
        result |= found
        if case.size == "50ms":
            windows, processes = (2, 1) if quick else (MEMORY_WINDOWS, MEMORY_PROCESSES)
            peaks = [peak_ratio(run, windows) for _ in range(processes)]
            result[f"{case.kind}_peak_memory_ratio_over_raw"] = round(statistics.median(peaks), 4)
    apart = [float(value) for key, value in result.items() if key.endswith("_aa_ratio")]  # type: ignore[arg-type]
    return result | {"aa_ratio": max(apart, key=lambda ratio: abs(ratio - 1))}


if __name__ == "__main__":
    main()
