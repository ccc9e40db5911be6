"""Back to a checkpoint by the menu: model, step and charts go back, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytestqt.qtbot import QtBot

from gradacc_gui.window.main_window import MainWindow
from tests.end2end.hand import Hand
from tests.support.trainers import events
from trainer_backend.protocol import CheckpointSaved, MicroBatchMeasured, OptimizerStepMeasured, RolledBack


def test_a_run_goes_back_to_its_last_checkpoint_and_on_from_there(
    qtbot: QtBot, make_window: Callable[[], MainWindow], small: dict[str, Any], tmp_path: Path
) -> None:
    """What lay after the checkpoint is no longer shown; the same process trains those steps again."""
    window = make_window()
    hand = Hand(qtbot, window)
    run = hand.start(small, tmp_path)
    pid = run.pid()
    buttons = window.live.side.buttons
    assert not buttons.roll_back_menu.isEnabled()
    hand.click("checkpoint")
    hand.wait(lambda: bool(events(run, CheckpointSaved)))
    saved = events(run, CheckpointSaved)[-1]
    hand.wait_for_steps(5)
    hand.click("pause")
    hand.wait_for_state("paused")
    hand.wait(buttons.roll_back_menu.isEnabled)
    (back,) = buttons.roll_back_menu.actions()
    assert back.text() == f"step {saved.step:,}"
    assert window.run is not None
    store = window.run.store
    assert store.track(OptimizerStepMeasured).last("step") >= saved.step + 5

    back.trigger()
    hand.wait(lambda: bool(events(run, RolledBack)))
    (rolled,) = events(run, RolledBack)
    assert (rolled.to_step, rolled.to_samples) == (saved.step, saved.samples_seen)
    hand.wait(lambda: store.track(OptimizerStepMeasured).last("step") <= saved.step)
    assert store.track(MicroBatchMeasured).last("step") <= saved.step
    hand.wait(lambda: any(f"step {saved.step:,}" in line and "back" in line.lower() for line in hand.log()))

    if window.run.state == "paused":
        hand.click("pause")
    hand.wait_for_state("running")
    hand.wait_for_steps(1)
    steps = store.track(OptimizerStepMeasured).tail("step", 1_000_000).tolist()
    assert steps == list(range(1, len(steps) + 1)), "each step is shown once"
    assert run.pid() == pid
