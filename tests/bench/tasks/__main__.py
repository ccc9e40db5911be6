"""`python -m tests.bench.tasks [--quick] [--only causal_lm …]`: see the package's text."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two short rounds of small micro-batches, said for both sizes: only that everything works",
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="KIND", help="causal_lm, segmentation, …")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="a process's CPU time, not the wall clock: on a busy machine",
    )
    parser.add_argument("--sets", type=int, help="sets of each case, instead of its own")
    asked = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    warnings.simplefilter("ignore")  # other trainers' advice, in their forked processes too
    home = Path(tempfile.mkdtemp(prefix="gradacc-bench-"))
    os.environ["GRADACC_HOME"] = str(home)
    try:
        clock = "cpu" if asked.cpu_time else "wall"
        result = measure(home, quick=asked.quick, only=asked.only, clock=clock, sets=asked.sets)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps(result))


def measure(home: Path, *, quick: bool, only: list[str], clock: str, sets: int | None) -> dict[str, object]:
    """All cases."""
    from tests.bench.tasks.cases import CASES
    from tests.bench.tasks.compare import Found, said
    from tests.bench.tasks.compare import measure as found_in

    result: dict[str, object] = {}
    found = Found()
    for case in CASES:
        if only and case.kind not in only:
            continue
        if not quick:
            found = found_in(dataclasses.replace(case, sets=sets or case.sets), home / case.name, clock)
        elif case.size == "small":  # the 50-ms case of the same kind comes next, and says the same
            short = dataclasses.replace(case, windows=1, turns=1, rounds=2, sets=1)
            found = found_in(short, home / case.name, clock)
        keys = said(case, found)
        print(json.dumps(keys), file=sys.stderr, flush=True)
        result |= keys
    apart = [float(value) for key, value in result.items() if key.endswith("_aa_ratio")]  # type: ignore[arg-type]
    return result | {"aa_ratio": max(apart, key=lambda ratio: abs(ratio - 1))}


if __name__ == "__main__":
    main()
