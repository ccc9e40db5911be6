"""`gradacc runs` and `gradacc show`."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from gradacc_gui import words
from gradacc_gui.commands.published_lines import published_and_here
from gradacc_gui.session.following import POLL_S, Follower, slices
from gradacc_gui.session.listing import list_runs
from gradacc_gui.session.runs import RunSummary, open_journal, seal_ended, summarise
from trainer_backend.protocol import FACTS, Record, plain, record_json
from trainer_backend.published import lines
from trainer_backend.run_directory import RunDirectory, find_run
from trainer_backend.run_facts import RunState


def runs(arguments: argparse.Namespace) -> int:
    """`gradacc runs`: one line a run, newest first. Ended runs are sealed on the way."""
    found = list_runs()
    seal_ended(found)
    if arguments.json:
        for summary in found:
            print(json.dumps(plain(_as_data(summary))))
        return 0
    if not found:
        print("There are no runs yet. `gradacc run RECIPE` starts one.")
        return 0
    width = max(len(summary.run.id) for summary in found)
    for summary in found:
        print(f"{summary.run.id:{width}}  {_told(summary)}")
    return 0


def _as_data(summary: RunSummary) -> dict[str, Any]:
    return {
        "id": summary.run.id,
        "name": summary.name,
        "state": summary.state.value,
        "attempt": summary.attempt,
        "step": summary.step,
        "samples_seen": summary.samples_seen,
        "loss": summary.loss,
        "started_at": summary.started_at,
        "seen_at": summary.seen_at,
        "reason": summary.reason,
        "path": str(summary.run.path),
    }


def _told(summary: RunSummary) -> str:
    parts = [f"{summary.state.value:11}", f"step {summary.step:,}"]
    if summary.loss is not None:
        parts.append(f"loss {summary.loss:.4g}")
    if summary.started_at is not None:
        parts.append(time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.started_at)))
    if summary.state in (RunState.FAILED, RunState.DAMAGED, RunState.INTERRUPTED) and summary.reason:
        parts.append(summary.reason.splitlines()[0])
    return "  ".join(parts)


def show(arguments: argparse.Namespace) -> int:
    """`gradacc show RUN`: its state, its facts, and what its recipe says was published.

    With --json every event; with --follow to its end.
    """
    run = find_run(arguments.run)
    summary = summarise(run)
    if summary.state is RunState.DAMAGED:
        print(summary.reason, file=sys.stderr)
        return 2
    if not arguments.json:
        print(f"{run.id}  {_told(summary)}")
        print(run.path)
    after = _print_what_is_there(run, as_json=arguments.json)
    if arguments.follow:
        _follow(run, after, as_json=arguments.json)
    if not arguments.json and run.journal_path.is_file():
        with open_journal(run) as reader:
            for line in lines(*published_and_here(run, reader)):
                print(line)
    return 0


def _print_what_is_there(run: RunDirectory, *, as_json: bool) -> int:
    """Gives the number of the newest event that was looked at."""
    if not run.journal_path.is_file():
        return 0
    with open_journal(run) as reader:
        if not as_json:  # facts alone: of a long run, measurements are millions
            after = reader.head()
            facts = reader.facts()
            print_records(facts, as_json=False)
            return max([after, *(record.seq for record in facts[-1:])])
        after = 0
        for found in slices(reader):
            after = found.last
            print_records(found.records(), as_json=True)
    return after


def _follow(run: RunDirectory, after: int, *, as_json: bool) -> None:
    follower = Follower(run, after=after)
    try:
        while True:
            alive = run.is_alive()
            found = follower.poll()
            print_records(found.records() if as_json else found.facts, as_json=as_json)
            if found:
                continue
            if not alive:
                return
            time.sleep(POLL_S)
    finally:
        follower.close()


def print_records(records: list[Record], *, as_json: bool) -> None:
    """Records as JSON lines, or facts as lines for a person."""
    for record in records:
        if as_json:
            print(record_json(record).decode())
        elif (text := fact_line(record)) is not None:
            print(text)
    if records:
        sys.stdout.flush()


def fact_line(record: Record) -> str | None:
    """A fact for a person, with its time of day; None for what only answers or tells a phase."""
    if type(record.event).__name__ not in FACTS:
        return None
    line = words.line(record.event)  # type: ignore[arg-type]  # a fact, by its name
    if line is None:
        return None
    by = f"  ({line.by})" if line.by else ""
    return f"{time.strftime('%H:%M:%S', time.localtime(record.at))}  {line.text}{by}"
