"""`gradacc verify`: the equivalence certificate, made where torch is."""

from __future__ import annotations

import argparse
import subprocess

from gradacc_gui.commands.ready import ready_interpreter
from gradacc_gui.session.interpreter import trainer_environment


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
