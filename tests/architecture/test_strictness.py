"""The checks that every test goes through do fail a test that leaves something behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_xdist_auto_num_workers

CHECKOUT = Path(__file__).parents[2]

LEAKS = """
import subprocess, sys, threading, time, warnings

from PySide6.QtCore import QTimer, qWarning
from PySide6.QtWidgets import QWidget

from trainer_backend.run_directory import RunDirectory

kept = []

def test_clean(qtbot):
    widget = QWidget()
    widget.itself = [widget]
    qtbot.addWidget(QWidget())
    timer = QTimer()
    timer.start(1000)
    done = threading.Thread(target=time.sleep, args=(0.05,))
    done.start()

def test_thread():
    threading.Thread(target=time.sleep, args=(2,), daemon=True, name="left over").start()

def test_process():
    kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))

def test_live_run():
    run = RunDirectory.create("[run]", name="mine")
    program = (
        "import sys, time, pathlib; from trainer_backend.run_directory import RunDirectory as R\\n"
        "with R(pathlib.Path(sys.argv[1])).locked(): print('locked', flush=True); time.sleep(60)"
    )
    trainer = subprocess.Popen([sys.executable, "-c", program, str(run.path)], stdout=subprocess.PIPE)
    kept.append(trainer)
    assert trainer.stdout.readline().strip() == b"locked"

def test_widget(qapp):
    kept.append(QWidget())

def test_timer(qapp):
    kept.append(QTimer())
    kept[-1].start(1000)

def test_message(qapp):
    qWarning("unexpected")

def test_slot(qtbot):
    widget = QWidget()
    qtbot.addWidget(widget)
    widget.windowTitleChanged.connect(lambda _: 1 / 0)
    widget.setWindowTitle("x")

def test_warning():
    warnings.warn("unexpected")
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of those tests, under this project's own conftest and settings."""
    folder = tmp_path_factory.mktemp("strict")
    (folder / "tests" / "support").mkdir(parents=True)
    for name in (
        "tests/__init__.py",
        "tests/support/__init__.py",
        "tests/support/fork_server.py",
        "tests/support/leftovers.py",
        "pyproject.toml",
    ):
        shutil.copy(CHECKOUT / name, folder / name)
    strict = (CHECKOUT / "tests" / "conftest.py").read_text("utf-8")
    impatient, count = re.subn(r"^GRACE_S = .+$", "GRACE_S = 0.3", strict, flags=re.MULTILINE)
    assert count == 1
    (folder / "tests" / "conftest.py").write_text(impatient, "utf-8")
    (folder / "tests" / "test_leaks.py").write_text(LEAKS, "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        "-o",
        f"pythonpath=. {CHECKOUT}",
    ]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    return done.stdout


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("test_thread", "thread 'left over'"),
        ("test_process", "process "),
        ("test_live_run", "live run 'mine-"),
        ("test_widget", "top-level widget <PySide6.QtWidgets.QWidget"),
        ("test_timer", "running timer <PySide6.QtCore.QTimer"),
    ],
)
def test_what_a_test_leaves_behind_fails_it(told: str, test: str, reason: str) -> None:
    """And is named."""
    assert f"ERROR tests/test_leaks.py::{test} " in told, told
    assert re.search(f"This test left behind: (.*; )?{re.escape(reason)}", told), told


@pytest.mark.parametrize("test", ["test_message", "test_slot", "test_warning"])
def test_what_a_test_says_unasked_fails_it(told: str, test: str) -> None:
    """A message of Qt's, an exception in a slot, a warning."""
    assert f"FAILED tests/test_leaks.py::{test}" in told, told


def test_a_test_that_tidies_up_passes(told: str) -> None:
    """Only those that leave something fail: no false alarm, and no leak charged to the next test."""
    errors = re.findall(r"^ERROR tests/test_leaks.py::(\w+)", told, flags=re.MULTILINE)
    failures = re.findall(r"^FAILED tests/test_leaks.py::(\w+)", told, flags=re.MULTILINE)
    assert sorted(errors) == ["test_live_run", "test_process", "test_thread", "test_timer", "test_widget"]
    assert sorted(failures) == ["test_message", "test_slot", "test_warning"]


@pytest.mark.parametrize(
    ("arguments", "marked", "is_spread"),
    [
        (["tests"], "not gpu", True),
        (["tests/unit", "tests/numerics"], "not gpu", True),
        (["tests/conftest.py"], "not gpu", False),
        (["tests/unit", "tests/conftest.py::test"], "not gpu", False),
        (["tests"], "overhead", False),
        (["tests"], "gpu", False),
    ],
)
def test_folders_run_on_all_cores_and_what_is_looked_into_or_measured_in_one_process(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], marked: str, is_spread: bool
) -> None:
    """A debugger and prints work in one process; a benchmark has the machine for itself."""
    config: Any = SimpleNamespace(args=arguments, option=SimpleNamespace(markexpr=marked))
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert pytest_xdist_auto_num_workers(config) == (4 if is_spread else 0)
