"""`compile = true` in a real run: the same numbers under the default compiler, and a new shape is told."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainers import Trainer, events, make_run
from trainer_backend.protocol import OptimizerStepMeasured, RunFinished, Warned

MODULE = Path(__file__).parent.parent / "support" / "compiled_task.py"
CAN_COMPILE = (
    bool(shutil.which("c++") or shutil.which("g++"))
    and (Path(sysconfig.get_path("include")) / "Python.h").is_file()
)


def steps_of(folder: Path, *, compiled: bool) -> tuple[list[OptimizerStepMeasured], list[Warned]]:
    """Four windows of two micro-batches: two of short rows, two of long ones."""
    recipe: dict[str, Any] = {
        "run": {
            "device": "cpu", "precision": "fp32", "max_optimizer_steps": 4, "compile": compiled,
            "gradient_norm_every": 1,
        },
        "data": {"shuffle": False},
        "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
    }  # fmt: skip
    run = make_run(folder, recipe, module=MODULE)
    # One thread compiles, and what it made goes with the test.
    cache = {
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled"),
        "TORCHINDUCTOR_VEC_ISA_OK": "0",  # nothing is compiled to find out what vectors there are
    }
    with Trainer(run, env=cache if compiled else None) as trainer:
        assert isinstance(trainer.end(), RunFinished)
    warned = [event for event in events(run, Warned) if event.code == "recompiled"]
    return events(run, OptimizerStepMeasured), warned


@pytest.mark.skipif(not CAN_COMPILE, reason="compiles C++ against Python's headers on a CPU")
def test_a_compiled_run_has_the_same_gradients_and_tells_a_new_shape(tmp_path: Path) -> None:
    """fp64, N = 2: losses and norms at 1e-12; the third window compiles again, the fourth does not."""
    plain, silent = steps_of(tmp_path / "plain", compiled=False)
    compiled, warned = steps_of(tmp_path / "compiled", compiled=True)
    assert silent == []
    assert [event.values["step"] for event in warned] == [3]
    assert len(compiled) == len(plain) == 4
    for one, other in zip(compiled, plain, strict=True):
        assert (one.micro_batches, one.skipped) == (2, "")
        assert (one.loss, one.gradient_norm) == pytest.approx((other.loss, other.gradient_norm), rel=1e-12)
