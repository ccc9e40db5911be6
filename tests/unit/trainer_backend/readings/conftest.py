"""A fake NVML, compiled once, and the sampler run against it in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[4]
SOURCE = CHECKOUT / "tests" / "support" / "fake_nvml.c"
SMALL = "GPU-a0000000-0000-4000-8000-000000000001"
LARGE = "GPU-b0000000-0000-4000-8000-000000000002"
MIG = "MIG-c0000000-0000-5000-8000-000000000003"

if sys.platform != "linux":
    # Elsewhere pynvml takes NVML from the system's own folder, where a test may not put one.
    collect_ignore = ["test_devices.py", "test_describe.py"]

Run = Callable[..., list[dict[str, Any]]]


def build(folder: Path, *options: str) -> Path:
    """Compile the fake into `folder`, under the name that pynvml asks for."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "A C compiler is needed: .ci/run installs one."
    output = folder / "libnvidia-ml.so.1"
    command = [
        compiler,
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        *options,
        "-o",
        str(output),
        str(SOURCE),
    ]
    subprocess.run(command, check=True, timeout=60)
    return folder


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the fake library."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one that lacks the younger calls."""
    return build(tmp_path_factory.mktemp("old-nvml"), "-DOLD_DRIVER")


def run_python(arguments: list[str], library: Path | None, environment: dict[str, str]) -> str:
    """What a fresh interpreter prints that finds NVML in `library` only."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "FAKE_NVML"))}
    clean |= {"LD_LIBRARY_PATH": str(library or ""), "PYTHONWARNINGS": "error"} | environment
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=CHECKOUT, env=clean, timeout=60, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def sample(fake_nvml: Path) -> Run:
    """Run the sampler; gives the events it put, as plain data."""

    def run(
        *devices: tuple[int, str],
        library: Path | None = fake_nvml,
        env: dict[str, str] | None = None,
        **order: Any,
    ) -> list[dict[str, Any]]:
        arguments = ["-m", "tests.support.sample_readings", json.dumps({"devices": devices} | order)]
        return [json.loads(line) for line in run_python(arguments, library, env or {}).splitlines()]

    return run


def kinds(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The events of one kind, in order."""
    return [event for event in events if event["type"] == kind]
