"""Heavy libraries have one door each: what does not need them does not pay for them."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
QT = {"PySide6", "shiboken6", "pyqtgraph"}
TORCH = {"torch", "torchvision", "transformers", "numpy"}
SHARED = (
    "config",
    "config_check",
    "errors",
    "inbox",
    "journal",
    "kinds",
    "noise_scale",
    "protocol",
    "readings",
    "recipe",
    "run_directory",
)


def modules_after(program: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after `program`."""
    told = "\nimport sys\nprint('\\n'.join({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program + told],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        ("import gradacc_gui.cli", QT | TORCH | {"rich", "psutil", "msgspec", "sqlite3"}),
        (
            "import gradacc_gui.store, gradacc_gui.series, gradacc_gui.derive, gradacc_gui.words",
            QT | {"torch"},
        ),
        ("import gradacc_gui.app", {"torch"}),
        ("import trainer_backend", QT | TORCH),
        *((f"import trainer_backend.{module}", QT | TORCH) for module in SHARED),
    ],
)
def test_a_module_loads_nothing_heavy_that_it_does_not_need(program: str, unwanted: set[str]) -> None:
    """In a fresh interpreter, since here everything may be loaded already."""
    assert modules_after(program) & unwanted == set()


def test_the_trainer_loads_no_qt() -> None:
    """All its modules together, save the one that runs it."""
    names = [
        module.name
        for module in pkgutil.walk_packages([str(CHECKOUT / "trainer_backend")], "trainer_backend.")
        if not module.name.endswith("__main__")
    ]
    assert "trainer_backend.engine.window" in names
    assert modules_after("\n".join(f"import {name}" for name in names)) & (QT | {"gradacc_gui"}) == set()
