"""A window as shipped, with real trainers behind it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gradacc_gui.remembered import Preferences
from gradacc_gui.session import launch
from gradacc_gui.session.detached_process import DetachedProcess
from gradacc_gui.theme import Themes, application_font
from gradacc_gui.window.main_window import MainWindow
from tests.support import fork_server
from trainer_backend.run_directory import all_runs

PATIENCE_MS = 60_000
"""How long a busy machine may take; only a test that fails waits so long."""
SMALL: dict[str, Any] = {
    "run": {"name": "small", "device": "cpu", "precision": "fp32", "max_optimizer_steps": 100_000},
    "task": {"kind": "language-model", "context_length": 16, "layers": 1, "width": 16, "heads": 1},
    "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 4, "tail": "drop"},
    "optimizer": {"name": "adamw", "learning_rate": 1e-3, "betas": [0.9, 0.95]},
}
"""A window of micro-batches takes milliseconds, and all have N of them; `data.path` is laid over it."""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Text to train on: a few files, so that some are held out."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text("the quick brown fox jumps over the lazy dog. " * 4000)
    return folder


@pytest.fixture
def small(text: Path) -> dict[str, Any]:
    """The small recipe with its data."""
    return SMALL | {"data": {"path": str(text)}}


def start_or_fork(command: Sequence[str], **options: Any) -> DetachedProcess | fork_server.ForkedTrainer:
    """Takes the place of `DetachedProcess` where a window starts trainers: forked where that is the same."""
    env: dict[str, str] | None = options.get("env")
    log: Any = options.get("stdout")
    if env is None or not hasattr(log, "fileno") or not fork_server.can_fork(command, env):
        return DetachedProcess(command, **options)
    detached = bool(options.get("start_new_session"))
    forked = fork_server.start(command, cwd=options["cwd"], env=env, log=log, detached=detached)
    _forked.append(forked)
    return forked


_forked: list[fork_server.ForkedTrainer] = []
"""Those of the test that runs."""


@pytest.fixture
def forked_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the window starts is forked from a process that has torch already."""
    monkeypatch.setattr(launch, "DetachedProcess", start_or_fork)


@pytest.fixture
def make_window(
    qtbot: QtBot, qapp: QApplication, forked_trainers: None
) -> Iterator[Callable[[], MainWindow]]:
    """Windows that are closed at the end, the way a person closes them."""
    made: list[MainWindow] = []
    qapp.setStyle("Fusion")
    qapp.setFont(application_font())

    def make() -> MainWindow:
        preferences = Preferences()
        preferences.says_that_runs_go_on = False
        preferences.keep_awake = False
        window = MainWindow(Themes(qapp, "dark"), preferences)
        window.resize(1280, 720)
        window.show()
        made.append(window)
        return window

    yield make
    for window in made:
        window.close()
        window.deleteLater()
    qapp.processEvents()
    end_all_runs()


def end_all_runs() -> None:
    """End what windows started and, as is right, left running; and reap it."""
    ours = [child for child in psutil.Process().children() if _is_trainer(child)]  # those started cold
    # All of them before any is waited for: one that came too late for the run's lock, as after clicks in two
    # windows, would take it from the one that is killed, and go on.
    for trainer in _forked:
        trainer.kill()
    while _forked:
        _forked.pop().wait(PATIENCE_MS / 1000)
    for run in all_runs():
        if run.is_alive() and (pid := run.pid()) is not None:
            os.kill(pid, signal.SIGKILL)
    for child in ours:
        if child.status() != psutil.STATUS_ZOMBIE:
            child.kill()
        child.wait(PATIENCE_MS / 1000)


def _is_trainer(child: psutil.Process) -> bool:
    if child.pid == fork_server.server_pid():
        return False
    return child.status() == psutil.STATUS_ZOMBIE or "trainer_backend" in " ".join(child.cmdline())
