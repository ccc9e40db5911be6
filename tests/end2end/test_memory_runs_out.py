"""Memory that the system really refuses, in a real trainer, while a window is open."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from gradacc_gui.window.main_window import MainWindow
from tests.end2end.hand import Hand
from tests.support.trainers import events, make_run, records, set_recipe
from trainer_backend.protocol import (
    MicroBatchMeasured,
    OptimizerStepMeasured,
    OutOfMemoryRecovered,
    RolledBack,
    RunFinished,
)
from trainer_backend.run_directory import RunDirectory

MODULE = Path(__file__).parent.parent / "support" / "hungry_task.py"
RECIPE = {
    "run": {"device": "cpu", "precision": "fp32", "max_samples": 320, "readings_every_s": 0.1},
    "accumulation": {"micro_batch_size": 8, "gradient_accumulation_steps": 4},
    "checkpoint": {"every_samples": 64},
}

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux refuses memory at an address-space limit"
)


def watched_to_its_end(hand: Hand, folder: Path, phase: str) -> RunDirectory:
    """A run whose memory becomes short in `phase`, started from the window."""
    run = make_run(folder, RECIPE, module=MODULE)
    set_recipe(run, **{"task.options.phase": phase})
    hand.window.resume(run)
    hand.wait(lambda: hand.window.run is not None)
    hand.wait_for_state("finished")
    return run


def every_sample_entered_once(run: RunDirectory) -> None:
    """The journal is whole: dense, ten windows of 32 samples, each made of its micro-batches."""
    told = records(run)
    assert [record.seq for record in told] == list(range(1, len(told) + 1))
    steps = {step.step: step for step in events(run, OptimizerStepMeasured)}
    assert [step.samples for step in steps.values()] == [32] * 10
    assert [step.skipped for step in steps.values()] == [""] * 10
    assert [ended.samples_seen for ended in events(run, RunFinished)] == [320]


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_micro_batch_that_does_not_fit_is_halved_and_the_window_says_so(
    qtbot: QtBot, make_window: Callable[[], MainWindow], tmp_path: Path, phase: str
) -> None:
    """8 → 4, N 4 → 8, effective batch 32 kept; trainer, journal and window go on to the end."""
    window = make_window()
    hand = Hand(qtbot, window)
    run = watched_to_its_end(hand, tmp_path, phase)

    (fact,) = events(run, OutOfMemoryRecovered)
    assert (fact.step, fact.phase, fact.effective_batch) == (3, phase, 32)
    assert (fact.micro_batch_size_before, fact.micro_batch_size) == (8, 4)
    assert (fact.accumulation_steps_before, fact.accumulation_steps) == (4, 8)
    every_sample_entered_once(run)
    sizes = {(row.step, row.samples) for row in events(run, MicroBatchMeasured) if row.step != 3}
    assert sizes == {(1, 8), (2, 8)} | {(step, 4) for step in range(4, 11)}

    notice = window.live.notices.memory
    assert notice.isVisible()
    said = notice.sentence.text()
    assert f"Out of memory at step 3 ({phase}): micro-batch 8 → 4, N 4 → 8" in said
    assert "the effective batch stays 32 and no sample was lost" in said
    assert any(line.startswith("Out of memory at step 3") for line in hand.log())
    factors = window.header
    assert (factors.micro_batch.value.text(), factors.steps.value.text()) == ("4", "8")
    assert factors.effective.value.text() == "32"
    hand.has_missed_nothing(run)


def test_an_update_that_does_not_fit_starts_again_from_the_checkpoint_and_the_window_shows_it(
    qtbot: QtBot, make_window: Callable[[], MainWindow], tmp_path: Path
) -> None:
    """Nothing is tried again on parameters that may have changed; the same process goes on to the end."""
    window = make_window()
    hand = Hand(qtbot, window)
    run = watched_to_its_end(hand, tmp_path, "optimizer")

    (back,) = events(run, RolledBack)
    assert (back.to_step, back.to_samples) == (2, 64)
    every_sample_entered_once(run)
    hand.wait(lambda: any(line.startswith("Rolled back from step") for line in hand.log()))
    assert window.run is not None
    steps = window.run.store.track(OptimizerStepMeasured).tail("step", 100).tolist()
    assert steps == list(range(1, 11))
    assert window.header.effective.value.text() == "32"
