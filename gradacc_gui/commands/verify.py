"""`gradacc verify`, and the interpreter that it and every other command that trains must have ready."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
import os
import subprocess
import sys

from gradacc_gui.queueing.slots import in_the_way, taken, wanted
from gradacc_gui.run.starter import interpreter_of
from gradacc_gui.session.interpreter import (
    Interpreter,
    InterpreterError,
    installs,
    probe,
    trainer_environment,
)
from trainer_backend.errors import UsageError
from trainer_backend.run_directory import find_run


def ready_interpreter(arguments: argparse.Namespace) -> Interpreter:
    """Probe the interpreter that was asked for, and install what it lacks once the person agreed.

    Raises InterpreterError when it cannot train.
    """
    python = arguments.python or os.environ.get("GRADACC_PYTHON") or sys.executable
    interpreter = probe(python).check()
    steps = installs(interpreter)
    if not steps:
        return interpreter
    names = ", ".join(step.need.package for step in steps)
    if not arguments.install and not _agreed(interpreter, names):
        message = (
            f"{interpreter.executable} lacks {names}. Run it again with --install: gradacc puts them into a"
            " folder of its own and leaves the interpreter as it is."
        )
        raise InterpreterError(message)
    for step in steps:
        print(f"Installing {step.need.package} …", file=sys.stderr)
        step.run()
    return interpreter


def _agreed(interpreter: Interpreter, names: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{interpreter.executable} lacks {names}.", file=sys.stderr)
    print("Put them into a folder of gradacc's own? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def verify(arguments: argparse.Namespace) -> int:
    """Run `python -m trainer_backend verify` in the interpreter; its exit code is ours."""
    interpreter = ready_interpreter(arguments)
    command = [interpreter.executable, "-P", "-m", "trainer_backend", "verify", arguments.recipe]
    if arguments.json:
        command.append("--json")
    if arguments.report:
        command += ["--report", arguments.report]
    for option in ("steps", "samples"):
        if getattr(arguments, option):
            command += [f"--{option}", getattr(arguments, option)]
    return subprocess.run(command, env=trainer_environment(interpreter), check=False).returncode


def plan(arguments: argparse.Namespace) -> int:
    """Run `python -m trainer_backend plan` in the interpreter; its exit code is ours."""
    interpreter = ready_interpreter(arguments)
    command = [interpreter.executable, "-P", "-m", "trainer_backend", "plan", arguments.recipe]
    if arguments.json:
        command.append("--json")
    if arguments.compare:
        command.append("--compare")
    for option in ("effective_batch", "memory"):
        if (value := getattr(arguments, option)) is not None:
            command += [f"--{option.replace('_', '-')}", str(value)]
    return subprocess.run(command, env=trainer_environment(interpreter), check=False).returncode


def branch(arguments: argparse.Namespace) -> int:
    """Run `python -m trainer_backend branch` in the run's interpreter; its exit code is ours."""
    run = find_run(arguments.run)
    run.check()
    device = arguments.device or run.recipe_value("run.device")
    other = None if arguments.anyway else in_the_way(wanted(device)[:1], taken())
    if other is not None:
        message = (
            f"{other.name} is training on {', '.join(other.devices)}, and branches would slow it down. Stop"
            " it first, or add --device with another device, or --anyway."
        )
        raise UsageError(message)
    arguments.python = arguments.python or interpreter_of(run) or None
    interpreter = ready_interpreter(arguments)
    command = [interpreter.executable, "-P", "-m", "trainer_backend", "branch", str(run.path)]
    if arguments.json:
        command.append("--json")
    for option in ("samples", "device"):
        if (value := getattr(arguments, option)) is not None:
            command += [f"--{option}", str(value)]
    return subprocess.run(command, env=trainer_environment(interpreter), check=False).returncode


def check(arguments: argparse.Namespace) -> int:
    """Run `python -m trainer_backend preview` in the interpreter; its exit code is ours."""
    interpreter = ready_interpreter(arguments)
    command = [interpreter.executable, "-P", "-m", "trainer_backend", "preview", arguments.recipe]
    if arguments.json:
        command.append("--json")
    return subprocess.run(command, env=trainer_environment(interpreter), check=False).returncode


def try_run(arguments: argparse.Namespace) -> int:
    """Run `python -m trainer_backend try` in the interpreter; its exit code is ours."""
    run = find_run(arguments.run)
    run.check()
    arguments.python = arguments.python or interpreter_of(run) or None
    interpreter = ready_interpreter(arguments)
    command = [interpreter.executable, "-P", "-m", "trainer_backend", "try", str(run.path)]
    switches = [name for name in ("chat", "think", "no_base", "json") if getattr(arguments, name)]
    command += [f"--{name.replace('_', '-')}" for name in switches]
    for name in ("tokens", "temperature", "export", "output"):
        value = getattr(arguments, name)
        if value is not None:
            command.append(f"--{name}={value}")
    for name in ("prompt", "picture"):
        command += [f"--{name}={value}" for value in getattr(arguments, name)]
    return subprocess.run(command, env=trainer_environment(interpreter), check=False).returncode
