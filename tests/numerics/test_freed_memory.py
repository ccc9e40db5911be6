"""Freed memory: kept for the next window on a CPU, given back when an allocator refuses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.trainers import ROOT
from trainer_backend.engine import memory

SCRIPT = """
import torch
from pathlib import Path
from trainer_backend.engine.memory import free, keep_freed_memory

def held_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

keep_freed_memory()
blocks = [torch.ones(1 << 17) for _ in range(128)]  # 64 MB in blocks that a heap serves
before = held_mb()
del blocks
kept = held_mb()
free(torch.device("cpu"))
print(before - kept, kept - held_mb())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_what_a_window_frees_is_kept_until_an_allocator_refuses() -> None:
    """64 MB stay with the process, and go when they are asked for."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    at_once, when_asked = map(int, done.stdout.split())
    assert at_once <= 8
    assert when_asked >= 48


@pytest.mark.parametrize("own", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_a_persons_own_setting_is_not_overruled(monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    """Of either kind: setting one of them sets glibc's own rule for both aside."""
    asked: list[str] = []
    monkeypatch.setattr(memory, "_of_glibc", asked.append)
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    memory.keep_freed_memory()
    assert asked == ["mallopt"]

    monkeypatch.setenv(own, "131072")
    memory.keep_freed_memory()
    assert asked == ["mallopt"]
