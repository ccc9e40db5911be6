"""A loss of the wrong kind ends a real run with the engine's own sentence, and with no other before it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import bad_loss_task
from tests.support.bad_losses import BAD_LOSSES
from tests.support.trainers import events, make_run, run_here
from trainer_backend.protocol import OptimizerStepMeasured, RunFailed, Warned


@pytest.mark.parametrize("what", BAD_LOSSES)
def test_a_loss_of_the_wrong_kind_is_a_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], what: str
) -> None:
    """Though the inspection before the run tries it first."""
    recipe = {
        "run": {"device": "cpu", "precision": "fp32", "max_optimizer_steps": 2},
        "task": {"options": {"what": what}},
        "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
    }
    run = make_run(tmp_path, recipe, module=Path(bad_loss_task.__file__))
    assert run_here(run) == 1
    (failed,) = events(run, RunFailed)
    assert failed.code == "refused"
    assert re.search(BAD_LOSSES[what][1], failed.reason)
    assert "Traceback" not in capfd.readouterr().err
    warned = [warning.code for warning in events(run, Warned) if not warning.code.startswith("nvml")]
    assert warned == (["loss-half"] if "half" in what or "bf16" in what else [])
    assert events(run, OptimizerStepMeasured) == []
