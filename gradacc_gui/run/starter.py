"""Starting and going on with runs, as work for the background: it waits for interpreters. No Qt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import msgspec

from gradacc_gui.person import person
from gradacc_gui.queueing import slots
from gradacc_gui.queueing.entries import Queue, QueueEntry
from gradacc_gui.queueing.runner import ensure_runner
from gradacc_gui.queueing.waiting import shown
from gradacc_gui.session.interpreter import Install, Interpreter, installs, probe
from gradacc_gui.session.launch import START_MARK, Launch, preflight, start
from trainer_backend.recipe import (
    Recipe,
    RecipeError,
    default_name,
    load_recipe,
    parse_document,
    recipe_for_run,
    recipe_from_document,
)
from trainer_backend.regular_files import open_regular
from trainer_backend.run_directory import RunDirectory

HEAD_BYTES: Final = 4096


class ReadyInterpreter(msgspec.Struct, frozen=True):
    """An interpreter that can train, once these are installed."""

    interpreter: Interpreter
    installs: tuple[Install, ...]


def prepare(python: str) -> ReadyInterpreter:
    """Ask an interpreter what it has; empty is gradacc's own. Raises InterpreterError. Waits."""
    found = probe(python or sys.executable)
    return ReadyInterpreter(found, tuple(installs(found)))


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A new run that a person asked for, or (`run`) an old one to go on with."""

    text: str = ""
    """The recipe's text, which is checked in the background; or else `recipe`, checked already."""
    folder: str = ""
    recipe: Recipe | None = None
    name: str = ""
    recipe_path: str = ""
    run: RunDirectory | None = None
    from_step: int | None = None
    """Of an old run: the checkpoint to go back to; None is its last."""
    queued: bool = False
    """Put it into the queue instead of starting it now."""

    def title(self) -> str:
        """What it is called while it starts."""
        return self.run.id if self.run is not None else self.name


class TakenDevice(msgspec.Struct, frozen=True):
    """The device that a run would start on has a run already."""

    device: str
    """In words: GPU 1, CPU."""
    run: str
    """The name of the run that has it."""


def taken_device(request: StartRequest) -> TakenDevice | None:
    """What is in the way of a start; None where every device, or the one that is asked for, is free.

    Raises UsageError for a recipe that cannot be read.
    """
    if request.run is not None:
        asked = request.run.recipe_value("run.device")
    else:
        asked = recipe_of(request).config.run.device
    devices = slots.wanted(asked)[:1]  # a start takes the first, whatever else is free
    other = slots.in_the_way(devices, slots.taken())
    if other is None or other.run == request.run:
        return None
    return TakenDevice(shown(devices[0]), other.name)


def recipe_of(request: StartRequest) -> Recipe:
    """The recipe of a new run. Raises UsageError with every problem."""
    if request.recipe is not None:
        return request.recipe
    where = request.recipe_path or request.name or "recipe"
    return recipe_from_document(parse_document(request.text, where), folder=Path(request.folder), where=where)


def begin(request: StartRequest, prepared: ReadyInterpreter) -> Launch | QueueEntry:
    """Install what is missing, make the run's directory, start the trainer or queue the run.

    Raises GradaccError. Waits.
    """
    recipe = recipe_of(request) if request.run is None else None
    if recipe is not None and (problems := preflight(recipe)):
        raise RecipeError(request.name or "recipe", problems)
    for install in prepared.installs:
        install.run()
    run = request.run
    if run is None:
        assert recipe is not None
        text = recipe_for_run(recipe, recipe_path=request.recipe_path).text
        run = RunDirectory.create(text, name=request.name or recipe.config.run.name or "run")
    if request.queued:
        waits = next((entry for entry in Queue().waiting() if entry.run == run.id), None)
        entry = waits or Queue().add(run, prepared.interpreter.executable, asked_by=person())
        ensure_runner()
        return entry
    return start(run, prepared.interpreter, from_step=request.from_step)


def request_for_recipe(path: Path) -> StartRequest:
    """A recipe file as it stands. Raises UsageError when it cannot be read."""
    recipe = load_recipe(path)
    return StartRequest(
        recipe=recipe,
        name=recipe.config.run.name or default_name(path),
        recipe_path=str(path.absolute()),
    )


def interpreter_of(run: RunDirectory) -> str:
    """The interpreter that a run was started with, from the head of its log; empty when it is not said."""
    try:
        with open_regular(run.log_path) as file:
            head = file.read(HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    for line in head.splitlines():
        if START_MARK in line:
            python = line.partition(f"{START_MARK}: ")[2].rpartition(", Python ")[0]
            return python if python and Path(python).exists() else ""
    return ""
