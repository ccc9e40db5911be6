"""`python -m tests.bench.faults [NAME …]`: see the package's text."""

from __future__ import annotations

import argparse
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def names() -> list[str]:
    """The campaigns, by module."""
    return sorted(module.name for module in pkgutil.iter_modules([str(HERE)]) if module.name[0] != "_")


def found_by(name: str) -> dict[str, Any]:
    """What one module prints last. Its own messages pass through."""
    command = [sys.executable, "-m", f"tests.bench.faults.{name}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=HERE.parents[2])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def merge(into: dict[str, Any], found: dict[str, Any]) -> None:
    """Add what one campaign found to what others did."""
    for key, value in found.items():
        match into.get(key), value:
            case dict() as before, dict():
                merge(before, value)
            case (int() | float()) as before, (int() | float()):
                into[key] = before + value
            case _:
                into[key] = value


def main() -> None:
    """Try all, or those named, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; default: all")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(names())
    if unknown:
        parser.error(f"There is no {', '.join(sorted(unknown))}; choose from {', '.join(names())}.")
    result: dict[str, Any] = {}
    for name in asked.names or names():
        found = found_by(name)
        print(json.dumps(found), file=sys.stderr, flush=True)
        merge(result, found)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
