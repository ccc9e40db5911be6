"""Start a trainer that outlives whoever starts it, and notice when it dies at once.

The trainer is detached: its own session (on Windows its own process group, without a console), no
standard input, output to `trainer.log`. Closing or killing the window never stops it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from gradacc_gui.recipe.data_facts import DataQuestion, inspect_data
from gradacc_gui.session.detached_process import DetachedProcess
from gradacc_gui.session.interpreter import (
    NO_CONSOLE,
    Interpreter,
    InterpreterError,
    installs,
    trainer_environment,
)
from trainer_backend.config_check import Problem, fields, metadata, show
from trainer_backend.errors import RunDirectoryError
from trainer_backend.inbox import Inbox
from trainer_backend.private_files import private_opener
from trainer_backend.recipe import Recipe, RecipeError, default_name, recipe_for_run
from trainer_backend.regular_files import open_regular
from trainer_backend.run_directory import RunDirectory
from trainer_backend.wholeness import check_trainable

TAIL_BYTES: Final = 16 * 1024
TAIL_LINES: Final = 20
LONGEST_ARGUMENT: Final = 30_000
"""Of a command line; Windows takes 32,767 characters in all."""
START_MARK: Final = "gradacc starts a trainer"
"""In the line that opens each attempt in trainer.log."""
PROCESS_MARK: Final = "process"
"""In the line after it: which process was started, on which machine."""
FRAME: Final = 'File "'
"""How Python's fault handler begins a frame."""


class Died(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer's process has ended. Its journal says how the run did; this is for when it cannot."""

    exit_code: int
    """Negative: the signal that ended it."""
    last_lines: tuple[str, ...]
    """Of what it printed since this start; where an import error or a segmentation fault shows."""
    last_word: str = ""
    """Where it crashed, else the last line that it printed."""

    @property
    def clean(self) -> bool:
        """Whether it ended by itself and well."""
        return self.exit_code == 0

    def sentence(self) -> str:
        """How it ended, in words."""
        if self.exit_code >= 0:
            how = f"ended with exit code {self.exit_code}"
        else:
            try:
                how = f"was ended by {signal.Signals(-self.exit_code).name}"
            except ValueError:
                how = f"was ended by signal {-self.exit_code}"
        last = self.last_word
        if not last:
            return f"The trainer {how}."
        told = "It crashed in" if last.startswith(FRAME) else "Its last line:"
        return f"The trainer {how}. {told} {last}" + ("" if last.endswith((".", "!", "?")) else ".")


class Launch:
    """A trainer that this process started. Dropping it leaves the trainer alone."""

    def __init__(self, run: RunDirectory, process: DetachedProcess, log_offset: int) -> None:
        self.run = run
        self.pid = process.pid
        self.started_at = time.time()
        self._process = process
        self._log_offset = log_offset
        self._died: Died | None = None

    def poll(self) -> Died | None:
        """How the process ended, or None while it lives. Never waits; call it from a timer."""
        if self._died is None:
            code = self._process.poll()  # reaps the child, so that no zombie "runs"
            if code is not None:
                self._died = Died(
                    exit_code=code,
                    last_lines=last_lines(self.run, since=self._log_offset),
                    last_word=last_word(self.run, since=self._log_offset),
                )
        return self._died

    def leave(self) -> None:
        """Let go of the trainer, which goes on; for a process that ends before it."""
        self._process.leave()


def start(
    run: RunDirectory, interpreter: Interpreter, *, from_step: int | None = None, device: str | None = None
) -> Launch:
    """Start (or go on with) a run. Does not wait for the trainer.

    `from_step`: go back to the checkpoint of this step; UsageError when none lies there.
    `device`: train there, and have the recipe say so from now on.
    Raises InterpreterError when the interpreter cannot train or something must be installed first
    (`interpreter.installs`), RunDirectoryError when a trainer runs there already, the directory is half
    copied, or nothing can be written.
    """
    run.check()
    check_trainable(run)
    if from_step is not None:
        run.check_checkpoint(from_step)
    waiting = installs(interpreter)
    if waiting:
        names = ", ".join(step.need.package for step in waiting)
        message = f"{interpreter.executable} lacks {names}; gradacc can put them into a folder of its own."
        raise InterpreterError(message)
    if run.is_alive():
        message = f"A trainer already runs in {run.path} (process {run.pid()}). Stop it first."
        raise RunDirectoryError(message)
    environment = trainer_environment(interpreter)
    command = [interpreter.executable, "-P", "-m", "trainer_backend", "run", str(run.path)]
    if from_step is not None:
        command += ["--from-step", str(from_step)]
    if device is not None:
        command += ["--set", f"run.device={device}"]
    stale = json.dumps(Inbox(run.inbox_path).names())
    if len(stale) <= LONGEST_ARGUMENT:  # else the trainer looks itself, a moment later
        command += ["--stale", stale]
    offset = _begin_log(run, interpreter)
    try:
        with open(run.log_path, "ab", opener=private_opener) as log:
            process = DetachedProcess(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=run.path,
                env=environment,
                close_fds=True,
                **detached(),
            )
    except OSError as error:
        message = f"The trainer cannot be started: {error.strerror} ({interpreter.executable})."
        raise InterpreterError(message) from error
    _name_process(run, process.pid)
    return Launch(run, process, offset)


def _begin_log(run: RunDirectory, interpreter: Interpreter) -> int:
    """Say in trainer.log what is started; gives where its own output begins."""
    line = (
        f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {START_MARK}:"
        f" {interpreter.executable}, Python {interpreter.version_text}, torch {interpreter.torch_version}\n"
    )
    try:
        with open(run.log_path, "ab", opener=private_opener) as log:
            log.write(line.encode())
            return log.tell()
    except OSError as error:
        message = f"{run.log_path} cannot be written: {error.strerror}. The folder is read-only or full."
        raise RunDirectoryError(message) from error


def _name_process(run: RunDirectory, pid: int) -> None:
    """Say in trainer.log which process it is, so that others see at once when it died without a word."""
    with contextlib.suppress(OSError), open(run.log_path, "ab", opener=private_opener) as log:
        log.write(f"--- {PROCESS_MARK} {pid} on {platform.node()}\n".encode())


def detached() -> dict[str, Any]:
    """For `subprocess`: a process that outlives this one and gets none of its terminal's signals."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | NO_CONSOLE}
    return {"start_new_session": True}


def last_lines(run: RunDirectory, *, count: int = TAIL_LINES, since: int = 0) -> tuple[str, ...]:
    """The newest lines of trainer.log (behind byte `since`) that tell something.

    Not the one that names a process, the run's heading, nor the fault handler's list of every module.
    At most 16 KiB are read.
    """
    silent = (f"--- {PROCESS_MARK} ", f"{run.id}: {run.path}", "Extension modules: ")
    lines = tail(run.log_path, count=TAIL_BYTES, since=since)
    return tuple(line for line in lines if not line.startswith(silent))[-count:]


def last_word(run: RunDirectory, *, since: int = 0) -> str:
    """Where the newest trainer crashed, else the last line that it printed; empty when it said nothing."""
    lines = last_lines(run, count=TAIL_BYTES, since=since)
    starts = [at for at, line in enumerate(lines) if line.startswith("--- ") and START_MARK in line]
    own = lines[starts[-1] + 1 :] if starts else lines
    return crash_place(own) or next((line.strip() for line in reversed(own) if line.strip()), "")


def crash_place(lines: Sequence[str]) -> str:
    """The innermost frame of the thread that crashed, as Python's fault handler tells it; else empty."""
    fatal = [at for at, line in enumerate(lines) if line.startswith("Fatal Python error: ")]
    after = lines[fatal[-1] :] if fatal else ()
    for thread, frame in pairwise(after):
        if thread.startswith("Current thread ") and frame.strip().startswith(FRAME):
            return frame.strip()
    return ""


def tail(path: Path, *, count: int = TAIL_LINES, since: int = 0) -> tuple[str, ...]:
    """The newest lines of a text file; empty when it cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            start_at = max(since, size - TAIL_BYTES)
            file.seek(start_at)
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    lines = text.splitlines()
    if start_at > since and lines:
        lines = lines[1:]  # cut somewhere in its middle
    return tuple(lines[-count:])


def new_run(recipe: Recipe, recipe_path: Path | None = None) -> RunDirectory:
    """Make the directory of a run that `launch.start` can start.

    Raises RecipeError when its data is not there, RunDirectoryError when nothing can be written.
    """
    where = str(recipe_path) if recipe_path is not None else "recipe"
    problems = preflight(recipe)
    if problems:
        raise RecipeError(where, problems)
    name = recipe.config.run.name or default_name(recipe_path)
    own = recipe_for_run(recipe, recipe_path=str(recipe_path.absolute()) if recipe_path else "")
    return RunDirectory.create(own.text, name=name)


def preflight(recipe: Recipe) -> list[Problem]:
    """What the recipe names and this machine lacks: paths that are not there, text that is too short.

    Looks at the disk, for seconds at most in a very large folder: not for the GUI thread.
    """
    task, data = recipe.config.task, recipe.config.data
    paths = dict(_paths(recipe))
    question = DataQuestion(
        kind=recipe.config.kind,
        folder=recipe.source.folder,
        paths=tuple(paths.items()),
        pattern=getattr(data, "pattern", ""),
        context_length=getattr(task, "context_length", 0),
        held_out=getattr(data, "validation_fraction", 0.0),
    )
    return [
        Problem(field, paths[field], f"{field} = {show(paths[field])}: {fault}")
        for field, fault in inspect_data(question).faults.items()
    ]


def _paths(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Fields of the data that name a file or folder, and what they name; a task's model may be a hub's."""
    data = recipe.config.data
    for name, field in fields(type(data)).items():
        value = getattr(data, name)
        if "path" in metadata(field.type)[2] and isinstance(value, str) and value.strip():
            yield f"data.{name}", value
