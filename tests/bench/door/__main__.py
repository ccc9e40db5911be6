"""`python -m tests.bench.door [NAME …]`: see the package's text."""

from __future__ import annotations

import argparse
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def names() -> list[str]:
    """The measurements, by module."""
    return sorted(module.name for module in pkgutil.iter_modules([str(HERE)]) if module.name != "__main__")


def measured(name: str) -> dict[str, object]:
    """What one module prints last. Its own messages pass through."""
    command = [sys.executable, "-m", f"tests.bench.door.{name}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=HERE.parents[2])
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; default: all")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(names())
    if unknown:
        parser.error(f"There is no {', '.join(sorted(unknown))}; choose from {', '.join(names())}.")
    result: dict[str, object] = {}
    for name in asked.names or names():
        found = measured(name)
        print(json.dumps(found), file=sys.stderr, flush=True)
        result |= found
    print(json.dumps(result))


if __name__ == "__main__":
    main()
