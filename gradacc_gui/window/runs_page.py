"""All runs: live, finished, interrupted, failed; open, re-attach, resume, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import QItemSelection, QItemSelectionModel, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QHeaderView,
    QMessageBox,
    QStackedWidget,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.queueing.waiting import QueueView
from gradacc_gui.run.numbers import count
from gradacc_gui.session.runs import RunSummary
from gradacc_gui.theme import space
from gradacc_gui.widgets.desktop import offer_rows, open_folder
from gradacc_gui.widgets.parts import SELECTABLE, button, label, put
from gradacc_gui.widgets.placeholders import EmptyState
from gradacc_gui.window.queue_panel import QueuePanel
from gradacc_gui.window.runs_model import RunsModel, StateDelegate
from gradacc_gui.words import tr
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunState

NOT_COMPARED: Final = frozenset({RunState.DAMAGED, RunState.WAITING, RunState.PENDING})
"""Runs in these states have no measurements."""


class RunTable(QTableView):
    """Rows of runs; Return opens, Delete deletes."""

    opened = Signal()
    delete_pressed = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Return and Delete act on the selected run."""
        match event.key():
            case Qt.Key.Key_Return | Qt.Key.Key_Enter:
                self.opened.emit()
            case Qt.Key.Key_Delete:
                self.delete_pressed.emit()
            case _:
                super().keyPressEvent(event)


class RunsPage(QWidget):
    """The page with the table and what can be done with a run."""

    open_requested = Signal(object)
    """A `RunDirectory` to show live."""
    compare_requested = Signal(list)
    """`RunDirectory`s to show side by side."""
    resume_requested = Signal(object)
    delete_requested = Signal(object)
    demo_requested = Signal()
    recipe_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.model = RunsModel()
        column = QVBoxLayout(self)
        column.setContentsMargins(space(5), space(4), space(5), space(4))
        column.setSpacing(space(3))
        column.addLayout(self._build_head())
        self.queue_panel = QueuePanel()
        self.queue_panel.hide()
        column.addWidget(self.queue_panel)
        self.stack = QStackedWidget()
        self.stack.setObjectName("clear")
        self.table = self._build_table()
        self.empty = EmptyState()
        self.empty.demo_requested.connect(self.demo_requested)
        self.empty.recipe_requested.connect(self.recipe_requested)
        self.stack.addWidget(self.table)
        self.stack.addWidget(self.empty)
        column.addWidget(self.stack, 1)
        self.problem = label(role="error", wrap=True)
        self.where = label(role="warning", wrap=True)
        """Where a folder lies that could not be shown; stays until another run is selected."""
        for part in (self.problem, self.where):
            part.setTextInteractionFlags(SELECTABLE)
            part.hide()
            column.addWidget(part)
        self._refresh_buttons()

    def _build_head(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(space(2))
        row.addWidget(label(tr("Runs"), "page-title"))
        self.hint = label(role="help")
        row.addWidget(self.hint)
        row.addStretch(1)
        self.open_button = button(tr("Open"), role="primary", icon_name="", clicked=self._open)
        self.resume_button = button(tr("Resume"), icon_name="resume", clicked=self._resume)
        self.folder_button = button(tr("Open folder"), icon_name="folder", clicked=self._open_folder)
        self.delete_button = button(tr("Delete…"), icon_name="delete", clicked=self._delete)
        self.compare_button = button(tr("Compare"), icon_name="", clicked=self._compare)
        self.compare_button.setToolTip(tr("Select two runs or more, with Ctrl or Shift."))
        for made in (
            self.delete_button, self.folder_button, self.resume_button, self.compare_button, self.open_button,
        ):  # fmt: skip
            row.addWidget(made)
        return row

    def _build_table(self) -> RunTable:
        table = RunTable()
        table.setModel(self.model)
        table.setAccessibleName(tr("Runs, newest first"))
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        table.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        table.setShowGrid(False)
        table.setTabKeyNavigation(False)
        table.verticalHeader().hide()
        table.verticalHeader().setDefaultSectionSize(34)
        table.setItemDelegateForColumn(0, StateDelegate(table))
        header = table.horizontalHeader()
        header.setHighlightSections(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setStretchLastSection(True)
        for section, width in enumerate((124, 210, 84, 100, 104, 112, 112)):
            table.setColumnWidth(section, width)
        table.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        offer_rows(table)
        table.doubleClicked.connect(self._open)
        table.opened.connect(self._open)
        table.delete_pressed.connect(self._delete)
        table.selectionModel().selectionChanged.connect(self._refresh_buttons)
        table.selectionModel().currentRowChanged.connect(lambda _row: self._say_where())
        return table

    def set_runs(self, runs: Sequence[RunSummary], queue: QueueView | None = None) -> None:
        """Show `runs` and the queue, keeping the selection."""
        self.queue_panel.show_queue(queue or QueueView(), runs)
        chosen = [summary.run for summary in self._selected()]
        self.model.set_runs(runs)
        self.stack.setCurrentWidget(self.table if runs else self.empty)
        put(self.hint, _totals(runs))
        if chosen and not self._selected():
            self._select_runs(chosen)
        if runs and self.chosen() is None:
            self.table.selectRow(0)
        self._refresh_buttons()

    def select(self, summary: RunSummary) -> None:
        """Select the row of the same run."""
        self._select_runs([summary.run])

    def _select_runs(self, chosen: Sequence[RunDirectory]) -> None:
        """Select these runs' rows and no others."""
        selection = QItemSelection()
        for row, other in enumerate(self.model.runs()):
            if other.run in chosen:
                selection.select(self.model.index(row, 0), self.model.index(row, 0))
        flags = QItemSelectionModel.SelectionFlag
        self.table.selectionModel().select(selection, flags.ClearAndSelect | flags.Rows)
        if indexes := selection.indexes():
            self.table.selectionModel().setCurrentIndex(indexes[0], flags.NoUpdate)

    def _selected(self) -> list[RunSummary]:
        """All selected runs, in the order of the rows."""
        rows = sorted(index.row() for index in self.table.selectionModel().selectedRows())
        runs = self.model.runs()
        return [runs[row] for row in rows]

    def chosen(self) -> RunSummary | None:
        """The selected run."""
        rows = self.table.selectionModel().selectedRows()
        return self.model.data(rows[0], Qt.ItemDataRole.UserRole) if rows else None

    def chosen_runs(self) -> list[RunSummary]:
        """All selected runs that have data to compare, in the order of the rows."""
        return [summary for summary in self._selected() if summary.state not in NOT_COMPARED]

    def say(self, sentence: str) -> None:
        """A problem, below the table; empty takes it away."""
        put(self.problem, sentence)
        self.problem.setVisible(bool(sentence))

    def _refresh_buttons(self) -> None:
        many = len(self.table.selectionModel().selectedRows()) > 1
        summary = None if many else self.chosen()
        there = summary is not None
        self.compare_button.setEnabled(len(self.chosen_runs()) > 1)
        self.open_button.setEnabled(there and summary is not None and summary.state is not RunState.DAMAGED)
        self.folder_button.setEnabled(there)
        self.resume_button.setEnabled(summary is not None and summary.can_resume)
        self.delete_button.setEnabled(summary is not None and not summary.state.is_alive)

    def _open(self) -> None:
        summary = self.chosen()
        if summary is not None and summary.state is not RunState.DAMAGED:
            self.open_requested.emit(summary.run)

    def _compare(self) -> None:
        runs = self.chosen_runs()
        if len(runs) > 1:
            self.compare_requested.emit([summary.run for summary in runs])

    def _resume(self) -> None:
        summary = self.chosen()
        if summary is not None and summary.can_resume:
            self.resume_requested.emit(summary.run)

    def _open_folder(self) -> None:
        summary = self.chosen()
        if summary is not None:
            self._say_where(open_folder(summary.run.path))

    def _say_where(self, sentence: str = "") -> None:
        put(self.where, sentence)
        self.where.setVisible(bool(sentence))

    def _delete(self) -> None:
        summary = self.chosen()
        if summary is None or summary.state.is_alive:
            return
        question = QMessageBox(self)
        question.setWindowTitle(tr("Delete a run"))
        question.setText(tr("Delete {name} with its checkpoints and its journal?").format(name=summary.name))
        question.setInformativeText(tr("{path}\nThis cannot be undone.").format(path=summary.run.path))
        question.setStandardButtons(QMessageBox.StandardButton.Cancel)
        delete = question.addButton(tr("Delete"), QMessageBox.ButtonRole.DestructiveRole)
        question.setDefaultButton(QMessageBox.StandardButton.Cancel)
        question.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        question.buttonClicked.connect(
            lambda clicked: self.delete_requested.emit(summary.run) if clicked is delete else None
        )
        self.question = question
        question.open()


def _totals(runs: Sequence[RunSummary]) -> str:
    """How many there are, live and waiting; empty when there are none."""
    if not runs:
        return ""
    live = sum(summary.state.is_alive for summary in runs)
    waiting = sum(summary.state is RunState.WAITING for summary in runs)
    words = tr("{total} in all, {live} live").format(total=count(len(runs)), live=count(live))
    return words + (tr(", {waiting} waiting").format(waiting=count(waiting)) if waiting else "")
