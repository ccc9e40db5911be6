"""Made-up input at every door ends in a sentence: a little of it always, all of it with `-m campaign`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainers import ROOT

if sys.platform == "win32":
    pytest.skip("signals interrupt what hangs", allow_module_level=True)

FULL = {
    "recipe": 50_000, "inbox": 200_000, "import": 8_000, "journal": 8_000, "checkpoint": 8_000,
    "command_line": 20_000, "environment": 20_000,
}  # fmt: skip


def tried(folder: Path, *words: str) -> dict[str, Any]:
    """What the fuzzer says at its end; its own messages pass through."""
    command = [sys.executable, "-m", "tests.bench.faults.fuzz", *words]
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_a_little_of_made_up_input_is_told_in_sentences(tmp_path: Path) -> None:
    """The first inputs of each door."""
    found = tried(tmp_path, "--count", "40")
    assert found == {"fuzz": dict.fromkeys(FULL, 40), "tracebacks": 0, "hangs": 0}


@pytest.mark.campaign
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("door", FULL)
def test_much_made_up_input_is_told_in_sentences(door: str, tmp_path: Path) -> None:
    """As many as are asked for."""
    assert tried(tmp_path, door) == {"fuzz": {door: FULL[door]}, "tracebacks": 0, "hangs": 0}
