"""`python -m tests.bench.advisor [NAME …]`: see the package's text."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def names() -> list[str]:
    """The measurements, by module."""
    found = (module.name for module in pkgutil.iter_modules([str(HERE)]))
    return sorted(name for name in found if not name.startswith("_"))


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; default: all")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(names())
    if unknown:
        parser.error(f"There is no {', '.join(sorted(unknown))}; choose from {', '.join(names())}.")
    result: dict[str, Any] = {}
    for name in asked.names or names():
        began = time.monotonic()
        found = importlib.import_module(f"tests.bench.advisor.{name}").measure()
        print(f"{name} ({time.monotonic() - began:.0f} s): {json.dumps(found)}", file=sys.stderr, flush=True)
        result |= found
    print(json.dumps(result))


if __name__ == "__main__":
    main()
