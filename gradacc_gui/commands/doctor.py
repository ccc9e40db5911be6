"""`gradacc doctor`: what this machine can do, and why not."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from gradacc_gui import words
from gradacc_gui.session.interpreter import (
    NO_CONSOLE,
    Interpreter,
    InterpreterError,
    cleaned_environment,
    overlay_target,
    probe,
)
from trainer_backend import __version__
from trainer_backend.private_files import home, make_private
from trainer_backend.readings.describe import describe_devices

ENOUGH_BYTES: Final = 1 << 30
TORCH_TIMEOUT_S: Final = 120.0

_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
mps = getattr(torch.backends, "mps", None) is not None and torch.backends.mps.is_available()
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else []
print("gradacc-torch:" + json.dumps([torch.__version__, torch.version.cuda or "", names, bool(mps),
      bool(cuda and torch.cuda.is_bf16_supported())]))
"""

_QT = """
import sys
from PySide6.QtCore import qVersion
from PySide6.QtWidgets import QApplication
import pyqtgraph
QApplication(["doctor"])
print("gradacc-qt:", qVersion(), pyqtgraph.__version__)
"""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    what: str
    state: Literal["good", "note", "bad"]
    """note: something is not there, and gradacc works without it."""
    text: str


def doctor(arguments: argparse.Namespace) -> int:
    """Look at everything, print it, and give 0 when this machine can train, else 1."""
    findings: list[CheckResult] = []
    for look in _looks(arguments.python or os.environ.get("GRADACC_PYTHON") or sys.executable):
        findings += look()
    if arguments.json:
        print(json.dumps([msgspec.structs.asdict(finding) for finding in findings]))
    else:
        marks = {"good": "ok ", "note": "-  ", "bad": "NO "}
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            print(f"{marks[finding.state]} {finding.what:{width}}  {finding.text}")
    return int(any(finding.state == "bad" for finding in findings))


def _looks(python: str) -> list[Callable[[], list[CheckResult]]]:
    return [
        _itself,
        lambda: _interpreter(python),
        _gpus,
        _window,
        _home,
    ]


def _itself() -> list[CheckResult]:
    text = (
        f"{__version__} on Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} CPUs"
    )
    return [CheckResult(what="gradacc", state="good", text=text)]


def _interpreter(python: str) -> list[CheckResult]:
    try:
        interpreter = probe(python).check()
    except InterpreterError as error:
        return [CheckResult(what="Interpreter", state="bad", text=str(error))]
    text = f"{interpreter.executable}, Python {interpreter.version_text}"
    findings = [CheckResult(what="Interpreter", state="good", text=text)]
    missing = [
        need.package for need in interpreter.missing() if not overlay_target(interpreter, need).is_dir()
    ]
    if missing:
        text = f"it lacks {', '.join(missing)}; gradacc offers to install them at the first start"
        findings.append(CheckResult(what="Packages", state="note", text=text))
    return [*findings, _torch(interpreter)]


def _torch(interpreter: Interpreter) -> CheckResult:
    answer, why = _ask_python(interpreter.executable, _TORCH, "gradacc-torch:", cleaned_environment())
    if answer is None:
        return CheckResult(
            what="torch", state="bad", text=f"{interpreter.torch_version} does not load: {why}"
        )
    version, cuda, names, mps, bf16 = json.loads(answer)
    if names:
        text = f"{version}, CUDA {cuda}: {', '.join(names)}{'; bf16' if bf16 else ''}"
    elif mps:
        text = f"{version}: Apple GPU (mps)"
    else:
        text = f"{version}: CPU only" + (f" (built for CUDA {cuda}, but no GPU is usable)" if cuda else "")
    return CheckResult(what="torch", state="good", text=text)


def _gpus() -> list[CheckResult]:
    found = describe_devices()
    if found.problem is not None:
        return [CheckResult(what="GPU readings", state="note", text=words.warning(found.problem))]
    if not found.cards:
        return [CheckResult(what="GPU readings", state="note", text="the NVIDIA driver shows no card")]
    findings = []
    for card in found.cards:
        memory = f", {card.memory_total_bytes / 2**30:.0f} GiB" if card.memory_total_bytes else ""
        number = "hidden by CUDA_VISIBLE_DEVICES" if card.cuda_index is None else f"cuda:{card.cuda_index}"
        findings.append(
            CheckResult(
                what="GPU readings",
                state="good",
                text=f"{card.name}{memory}, {number}, driver {found.driver_version}",
            )
        )
    return findings


def _window() -> list[CheckResult]:
    findings = []
    environment = dict(os.environ) | {"QT_QPA_PLATFORM": "offscreen"}
    answer, why = _ask_python(sys.executable, _QT, "gradacc-qt:", environment)
    if answer is None:
        text = f"the window cannot open: {why}. `gradacc run RECIPE` works without it"
        findings.append(CheckResult(what="Qt", state="note", text=text))
    else:
        qt, plots = answer.split()
        findings.append(CheckResult(what="Qt", state="good", text=f"{qt}, pyqtgraph {plots}"))
    findings.append(_display())
    return findings


def _display() -> CheckResult:
    if sys.platform in ("win32", "darwin"):
        return CheckResult(what="Display", state="good", text="the system's own")
    for name in ("WAYLAND_DISPLAY", "DISPLAY"):
        if os.environ.get(name):
            return CheckResult(what="Display", state="good", text=f"{name}={os.environ[name]}")
    text = "none (neither DISPLAY nor WAYLAND_DISPLAY is set); `gradacc run RECIPE` works without one"
    return CheckResult(what="Display", state="note", text=text)


def _home() -> list[CheckResult]:
    folder = home()
    try:
        make_private(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        text = f"{folder} cannot be written: {error.strerror}. Set GRADACC_HOME to another folder"
        return [CheckResult(what="Runs", state="bad", text=text)]
    free = shutil.disk_usage(folder).free
    state: Literal["good", "note"] = "good" if free >= ENOUGH_BYTES else "note"
    hint = "" if free >= ENOUGH_BYTES else "; a few checkpoints may fill it"
    return [CheckResult(what="Runs", state=state, text=f"{folder}, {free / 2**30:.1f} GiB free{hint}")]


def _ask_python(python: str, code: str, mark: str, environment: dict[str, str]) -> tuple[str | None, str]:
    """What a small program printed behind its mark, or None and why not."""
    try:
        done = subprocess.run(
            [python, "-P", "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TORCH_TIMEOUT_S,
            check=False,
            env=environment,
            cwd=Path(tempfile.gettempdir()),
            creationflags=NO_CONSOLE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(mark):
            return line.removeprefix(mark).strip(), ""
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return None, said[-1] if said else f"exit code {done.returncode}"
