"""Trainers that do one thing, for tests of who starts and stops them: no torch, a tenth of a second."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from gradacc_gui.session import interpreter as module
from gradacc_gui.session.interpreter import Interpreter, probe
from tests.support.trainers import ROOT
from trainer_backend.run_directory import RunDirectory

HEAD = """
import os, signal, sys, time
from pathlib import Path
from trainer_backend.inbox import Inbox
from trainer_backend.journal import JournalWriter
from trainer_backend.protocol import *
from trainer_backend.run_directory import RunDirectory
run = RunDirectory(Path(sys.argv[2]))
"""

OBEDIENT = """
with run.locked():
    stop = []
    inbox = Inbox(run.inbox_path)
    def tick():
        for command in inbox.poll():
            inbox.remove(command.id)
            writer.put(CommandAccepted(command_id=command.id, applies_at_step=2))
            if isinstance(command, Stop):
                stop.append(command)
    writer = JournalWriter(run.journal_path, attempt=1, on_tick=tick)
    print("ready", flush=True)
    while not stop:
        time.sleep(0.01)
    writer.put(RunStopped(step=1, samples_seen=8, reason="stop-now" if stop[0].now else "stop"))
    writer.close()
"""
"""Answers every command and ends at a stop."""

DEAF = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with run.locked():
    print("ready", flush=True)
    time.sleep(600)
"""
"""Holds the lock, and neither a command nor SIGTERM ends it."""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> Interpreter:
    """Let the next trainers that are started do this; gives the interpreter to start them in."""
    package = folder / "stand-in" / "trainer_backend"
    if not package.exists():
        shutil.copytree(
            ROOT / "trainer_backend", package, ignore=shutil.ignore_patterns("__pycache__", "trainer", "data")
        )
    (package / "__main__.py").write_text(HEAD + body, encoding="utf-8")
    monkeypatch.setattr(module, "trainer_copy", lambda: package.parent)
    return probe(sys.executable)


def new_run(name: str = "stand-in") -> RunDirectory:
    """A run directory in the test's home."""
    text = f'[run]\nname = "{name}"\nepochs = 1\n[accumulation]\ngradient_accumulation_steps = 4\n'
    return RunDirectory.create(text, name=name)
