"""The list of runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMessageBox, QPushButton
from pytestqt.qtbot import QtBot

from gradacc_gui.run.header_state import STATE_WORDS
from gradacc_gui.session.runs import RunSummary
from gradacc_gui.window.runs_page import RunsPage
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunState


def summary(name: str, state: RunState, *, step: int = 0, loss: float | None = None) -> RunSummary:
    """One line of the list."""
    run = RunDirectory(Path("/runs") / name)
    return RunSummary(run=run, name=name, state=state, step=step, loss=loss, reason="stop")


RUNS = [
    summary("live", RunState.RUNNING, step=1200, loss=2.5),
    summary("cut", RunState.INTERRUPTED, step=40),
    summary("bad", RunState.DAMAGED),
]


@pytest.fixture
def page(qtbot: QtBot, styled: QApplication) -> RunsPage:
    """Three runs."""
    made = RunsPage()
    qtbot.addWidget(made)
    made.resize(1100, 500)
    made.set_runs(RUNS)
    made.show()
    return made


def texts(page: RunsPage, row: int) -> list[str]:
    """A row as read."""
    model = page.model
    return [str(model.data(model.index(row, column))) for column in range(model.columnCount())]


def test_a_run_is_a_line_with_state_name_step_and_loss(page: RunsPage) -> None:
    """Unknown is a dash."""
    assert texts(page, 0) == ["Running", "live", "1,200", "–", "2.5", "–", "–", "live"]
    assert texts(page, 1)[:5] == ["Interrupted", "cut", "40", "–", "–"]
    assert page.hint.text() == "3 in all, 1 live"


def test_every_state_has_a_word() -> None:
    """No state is shown by its colour alone."""
    assert set(STATE_WORDS) == {None, *RunState}


@pytest.mark.parametrize(
    ("row", "opens", "resumes", "deletes"),
    [(0, True, False, False), (1, True, True, True), (2, False, False, True)],
)
def test_only_what_can_be_done_is_offered(
    page: RunsPage, row: int, opens: bool, resumes: bool, deletes: bool
) -> None:
    """A live run is not deleted, a damaged one not opened."""
    page.table.selectRow(row)
    buttons = (page.open_button, page.resume_button, page.delete_button)
    assert [button.isEnabled() for button in buttons] == [opens, resumes, deletes]


def test_a_finished_run_that_was_given_more_can_be_resumed(page: RunsPage) -> None:
    """Another finished run cannot."""
    finished = summary("done", RunState.FINISHED)
    page.set_runs([finished, msgspec.structs.replace(finished, lengthened=True)])
    for row, resumes in enumerate((False, True)):
        page.table.selectRow(row)
        assert page.resume_button.isEnabled() is resumes


def test_return_opens_the_selected_run(qtbot: QtBot, page: RunsPage) -> None:
    """By key as by double click."""
    page.table.selectRow(1)
    with qtbot.waitSignal(page.open_requested) as caught:
        QTest.keyClick(page.table, Qt.Key.Key_Return)
    assert caught.args == [RUNS[1].run]


def answer(page: RunsPage, word: str) -> None:
    """Press a button of the question."""
    QApplication.processEvents()
    buttons = page.question.findChildren(QPushButton)
    next(button for button in buttons if button.text().replace("&", "") == word).click()
    QApplication.processEvents()


def test_a_run_is_deleted_only_after_a_yes(qtbot: QtBot, page: RunsPage) -> None:
    """Cancel is the default, and the path is shown."""
    page.table.selectRow(1)
    with qtbot.assertNotEmitted(page.delete_requested):
        page.delete_button.click()
        assert isinstance(page.question, QMessageBox)
        assert str(RUNS[1].run.path) in page.question.informativeText()
        answer(page, "Cancel")
    with qtbot.waitSignal(page.delete_requested) as caught:
        page.delete_button.click()
        answer(page, "Delete")
    assert caught.args == [RUNS[1].run]


def test_a_selection_survives_a_new_look_at_the_list(page: RunsPage) -> None:
    """Also when a run was added above it."""
    page.table.selectRow(1)
    page.set_runs([summary("new", RunState.LOADING), *RUNS])
    chosen = page.chosen()
    assert chosen is not None
    assert chosen.name == "cut"


def test_without_a_run_the_page_offers_the_demo_and_a_recipe(qtbot: QtBot, page: RunsPage) -> None:
    """The empty state is a way to begin."""
    page.set_runs([])
    assert page.stack.currentWidget() is page.empty
    with qtbot.waitSignal(page.demo_requested):
        page.empty.demo.click()
    with qtbot.waitSignal(page.recipe_requested):
        page.empty.recipe.click()


def test_several_runs_are_compared_and_stay_selected(page: RunsPage, qtbot: QtBot) -> None:
    """What has no measurements is left out; what acts on one run alone is off."""
    assert not page.compare_button.isEnabled()
    page.table.selectAll()
    assert page.compare_button.isEnabled()
    assert not page.delete_button.isEnabled()
    assert not page.open_button.isEnabled()
    with qtbot.waitSignal(page.compare_requested) as asked:
        page.compare_button.click()
    assert [run.id for run in asked.args[0]] == ["live", "cut"]
    page.table.clearSelection()
    page._select_runs([RUNS[0].run, RUNS[1].run])
    page.set_runs([summary("new", RunState.RUNNING), *RUNS])
    assert [chosen.name for chosen in page.chosen_runs()] == ["live", "cut"]
