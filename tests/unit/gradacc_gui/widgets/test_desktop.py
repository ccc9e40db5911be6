"""Rows of tables, and the path of a folder that cannot be shown, as text to take along."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QDesktopServices, QGuiApplication, QStandardItem, QStandardItemModel
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QTableView
from pytestqt.qtbot import QtBot

from gradacc_gui.session.listing import list_runs
from gradacc_gui.widgets.desktop import offer_rows, open_folder, tab_separated
from gradacc_gui.widgets.small_table import Cell, SmallTable
from gradacc_gui.window.decision_log import DecisionLog, Entry
from gradacc_gui.window.runs_page import RunsPage
from gradacc_gui.words import LogLine
from tests.support.fake_runs import Plan, write_run
from trainer_backend.run_directory import runs_folder


def copied() -> str:
    """What lies on the clipboard."""
    return QGuiApplication.clipboard().text()


@pytest.fixture(autouse=True)
def _empty_clipboard(styled: QApplication) -> None:
    QGuiApplication.clipboard().clear()


def test_the_selected_rows_are_copied_by_the_key_with_tabs_between_cells(qtbot: QtBot) -> None:
    """As a spreadsheet takes them; what lies in no selected row stays out."""
    model = QStandardItemModel()
    for row in (("a", "1"), ("b", "2"), ("c", "3")):
        model.appendRow([QStandardItem(cell) for cell in row])
    table = QTableView()
    qtbot.addWidget(table)
    table.setModel(model)
    table.setSelectionBehavior(QTableView.SelectionBehavior.SelectRows)
    offer_rows(table)
    with qtbot.waitActive(table):
        table.show()
        table.activateWindow()
    table.setFocus()
    table.selectRow(2)
    table.selectionModel().select(
        model.index(0, 0),
        table.selectionModel().SelectionFlag.Select | table.selectionModel().SelectionFlag.Rows,
    )
    QTest.keyClick(table, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert copied() == "a\t1\nc\t3"


def test_a_cell_with_a_tab_or_two_lines_stays_one_cell() -> None:
    """Else the columns after it would be moved."""
    assert tab_separated([("a\tb", "c\nd"), ("e", "f")]) == "a b\tc d\ne\tf"


def test_the_decision_log_s_lines_are_copied(qtbot: QtBot) -> None:
    """With their time, in the order in which they stand there."""
    log = DecisionLog()
    qtbot.addWidget(log)
    log.add([Entry(0.0, LogLine("first")), Entry(0.0, LogLine("second"))])
    log.view.selectAll()
    log.view.actions()[0].trigger()
    assert [line.split(maxsplit=1)[1] for line in copied().splitlines()] == ["second", "first"]


def test_a_results_table_is_copied_with_its_header(qtbot: QtBot) -> None:
    """Or only the words that are selected in one of its cells."""
    table = SmallTable("Measured")
    qtbot.addWidget(table)
    table.show_rows(("Measure", "Value"), [(Cell("Loss"), Cell("2.31")), (Cell("Accuracy"), Cell("0.5"))])
    (copy,) = table.actions()
    copy.trigger()
    assert copied() == "Measure\tValue\nLoss\t2.31\nAccuracy\t0.5"
    cell = next(part for part in table.findChildren(QLabel) if part.text() == "2.31")
    cell.setSelection(0, 4)
    copy.trigger()
    assert copied() == "2.31"


def test_the_runs_page_offers_a_menu_with_copy(qtbot: QtBot) -> None:
    """A right click shows it; nothing selected copies nothing."""
    page = RunsPage()
    qtbot.addWidget(page)
    assert [action.text() for action in page.table.actions()] == ["Copy"]
    assert page.table.contextMenuPolicy() is Qt.ContextMenuPolicy.ActionsContextMenu
    page.table.actions()[0].trigger()
    assert copied() == ""


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_folder_that_no_program_shows_is_told_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shown: bool
) -> None:
    """A machine without a file manager; where there is one, nothing is said."""
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda _url: is_shown)
    said = open_folder(tmp_path)
    assert (said == "") == is_shown
    assert is_shown or said.endswith(str(tmp_path))


def test_the_runs_page_says_where_a_run_lies_until_another_is_selected(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the list itself is read anew every few seconds."""
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda _url: False)
    for name in ("a", "b"):
        write_run(runs_folder(), Plan(name=name, steps=2))
    page = RunsPage()
    qtbot.addWidget(page)
    page.set_runs(list_runs())
    page.folder_button.click()
    page.say("")
    page.set_runs(list_runs())
    chosen = page.chosen()
    assert chosen is not None
    assert page.where.text().endswith(str(chosen.run.path))
    assert not page.where.isHidden()
    page.table.selectRow(1)
    assert page.where.isHidden()


def test_a_folder_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    """Deleted from elsewhere while its line was still shown."""
    assert "no longer exists" in open_folder(tmp_path / "gone")
