"""An interpreter that can train, for the commands that start one."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
import os
import sys

from gradacc_gui.session.interpreter import Interpreter, InterpreterError, installs, probe


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
