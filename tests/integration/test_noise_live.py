"""The noise scale of a real run, in its journal, over a stop and a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.trainers import events, make_probe, run_here, set_recipe
from trainer_backend.protocol import NoiseScaleMeasured, OptimizerStepMeasured

TEN: dict[str, Any] = {"run": {"max_optimizer_steps": 10}}


def test_a_resumed_run_goes_on_with_the_noise_scale_it_had(tmp_path: Path) -> None:
    """Each of its windows is measured; the count of windows goes on."""
    run = make_probe(tmp_path, TEN, length=40)
    assert run_here(run) == 0
    set_recipe(run, **{"run.max_optimizer_steps": 14})
    assert run_here(run) == 0
    rows = events(run, NoiseScaleMeasured)
    assert [row.windows for row in rows] == list(range(1, 15))
    assert [row.step for row in rows] == list(range(1, 15))
    assert all(row.micro_batches == 4 and row.effective_batch == 4 for row in rows)


@pytest.mark.parametrize(("every", "told"), [(1, 5), (3, 1), (0, 0)])
def test_n_of_one_is_measured_by_halves(tmp_path: Path, every: int, told: int) -> None:
    """Micro-batches of two samples; every n-th window is run as two of one."""
    one = {
        "run": {"max_optimizer_steps": 6, "gradient_norm_every": every},
        "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 1},
    }
    run = make_probe(tmp_path, one, length=40)
    assert run_here(run) == 0
    assert len(events(run, NoiseScaleMeasured)) == told
    assert [step.samples for step in events(run, OptimizerStepMeasured)] == [2] * 6
