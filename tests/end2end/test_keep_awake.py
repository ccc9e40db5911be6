"""The system is kept from sleeping while a run is live, where the person wants it, and no longer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytestqt.qtbot import QtBot

from gradacc_gui.session.awake import Awake
from gradacc_gui.window.main_window import MainWindow
from tests.end2end.hand import Hand, kill


class Told(Awake):
    """What the window asks of the system; the system itself is left alone."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = False

    def hold(self) -> None:
        """Kept awake."""
        self._asked = True

    def release(self) -> None:
        """May sleep."""
        self._asked = False

    def holds(self) -> bool:
        """What was asked last."""
        return self._asked


def test_the_system_is_kept_awake_while_a_run_is_live_and_released_after_it(
    qtbot: QtBot, make_window: Callable[[], MainWindow], small: dict[str, Any], tmp_path: Path
) -> None:
    """Only as the option says; a run that is killed, or stopped, lets go of it."""
    window = make_window()
    hand = Hand(qtbot, window)
    awake = window.awake = Told()
    window.settings.keep_awake.setChecked(True)
    for _ in range(30):
        window.tick()
    assert not awake.holds(), "no run is live"

    run = hand.start(small, tmp_path)
    hand.wait(awake.holds)
    window.settings.keep_awake.setChecked(False)
    assert not awake.holds()
    window.settings.keep_awake.setChecked(True)
    assert awake.holds()
    kill(run)
    hand.wait_for_interruption()
    hand.wait(lambda: not awake.holds())

    hand.click("resume")
    hand.wait_for_state("running")
    hand.wait(awake.holds)
    window.live.side.buttons.stop_clean.trigger()
    hand.wait_for_state("stopped")
    hand.wait(lambda: not awake.holds())
    window.settings.keep_awake.setChecked(False)
