"""N: typed, checked, asked, answered."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gradacc_gui.run.asks import Ask
from gradacc_gui.window.n_panel import NPanel
from trainer_backend.protocol import SetAccumulation
from trainer_backend.settings import Settings

SETTINGS = Settings(
    accumulation_steps=8, micro_batch_size=8, learning_rate=1e-3, beta2=0.95, weight_decay=0.0
)


@pytest.fixture
def panel(qtbot: QtBot, styled: QApplication) -> NPanel:
    """The panel of a live run with N = 8."""
    made = NPanel()
    qtbot.addWidget(made)
    made.set_settings(SETTINGS, live=True)
    made.show()
    return made


def retype(qtbot: QtBot, panel: NPanel, text: str) -> None:
    """Select all and type."""
    panel.edit.selectAll()
    QTest.keyClicks(panel.edit, text)


@pytest.mark.parametrize("text", ["0", "-4", "0.5", "abc", "1000000000000"])
def test_nonsense_shows_a_sentence_and_disables_apply(qtbot: QtBot, panel: NPanel, text: str) -> None:
    """Nothing can be asked that would be refused."""
    retype(qtbot, panel, text)
    assert panel.edit.text() == text
    assert "whole number from 1 to 1,000,000" in panel.problem.text()
    assert panel.problem.isVisible()
    assert not panel.apply.isEnabled()
    with qtbot.assertNotEmitted(panel.asked):
        QTest.keyClick(panel.edit, Qt.Key.Key_Return)


def test_typing_again_takes_the_sentence_away(qtbot: QtBot, panel: NPanel) -> None:
    """An error stands only while it is one."""
    retype(qtbot, panel, "x")
    retype(qtbot, panel, "16")
    assert not panel.problem.isVisible()
    assert panel.apply.isEnabled()


def test_apply_asks_for_n_and_for_nothing_else_unless_it_is_ticked(qtbot: QtBot, panel: NPanel) -> None:
    """Companions are offered with their numbers, never taken silently."""
    retype(qtbot, panel, "16")
    assert panel.preview.text() == "Effective batch 64 → 128 (× 2). Also adjust:"
    assert panel.companions.beta2.text() == "β₂ 0.95 → 0.9025"
    assert panel.companions.weight_decay.isHidden()
    with qtbot.waitSignal(panel.asked) as caught:
        QTest.mouseClick(panel.apply, Qt.MouseButton.LeftButton)
    command = cast("SetAccumulation", caught.args[0])
    assert (command.steps, command.learning_rate_rule, command.scale_beta2) == (16, "none", False)


def test_ticked_companions_go_along(qtbot: QtBot, panel: NPanel) -> None:
    """The rule and beta2 as previewed."""
    retype(qtbot, panel, "32")
    QTest.mouseClick(panel.companions.rule.button("sqrt"), Qt.MouseButton.LeftButton)
    panel.companions.beta2.click()
    assert panel.companions.rate_after.text() == "Learning rate 0.001 → 0.002"
    with qtbot.waitSignal(panel.asked) as caught:
        panel.apply.click()
    command = cast("SetAccumulation", caught.args[0])
    assert (command.learning_rate_rule, command.scale_beta2, command.scale_ema) == ("sqrt", True, False)


def test_plus_minus_and_arrow_keys_step_by_one(qtbot: QtBot, panel: NPanel) -> None:
    """And never below 1."""
    panel.more.click()
    assert panel.edit.text() == "9"
    QTest.keyClick(panel.edit, Qt.Key.Key_Down)
    QTest.keyClick(panel.edit, Qt.Key.Key_Down)
    assert panel.edit.text() == "7"
    retype(qtbot, panel, "1")
    panel.fewer.click()
    assert panel.edit.text() == "1"


def test_the_n_in_force_cannot_be_asked_for_again(panel: NPanel) -> None:
    """Apply waits for another number."""
    assert panel.edit.text() == "8"
    assert not panel.apply.isEnabled()


def test_what_is_typed_survives_news_of_the_run(qtbot: QtBot, panel: NPanel) -> None:
    """A schedule that changes N meanwhile does not rewrite the field."""
    retype(qtbot, panel, "12")
    panel.set_settings(msgspec.structs.replace(SETTINGS, accumulation_steps=10), live=True)
    assert panel.edit.text() == "12"
    assert panel.hint.text() == "now 10"


def test_the_field_shows_the_runs_n_when_nobody_types(panel: NPanel) -> None:
    """The window shows facts."""
    panel.set_settings(msgspec.structs.replace(SETTINGS, accumulation_steps=3), live=True)
    assert panel.edit.text() == "3"


def test_the_answer_is_pending_until_the_fact_comes(panel: NPanel) -> None:
    """Dashed while open, plain when done, red when refused."""
    ask = Ask(command=SetAccumulation(steps=16))
    roles = []
    for answer in ("asked", "accepted", "done", "refused"):
        if answer == "done":
            panel.set_settings(msgspec.structs.replace(SETTINGS, accumulation_steps=16), live=True)
        panel.show_ask(msgspec.structs.replace(ask, answer=answer, step=125))
        roles.append(panel.answer.property("role"))
    assert roles == ["pending", "pending", "answered", "refused"]
    panel.show_ask(msgspec.structs.replace(ask, answer="accepted", step=125))
    assert panel.answer.text() == "N = 16 from step 125 · effective batch 128"


def test_an_ended_run_takes_no_n(qtbot: QtBot, panel: NPanel) -> None:
    """Nobody would answer."""
    panel.set_settings(SETTINGS, live=False)
    assert not panel.edit.isEnabled()
    assert not panel.apply.isEnabled()
    assert not panel.more.isEnabled()


def test_an_open_ask_is_not_sent_twice_but_can_be_overtaken(qtbot: QtBot, panel: NPanel) -> None:
    """Apply waits while the same N is pending; another N, or the old one, may still be asked for."""
    retype(qtbot, panel, "16")
    panel.show_ask(Ask(command=SetAccumulation(steps=16)))
    assert not panel.apply.isEnabled()
    assert panel.companions.isHidden()
    retype(qtbot, panel, "8")
    assert panel.apply.isEnabled()
    retype(qtbot, panel, "12")
    assert panel.apply.isEnabled()


def test_a_pending_answer_has_air_around_its_words(qtbot: QtBot, panel: NPanel) -> None:
    """The dashed box is padded, also when the label was hidden before."""
    panel.show_ask(Ask(command=SetAccumulation(steps=16)))
    QApplication.processEvents()
    assert panel.answer.height() >= panel.answer.fontMetrics().height() + 12


def test_an_answer_that_holds_no_longer_is_taken_away(panel: NPanel) -> None:
    """A kept effective batch made N 16: "N = 8 since step 28" would be untrue."""
    ask = Ask(command=SetAccumulation(steps=8, asked_by="ada"), answer="done", step=28)
    panel.show_ask(ask)
    assert panel.answer.isVisible()
    panel.set_settings(
        msgspec.structs.replace(SETTINGS, accumulation_steps=16, micro_batch_size=4), live=True
    )
    panel.show_ask(ask)
    assert not panel.answer.isVisible()
