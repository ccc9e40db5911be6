"""A run's checkpoint is asked in the window, by the trainer's own Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from gradacc_gui.trying.try_tab import TryTab
from gradacc_gui.window.main_window import MainWindow
from tests.end2end.hand import Hand
from tests.support.trainers import events
from trainer_backend.protocol import CheckpointSaved


def test_a_live_runs_checkpoint_answers_twice_and_leaves_nothing(
    qtbot: QtBot, make_window: Callable[[], MainWindow], small: dict[str, Any], tmp_path: Path
) -> None:
    """The second question finds the model in memory; closing the window lets it go, and not the run."""
    hand = Hand(qtbot, make_window())
    run = hand.start(small, tmp_path)
    hand.click("checkpoint")
    hand.wait(lambda: bool(events(run, CheckpointSaved)))
    hand.window.live.show_tab("try")
    tab: TryTab = hand.window.live.trial
    tab.prompt.tokens.setValue(5)
    answer = tab.texts.of["run"]
    hand.wait(tab.prompt.isVisible)
    for text in ("the quick", " brown"):
        QTest.keyClicks(tab.prompt.text, text)
        QTest.mouseClick(tab.prompt.ask, Qt.MouseButton.LeftButton)
        assert answer.hint.text() == ""
        hand.wait(lambda: tab.prompt.ask.text() == "Ask" and answer.hint.text() != "")
        assert tab.problem.isHidden(), tab.problem.sentence.text()
        assert answer.hint.text().startswith("5 tokens (the limit), ")
        assert len(answer.text.toPlainText()) == 5
    answering = [tab.process.is_running]
    hand.window.close()
    answering.append(tab.process.is_running)
    assert answering == [True, False]
    assert run.is_alive()
