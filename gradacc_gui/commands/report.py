"""`gradacc report`: a run as one page for any browser."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
from pathlib import Path

from gradacc_gui.report.run_report import write_report
from trainer_backend.errors import UsageError
from trainer_backend.run_directory import find_run


def report(arguments: argparse.Namespace) -> int:
    """Write the page; never over what is there, unless told to."""
    run = find_run(arguments.run)
    run.check()
    path = Path(arguments.output) if arguments.output else Path(f"{run.id}-report.html")
    if path.exists() and not arguments.force:
        raise UsageError(f"{path} already exists. Give another file with --output, or --force.")
    write_report(run, path)
    print(path)
    return 0
