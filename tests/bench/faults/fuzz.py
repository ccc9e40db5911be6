"""Made-up input at every door: `python -m tests.bench.faults.fuzz [DOOR …] [--count N] [--first K]`.

fuzz: inputs tried at each door; tracebacks: those that raised what is no sentence for a person; hangs: those
that took too long. Each input is made from the door's name and its number, so that it can be tried again:
`fuzz recipe --first 123 --count 1`. The first of each kind of defect is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.bench.faults import _data_doors, _file_doors, _word_doors
from tests.bench.faults._trying import Attempt, try_many

DOORS: Final[dict[str, tuple[int, Callable[[Path], Attempt]]]] = {
    "recipe": (50_000, _file_doors.recipe),
    "inbox": (200_000, _file_doors.inbox),
    "import": (8_000, _file_doors.imports),
    "journal": (8_000, _data_doors.journal),
    "checkpoint": (8_000, _data_doors.checkpoint),
    "command_line": (20_000, _word_doors.command_line),
    "environment": (20_000, _word_doors.environment),
}
"""How many inputs each door is to take, and what makes its attempt; the folder is the attempt's own."""


def fuzz(door: str, folder: Path, count: int | None = None, first: int = 0) -> dict[str, Any]:
    """Try one door; gives the counts under their keys."""
    often, make = DOORS[door]
    tally = try_many(door, make(folder), often if count is None else count, first=first)
    return {"fuzz": {door: tally.tried}, "tracebacks": tally.tracebacks, "hangs": tally.hangs}


def main() -> None:
    """Try the doors, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("doors", nargs="*", metavar="DOOR", help=f"of {', '.join(DOORS)}; default: all")
    parser.add_argument("--count", type=int, help="inputs at each door; default: each door's own")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    asked = parser.parse_args()
    unknown = set(asked.doors) - DOORS.keys()
    if unknown:
        parser.error(f"There is no {', '.join(sorted(unknown))}; choose from {', '.join(DOORS)}.")
    result: dict[str, Any] = {"fuzz": {}, "tracebacks": 0, "hangs": 0}
    for door in asked.doors or DOORS:
        with tempfile.TemporaryDirectory(prefix="gradacc-fuzz-") as folder:
            os.environ["GRADACC_HOME"] = folder
            found = fuzz(door, Path(folder), asked.count, asked.first)
        print(json.dumps(found), file=sys.stderr, flush=True)
        result["fuzz"] |= found["fuzz"]
        result["tracebacks"] += found["tracebacks"]
        result["hangs"] += found["hangs"]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
