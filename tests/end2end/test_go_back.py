"""A run that diverged is taken back to its last good checkpoint by the button in its notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from gradacc_gui.window.main_window import MainWindow
from tests.end2end.hand import Hand
from tests.support.trainers import events, make_run, set_recipe
from trainer_backend.protocol import OptimizerStepMeasured, RolledBack, RunFailed, RunStarted

MODULE = Path(__file__).parent.parent / "support" / "diverging_task.py"


def test_a_run_that_diverged_is_offered_its_last_good_checkpoint_and_goes_on_from_it(
    qtbot: QtBot, make_window: Callable[[], MainWindow], tmp_path: Path
) -> None:
    """Three windows of NaN end the process; one press, and a new one trains from before the first of them."""
    recipe = {
        "run": {"device": "cpu", "precision": "fp32", "max_samples": 32},
        "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
        "checkpoint": {"every_samples": 4, "keep": 10},
    }
    cause = tmp_path / "cause"
    cause.touch()
    run = make_run(tmp_path, recipe, module=MODULE)
    set_recipe(run, **{"task.options.updates": 2, "task.options.while_there": str(cause)})
    window = make_window()
    hand = Hand(qtbot, window)
    window.resume(run)
    hand.wait(lambda: window.run is not None)
    hand.wait_for_state("failed")
    notices = window.live.notices
    offer = notices.go_back[notices.failed]
    hand.wait(offer.isVisible)
    (failed,) = events(run, RunFailed)
    assert failed.code == "non-finite-in-a-row"
    assert offer.text() == "Go back to step 2 and resume"
    hand.wait(lambda: offer.property("role") == "primary")  # the newest checkpoint lies behind the divergence
    assert notices.resume[notices.failed].property("role") == ""
    menu = window.live.side.buttons.roll_back_menu
    assert menu.isEnabled()
    assert [action.text() for action in menu.actions()] == ["step 4", "step 3", "step 2", "step 1"]

    cause.unlink()
    QTest.mouseClick(offer, Qt.MouseButton.LeftButton)
    hand.wait_for_state("finished")
    assert notices.failed.isHidden()
    assert [back.to_step for back in events(run, RolledBack)] == [2]
    assert events(run, RunStarted, attempt=2)[0].from_step == 2
    assert window.run is not None
    store = window.run.store
    hand.wait(lambda: store.track(OptimizerStepMeasured).last("step") == 8)
    assert store.track(OptimizerStepMeasured).tail("step", 100).tolist() == list(range(1, 9))
    hand.wait(lambda: any(line.startswith("Rolled back from step") for line in hand.log()))
