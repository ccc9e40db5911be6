"""`gradacc queue`: add, list, move, remove, pause, resume, set."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import msgspec

from gradacc_gui.commands import far
from gradacc_gui.commands.running import recipe_of
from gradacc_gui.commands.verify import ready_interpreter
from gradacc_gui.person import person
from gradacc_gui.queueing.entries import GOOD, Queue
from gradacc_gui.queueing.runner import ensure_runner, is_at_work, leave_runners
from gradacc_gui.queueing.waiting import is_unstarted, look
from gradacc_gui.session.launch import new_run
from gradacc_gui.session.runs import delete_run, summarise
from trainer_backend.errors import UsageError
from trainer_backend.recipe import Recipe
from trainer_backend.run_directory import RunDirectory, find_run


def add(arguments: argparse.Namespace) -> int:
    """`gradacc queue add RECIPE…`: every recipe is checked before the first is added."""
    if arguments.on is not None:
        return far.queue_on(arguments)
    interpreter = ready_interpreter(arguments)
    queue = Queue()
    found = [_asked(text, arguments.set) for text in arguments.recipes]
    for one in found:
        run = one if isinstance(one, RunDirectory) else new_run(*one)
        entry = queue.add(run, interpreter.executable, asked_by=person(), first=arguments.first)
        place = queue.place_of(entry.run)
        print(json.dumps({"id": entry.run, "place": place}) if arguments.json else f"{place}  {entry.run}")
    _begin(queue)
    return 0


def _asked(text: str, settings: list[str]) -> RunDirectory | tuple[Recipe, Path | None]:
    """A recipe that can be trained, or a run to go on with. Raises UsageError."""
    path = Path(text)
    if text == "-" or path.is_file() or path.suffix == ".toml":
        return recipe_of(text, settings)
    run = find_run(text)
    run.check()
    summary = summarise(run)
    if settings:
        message = f"--set changes recipes; {run.id} is a run, whose recipe is {run.recipe_path}."
        raise UsageError(message)
    if not summary.can_resume:
        message = f"{run.id} is {summary.state.value}, so there is nothing to resume."
        raise UsageError(message)
    return run


def _begin(queue: Queue) -> None:
    ensure_runner(queue)
    leave_runners()


def show(arguments: argparse.Namespace) -> int:
    """`gradacc queue list`: what runs, what waits and for what, and what was done last."""
    queue = Queue()
    view = look(queue)
    done = view.done[: arguments.done]
    if arguments.json:
        told = {
            "settings": msgspec.to_builtins(view.settings),
            "runner": is_at_work(queue),
            "running": view.running,
            "waiting": [
                {"place": one.place, "id": one.entry.run, "waits_for": one.waits_for} for one in view.waiting
            ],
            "done": msgspec.to_builtins(done),
        }
        print(json.dumps(told))
        return 0
    if view.settings.paused:
        print(f"The queue is paused ({view.settings.why_paused}). `gradacc queue resume` starts it again.")
    if not view.running and not view.waiting:
        print("The queue is empty. `gradacc queue add RECIPE` adds a run.")
    for run in view.running:
        print(f"running  {run}")
    for one in view.waiting:
        print(f"{one.place:7}  {one.entry.run}  {one.waits_for}")
    for ended in reversed(done):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(ended.done_at))
        bad = ended.outcome not in GOOD and ended.reason
        reason = ended.reason.splitlines()[0] if bad else ""
        print("  ".join(filter(None, (ended.outcome, ended.run, when, reason))))
    return 0


def move(arguments: argparse.Namespace) -> int:
    """`gradacc queue move ID PLACE`."""
    queue = Queue()
    entry = queue.find(arguments.run)
    place = queue.move(entry.run, arguments.place)
    print(f"{place}  {entry.run}")
    return 0


def remove(arguments: argparse.Namespace) -> int:
    """`gradacc queue remove ID…`: a run that was never started is deleted with its place."""
    queue = Queue()
    for entry in [queue.find(text) for text in arguments.runs]:  # all, before a place changes its number
        queue.remove(entry.run)
        if is_unstarted(entry):
            delete_run(entry.directory)
            print(f"{entry.run} was removed from the queue, and deleted: it was never started.")
        else:
            print(f"{entry.run} was removed from the queue.")
    return 0


def pause(arguments: argparse.Namespace) -> int:
    """`gradacc queue pause`: what runs goes on, nothing else is started."""
    del arguments
    Queue().change(paused=True, why_paused=f"by {person()}")
    print("The queue is paused. Running runs continue; `gradacc queue resume` starts the next run.")
    return 0


def resume(arguments: argparse.Namespace) -> int:
    """`gradacc queue resume`."""
    del arguments
    queue = Queue()
    queue.change(paused=False, why_paused="")
    _begin(queue)
    count = len(queue.waiting())
    print(
        f"The queue is running again; {count} run{'' if count == 1 else 's'} wait{'s' if count == 1 else ''}."
    )
    return 0


def change(arguments: argparse.Namespace) -> int:
    """`gradacc queue set KEY VALUE`. Raises UsageError."""
    key, text = arguments.key, arguments.value.strip()
    match key:
        case "on_failure" if text in ("continue", "pause"):
            value: object = text == "pause"
            key = "pause_on_failure"
        case "cpu_runs" if text.isdecimal() and 1 <= int(text) <= 1000:
            value = int(text)
        case "kept_free":
            names = [name for name in text.replace(",", " ").split() if name != "none"]
            bad = [name for name in names if name not in ("cpu", "mps") and not _is_cuda(name)]
            if bad:
                message = (
                    f"kept_free = {text}: {bad[0]} is no device. Name them as cuda:1, mps or cpu, or none."
                )
                raise UsageError(message)
            value = tuple("cuda:0" if name == "cuda" else name for name in names)
        case "on_failure":
            message = f"on_failure = {text}: use continue or pause."
            raise UsageError(message)
        case _:
            message = f"{key} = {text}: use a whole number from 1 to 1,000."
            raise UsageError(message)
    queue = Queue()
    queue.change(**{key: value})
    _begin(queue)
    return 0


def _is_cuda(name: str) -> bool:
    return name == "cuda" or (name.startswith("cuda:") and name.removeprefix("cuda:").isdecimal())
