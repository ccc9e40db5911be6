"""`gradacc stop RUN --by-force`: end a trainer's process, once the person has read what that costs."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
import sys
import time
from typing import Final

from gradacc_gui.ending_words import ending_cost
from gradacc_gui.person import person
from gradacc_gui.session.following import NoAnswerError
from gradacc_gui.session.runs import open_journal
from gradacc_gui.session.stopping import Act, perform
from trainer_backend.errors import UsageError
from trainer_backend.run_directory import RunDirectory, checkpoints_in
from trainer_backend.run_facts import RunFacts

LOOK_S: Final = 0.05


def end_by_force(run: RunDirectory, arguments: argparse.Namespace) -> int:
    """Ask, unless --yes was given; then kill the process that holds the run's lock, and wait for its end.

    Raises NoAnswerError: the run is not live, or its process does not go. Raises UsageError where nobody can
    be asked, RunDirectoryError where the process cannot be told for certain.
    """
    if not run.is_alive():
        message = f"{run.id} is not live: there is no process to end."
        raise NoAnswerError(message)
    if not arguments.yes and not _agreed(run):
        print("Nothing was done.", file=sys.stderr)
        return 1
    perform(Act.KILL, run, asked_by=person())
    give_up_at = time.monotonic() + arguments.timeout
    while run.is_alive():
        if time.monotonic() > give_up_at:
            message = (
                f"The process of {run.id} was killed and has not gone after {arguments.timeout:g} s: its disk"
                " may hang. It goes as soon as the disk answers."
            )
            raise NoAnswerError(message)
        time.sleep(LOOK_S)
    print(f"Ended by force. Resume it with: gradacc resume {run.typed}", file=sys.stderr)
    return 0


def _agreed(run: RunDirectory) -> bool:
    if not sys.stdin.isatty():
        message = "--by-force asks before it ends a process. Type it in a terminal, or add --yes."
        raise UsageError(message)
    so_now = RunFacts()
    if run.journal_path.is_file():
        with open_journal(run) as reader:
            so_now.take_all(reader.facts())
    newest = next(reversed(checkpoints_in(run.checkpoints_path)), None)
    print(f"{run.id}: {ending_cost(so_now, newest)}", file=sys.stderr)
    print("End the trainer's process by force? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
