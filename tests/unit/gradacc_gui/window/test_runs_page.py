"""The list of runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMessageBox, QPushButton
from pytestqt.qtbot import QtBot

from gradacc_gui.run.header_state import STATE_WORDS
from gradacc_gui.session.about_file import AboutRun
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
    """Unknown is a dash; the star has no word."""
    page.table.set_column_shown("step", on=True)
    assert texts(page, 0) == ["", "Running", "live", "–", "–", "–", "2.5", "–", "–", "1,200", "–", "–"]
    assert texts(page, 1)[:4] == ["", "Interrupted", "cut", "–"]
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
    assert page.question is not None
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
    assert caught.args == [[RUNS[1].run]]


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
    assert "Stop it" in page.delete_button.toolTip()
    assert not page.open_button.isEnabled()
    with qtbot.waitSignal(page.compare_requested) as asked:
        page.compare_button.click()
    assert [run.id for run in asked.args[0]] == ["live", "cut"]
    page.table.clearSelection()
    page._select_runs([RUNS[0].run, RUNS[1].run])
    page.set_runs([summary("new", RunState.RUNNING), *RUNS])
    assert [chosen.name for chosen in page.chosen_runs()] == ["live", "cut"]


def noted(name: str, about: AboutRun, n: int = 4, state: RunState = RunState.FINISHED) -> RunSummary:
    """A run with notes."""
    made = summary(name, state)
    settings = {"accumulation.gradient_accumulation_steps": n}
    return msgspec.structs.replace(made, about=about, settings=settings, created_at=1.0)


NOTED = [
    noted("a", AboutRun(tags=("paper",), starred=True), n=8),
    noted("b", AboutRun(tags=("paper", "x" * 10_000, "🦊 'quoted\""), note="a note"), n=16),
    noted("c", AboutRun(), n=2),
]


def shown(page: RunsPage) -> list[str]:
    """The names in the table, from the top."""
    return [line.name for line in page.model.runs()]


def test_a_search_narrows_the_list_and_is_remembered(page: RunsPage, qtbot: QtBot) -> None:
    """How many fit is told; stars and tags have buttons that add their term."""
    page.set_runs(NOTED)
    QTest.keyClicks(page.filter.edit, "n>4")
    qtbot.waitUntil(lambda: shown(page) == ["a", "b"], timeout=60_000)
    assert page.filter.count.text() == "2 of 3 runs"
    buttons = {made.text(): made for made in page.filter.buttons()}
    buttons["Starred  1"].click()
    assert page.filter.edit.text() == "n>4 is:starred"
    assert shown(page) == ["a"]
    assert buttons["Starred  1"].isChecked()
    page.remember()
    again = RunsPage()
    qtbot.addWidget(again)
    again.set_runs(NOTED)
    assert shown(again) == ["a"]
    buttons["Starred  1"].click()
    page.filter.set_text("lr<fast")
    assert "compares with a number" in page.filter.problem.text()
    page.filter.set_text("")
    assert shown(page) == ["a", "b", "c"]
    for made in page.filter.buttons():
        page.filter.set_text("")
        made.click()
        assert shown(page), made.toolTip()[:40]
    page.filter.set_text("")


def test_a_click_on_a_header_sorts_and_columns_are_chosen_both_remembered(
    page: RunsPage, qtbot: QtBot
) -> None:
    """The next window has them, with their widths."""
    page.set_runs(NOTED)
    section = page.model.section("n")
    page.table._sort_by(section)
    assert shown(page) == ["b", "a", "c"]
    page.table._sort_by(section)
    assert shown(page) == ["c", "a", "b"]
    menu = page.table.open_columns_menu(page.mapToGlobal(page.rect().center()))
    actions = {action.text(): action for action in menu.actions()}
    assert not actions["Name"].isEnabled()
    actions["Kind of task"].trigger()
    actions["Peak memory"].trigger()
    page.table.setColumnWidth(page.model.section("loss"), 222)
    page.remember()
    again = RunsPage()
    qtbot.addWidget(again)
    again.set_runs(NOTED)
    assert shown(again) == ["c", "a", "b"]
    assert "kind" in again.model.column_keys()
    assert "memory" not in again.model.column_keys()
    assert again.table.columnWidth(again.model.section("loss")) == 222


def test_notes_are_entered_in_a_dialog_and_a_star_by_a_click(page: RunsPage, qtbot: QtBot) -> None:
    """The page hands them out; of several runs, tags are added."""
    page.set_runs(NOTED)
    page.table.selectRow(2)
    QTest.keyClick(page.table, Qt.Key.Key_F2)
    page.notes.name.setText("better name")
    page.notes.tags.setText("one, two,, one")
    page.notes.note.setPlainText("why")
    with qtbot.waitSignal(page.noted) as caught:
        page.notes.accept()
    assert caught.args == [[(NOTED[2], AboutRun("better name", ("one", "two"), "why"))]]
    page.table.selectAll()
    page.notes_button.click()
    page.notes.tags.setText("shared")
    with qtbot.waitSignal(page.noted) as caught:
        page.notes.accept()
    assert [about.tags[-1] for _, about in caught.args[0]] == ["shared"] * 3
    assert caught.args[0][0][1].starred
    place = page.table.visualRect(page.model.index(0, 0)).center()
    with qtbot.waitSignal(page.noted) as caught:
        QTest.mouseClick(page.table.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert caught.args == [[(NOTED[0], AboutRun(tags=("paper",)))]]


def test_a_new_run_and_the_command_come_from_the_selected_run(page: RunsPage, qtbot: QtBot) -> None:
    """The command is what a terminal takes, its path quoted."""
    run = RunDirectory(Path("/runs/it's mine"))
    page.set_runs([msgspec.structs.replace(NOTED[0], run=run)])
    with qtbot.waitSignal(page.copy_requested) as caught:
        page.copy_button.click()
    assert caught.args == [run]
    page.command_button.click()
    words = shlex.split(QApplication.clipboard().text())
    assert words == ["gradacc", "run", "/runs/it's mine/recipe.toml"]
    assert "Copied" in page.where.text()


def test_what_went_to_the_trash_can_be_undone(page: RunsPage, qtbot: QtBot) -> None:
    """Until the notice is dismissed; later, from the trash itself."""
    gone = [RunDirectory(Path("/trash/a"))]
    page.tell_deleted(gone)
    assert page.undo.sentence.text() == "a moved to the trash."
    with qtbot.waitSignal(page.put_back_requested) as caught:
        page.undo.findChildren(QPushButton)[0].click()
    assert caught.args == [gone]
    assert page.undo.isHidden()


def test_ten_thousand_runs_of_one_name_are_listed_and_searched(page: RunsPage) -> None:
    """Each is its own row, told apart by its id."""
    many = [
        msgspec.structs.replace(
            summary(f"same-{place}", RunState.FINISHED), name="same", created_at=float(place)
        )
        for place in range(10_000)
    ]
    page.set_runs(many)
    assert page.model.rowCount() == 10_000
    page.table.selectRow(9_999)
    page.filter.set_text("same-77")
    assert {line.run.id for line in page.model.runs()} >= {"same-77", "same-7799"}
    assert page.model.rowCount() == 111
    page.filter.set_text("")
    assert page.model.rowCount() == 10_000
