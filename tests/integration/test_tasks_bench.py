"""The benchmark of tasks runs, and says all that it shall say. Nothing is timed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.trainers import ROOT

RIVALS = {"causal_lm": ["hf", "lightning", "accelerate"], "image_classification": ["lightning", "accelerate"]}


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """What the benchmark prints last, of both kinds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.tasks", "--quick", "--only", *RIVALS],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", RIVALS)
def test_the_benchmark_of_tasks_gives_every_key(result: dict[str, Any], kind: str) -> None:
    """The last line is one JSON object with each comparison, and all trainers did the same work."""
    rivals = RIVALS[kind]
    slow = rivals[:1] if kind == "causal_lm" else rivals
    expected = {f"{kind}_us_saved_per_micro_batch_over_{rival}" for rival in rivals}
    expected |= {f"{kind}_ratio_over_{rival}_50ms" for rival in slow}
    expected |= {f"{kind}_ratio_over_raw", f"{kind}_peak_memory_ratio_over_raw", "aa_ratio"}
    assert expected <= set(result)
    assert all(result[key] != 0 for key in expected)
    assert result[f"{kind}_small_disagreement"] < 0.05
