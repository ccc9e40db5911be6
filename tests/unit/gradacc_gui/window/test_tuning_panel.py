"""Micro-batch, learning rate and clipping of a live run."""

from __future__ import annotations

import pytest
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gradacc_gui.window.tuning_panel import Field, TuningPanel
from trainer_backend.protocol import SetLearningRate, SetMaxGradNorm, SetMicroBatchSize
from trainer_backend.settings import Settings

SETTINGS = Settings(accumulation_steps=8, micro_batch_size=8, learning_rate=1e-3, max_grad_norm=1.0)


@pytest.fixture
def panel(qtbot: QtBot, styled: QApplication) -> TuningPanel:
    """Unfolded, for a live run."""
    made = TuningPanel()
    qtbot.addWidget(made)
    made.set_settings(SETTINGS, live=True)
    made.set_open(open_=True)
    made.show()
    return made


def retype(qtbot: QtBot, field: Field, text: str) -> None:
    """Select all and type; an empty text deletes."""
    field.edit.selectAll()
    if text:
        QTest.keyClicks(field.edit, text)
    else:
        field.edit.del_()
        field.edit.textEdited.emit("")


def test_a_smaller_micro_batch_says_what_n_becomes(qtbot: QtBot, panel: TuningPanel) -> None:
    """8 x 8 = 4 x 16."""
    retype(qtbot, panel.micro_batch, "4")
    assert panel.keep_words.text() == "N becomes 16; the effective batch stays 64."
    with qtbot.waitSignal(panel.asked) as caught:
        panel.micro_batch.apply.click()
    command = caught.args[0]
    assert isinstance(command, SetMicroBatchSize)
    assert (command.size, command.keep_effective_batch) == (4, True)


def test_a_micro_batch_that_does_not_divide_is_told_before_it_is_asked(
    qtbot: QtBot, panel: TuningPanel
) -> None:
    """64 / 7 is no whole N."""
    retype(qtbot, panel.micro_batch, "7")
    assert "is not a multiple of" in panel.keep_words.text()
    panel.keep.setChecked(False)
    assert panel.keep_words.text() == "The effective batch becomes 56."


@pytest.mark.parametrize("text", ["nan", "-1", "x", ""])
def test_a_learning_rate_that_is_none_cannot_be_applied(qtbot: QtBot, panel: TuningPanel, text: str) -> None:
    """The sentence stands under the field."""
    retype(qtbot, panel.learning_rate, text)
    assert panel.learning_rate.problem.isVisible()
    assert not panel.learning_rate.apply.isEnabled()


def test_learning_rate_and_clipping_are_asked_one_by_one(qtbot: QtBot, panel: TuningPanel) -> None:
    """Empty clipping means none."""
    retype(qtbot, panel.learning_rate, "5e-4")
    with qtbot.waitSignal(panel.asked) as caught:
        panel.learning_rate.apply.click()
    assert isinstance(caught.args[0], SetLearningRate)
    assert caught.args[0].value == 5e-4
    retype(qtbot, panel.clip, "")
    with qtbot.waitSignal(panel.asked) as caught:
        panel.clip.apply.click()
    assert isinstance(caught.args[0], SetMaxGradNorm)
    assert caught.args[0].value is None


def test_it_is_folded_until_it_is_wanted(qtbot: QtBot, styled: QApplication) -> None:
    """The column is for N, memory and the log first."""
    made = TuningPanel()
    qtbot.addWidget(made)
    made.show()
    assert not made.content.isVisible()
    made.fold.click()
    assert made.content.isVisible()
    assert made.fold.text() == "Hide"
