"""All runs: the queue, a search, the list, and what can be done with the runs that are selected."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from PySide6.QtCore import QItemSelection, QItemSelectionModel, QPoint, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QMessageBox, QPushButton, QStackedWidget, QVBoxLayout, QWidget

from gradacc_gui.queueing.waiting import QueueView
from gradacc_gui.run.numbers import count
from gradacc_gui.run.run_columns import in_order, why_not_deleted
from gradacc_gui.run.run_search import RunSearch
from gradacc_gui.run.starter import interpreter_of
from gradacc_gui.session.runs import RunSummary
from gradacc_gui.theme import space
from gradacc_gui.widgets.desktop import open_folder
from gradacc_gui.widgets.parts import SELECTABLE, Notice, button, label, put
from gradacc_gui.widgets.placeholders import EmptyState
from gradacc_gui.window.notes_dialog import NotesDialog
from gradacc_gui.window.queue_panel import QueuePanel
from gradacc_gui.window.runs_filter import RunsFilter, tag_counts
from gradacc_gui.window.runs_model import RunsModel
from gradacc_gui.window.runs_table import ListMemory, RunTable
from gradacc_gui.window.trash_dialog import ask_to_delete
from gradacc_gui.words import tr
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunState

NOT_COMPARED: Final = frozenset({RunState.DAMAGED, RunState.WAITING, RunState.PENDING})
"""Runs in these states have no measurements."""


class RunsPage(QWidget):
    """The page with the table and what can be done with runs."""

    open_requested = Signal(object)
    """A `RunDirectory` to show live."""
    compare_requested = Signal(list)
    """`RunDirectory`s to show side by side."""
    resume_requested = Signal(object)
    delete_requested = Signal(list)
    """`RunDirectory`s to move to the trash."""
    put_back_requested = Signal(list)
    """`RunDirectory`s in the trash."""
    trash_requested = Signal()
    noted = Signal(list)
    """Pairs of a `RunSummary` and the `AboutRun` that it shall have."""
    copy_requested = Signal(object)
    """A `RunDirectory` whose settings a new run shall begin with."""
    demo_requested = Signal()
    recipe_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.model = RunsModel()
        self.memory = ListMemory()
        self._all: list[RunSummary] = []
        self._search = RunSearch()
        self._deleted: list[RunDirectory] = []
        self.question: QMessageBox | None = None
        column = QVBoxLayout(self)
        column.setContentsMargins(space(5), space(4), space(5), space(4))
        column.setSpacing(space(3))
        column.addLayout(self._build_head())
        self.queue_panel = QueuePanel()
        self.queue_panel.hide()
        column.addWidget(self.queue_panel)
        self.filter = RunsFilter()
        column.addWidget(self.filter)
        self.acts = self._build_acts()
        column.addWidget(self.acts)
        self.stack = QStackedWidget()
        self.stack.setObjectName("clear")
        self.table = self._build_table()
        self.empty = EmptyState()
        self.empty.demo_requested.connect(self.demo_requested)
        self.empty.recipe_requested.connect(self.recipe_requested)
        self.stack.addWidget(self.table)
        self.stack.addWidget(self.empty)
        column.addWidget(self.stack, 1)
        self.undo = Notice("notice")
        self.undo.buttons.addWidget(button(tr("Undo"), clicked=self._undo))
        column.addWidget(self.undo)
        self.problem = label(role="error", wrap=True)
        self.where = label(role="warning", wrap=True)
        """Where a folder lies that could not be shown; stays until another run is selected."""
        for part in (self.problem, self.where):
            part.setTextInteractionFlags(SELECTABLE)
            part.hide()
            column.addWidget(part)
        self.filter.changed.connect(self._show_found)
        self.filter.set_text(self.memory.search)
        self._refresh_buttons()

    def _build_head(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(space(2))
        row.addWidget(label(tr("Runs"), "page-title"))
        self.hint = label(role="help")
        row.addWidget(self.hint)
        row.addStretch(1)
        self.trash_button = button(tr("Trash…"), icon_name="delete", clicked=self.trash_requested.emit)
        self.columns_button = button(tr("Columns…"), clicked=self._choose_columns)
        row.addWidget(self.trash_button)
        row.addWidget(self.columns_button)
        return row

    def _build_acts(self) -> QWidget:
        bar = QWidget()
        bar.setObjectName("clear")
        row = QHBoxLayout(bar)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(space(2))

        def act(text: str, clicked: Callable[[], object], role: str = "", icon_name: str = "") -> QPushButton:
            made = button(text, role=role, icon_name=icon_name, clicked=clicked)
            row.addWidget(made)
            return made

        self.open_button = act(tr("Open"), self._open, role="primary")
        self.compare_button = act(tr("Compare"), self._compare)
        self.compare_button.setToolTip(tr("Select two runs or more, with Ctrl or Shift."))
        self.resume_button = act(tr("Resume"), self._resume, icon_name="resume")
        self.copy_button = act(tr("New run from this…"), self._copy, icon_name="new-run")
        self.notes_button = act(tr("Label and tags…"), self._note)
        self.command_button = act(tr("Copy command"), self._copy_command)
        self.command_button.setToolTip(tr("Copies the command line that starts this run's recipe again."))
        self.folder_button = act(tr("Open folder"), self._open_folder, icon_name="folder")
        self.delete_button = act(tr("Delete…"), self._delete, icon_name="delete")
        row.addStretch(1)
        self.selected_words = label(role="help")
        row.addWidget(self.selected_words)
        return bar

    def _build_table(self) -> RunTable:
        table = RunTable(self.model, self.memory)
        table.doubleClicked.connect(self._open)
        table.opened.connect(self._open)
        table.delete_pressed.connect(self._delete)
        table.notes_pressed.connect(self._note)
        table.star_clicked.connect(self._star)
        table.order_changed.connect(self._show_found)
        table.selectionModel().selectionChanged.connect(self._refresh_buttons)
        table.selectionModel().currentRowChanged.connect(lambda _row: self._say_where())
        return table

    # ------------------------------------------------------------------------------------ showing

    def set_runs(self, runs: Sequence[RunSummary], queue: QueueView | None = None) -> None:
        """Show these runs, newest first, as far as they fit the search, and the queue."""
        self.queue_panel.show_queue(queue or QueueView(), runs)
        if len(runs) != len(self._all) or any(
            new is not old for new, old in zip(runs, self._all, strict=True)
        ):
            self._all = list(runs)
            self._search.keep_only(self._all)
            self._show_found()
        self.stack.setCurrentWidget(self.table if runs else self.empty)
        for part in (self.filter, self.acts, self.columns_button):
            part.setVisible(bool(runs))
        put(self.hint, _totals(runs))

    def _show_found(self) -> None:
        """The runs that fit the search, in order, the same ones selected as before."""
        found = self._search.found(self.filter.query, self._all)
        key, descending = self.table.order
        chosen = [summary.run for summary in self.table.selected_runs()]
        self.model.set_runs(in_order(found, key, descending=descending))
        self.filter.show_counts(len(found), self._all)
        if chosen and [summary.run for summary in self.table.selected_runs()] != chosen:
            self._select_runs(chosen)
        if found and self.chosen() is None:
            self.table.selectRow(0)
        self._refresh_buttons()

    def _choose_columns(self) -> None:
        self.table.open_columns_menu(self.columns_button.mapToGlobal(QPoint(0, self.columns_button.height())))

    def remember(self) -> None:
        """Keep search, columns and order for the next start."""
        self.memory.search = self.filter.edit.text()
        self.table.remember()

    def select(self, summary: RunSummary) -> None:
        """Select the row of the same run."""
        self._select_runs([summary.run])

    def _select_runs(self, chosen: Sequence[RunDirectory]) -> None:
        """Select these runs' rows and no others."""
        wanted, selection = set(chosen), QItemSelection()
        for row, other in enumerate(self.model.runs()):
            if other.run in wanted:
                selection.select(self.model.index(row, 0), self.model.index(row, 0))
        flags = QItemSelectionModel.SelectionFlag
        self.table.selectionModel().select(selection, flags.ClearAndSelect | flags.Rows)
        if indexes := selection.indexes():
            self.table.selectionModel().setCurrentIndex(indexes[0], flags.NoUpdate)

    def chosen(self) -> RunSummary | None:
        """The selected run; of several the first."""
        rows = self.table.selectionModel().selectedRows()
        return self.model.data(rows[0], Qt.ItemDataRole.UserRole) if rows else None

    def _only_one(self) -> RunSummary | None:
        """The selected run, unless several are selected."""
        return self.chosen() if len(self.table.selectionModel().selectedRows()) == 1 else None

    def chosen_runs(self) -> list[RunSummary]:
        """All selected runs that have data to compare, in the order of the rows."""
        return [line for line in self.table.selected_runs() if line.state not in NOT_COMPARED]

    def say(self, sentence: str) -> None:
        """A problem, below the table; empty takes it away."""
        put(self.problem, sentence)
        self.problem.setVisible(bool(sentence))

    def tell_deleted(self, runs: list[RunDirectory]) -> None:
        """Say which runs were moved to the trash, and offer to put them back."""
        self._deleted = runs
        words = tr("{what} moved to the trash.")
        what = (runs[0].asked_name or runs[0].id) if len(runs) == 1 else tr("{n} runs").format(n=len(runs))
        self.undo.say(words.format(what=what[:200]))

    def _refresh_buttons(self) -> None:
        chosen = self.table.selected_runs()
        one = chosen[0] if len(chosen) == 1 else None
        comparable = len(self.chosen_runs())
        self.compare_button.setEnabled(comparable > 1)
        self.compare_button.setText(
            tr("Compare {count}").format(count=comparable) if comparable > 1 else tr("Compare")
        )
        there = one is not None and one.state is not RunState.DAMAGED
        for made in (self.open_button, self.copy_button, self.command_button):
            made.setEnabled(there)
        self.folder_button.setEnabled(one is not None)
        self.notes_button.setEnabled(bool(chosen))
        self.resume_button.setEnabled(one is not None and one.can_resume)
        problem = why_not_deleted(chosen)
        self.delete_button.setEnabled(bool(chosen) and not problem)
        self.delete_button.setToolTip(problem)
        many = len(chosen) > 1
        put(self.selected_words, tr("{count} selected").format(count=count(len(chosen))) if many else "")

    # ------------------------------------------------------------------------------------- acting

    def _open(self) -> None:
        summary = self._only_one()
        if summary is not None and summary.state is not RunState.DAMAGED:
            self.open_requested.emit(summary.run)

    def _compare(self) -> None:
        runs = self.chosen_runs()
        if len(runs) > 1:
            self.compare_requested.emit([summary.run for summary in runs])

    def _resume(self) -> None:
        summary = self._only_one()
        if summary is not None and summary.can_resume:
            self.resume_requested.emit(summary.run)

    def _copy(self) -> None:
        summary = self._only_one()
        if summary is not None:
            self.copy_requested.emit(summary.run)

    def _copy_command(self) -> None:
        summary = self._only_one()
        if summary is not None:
            QGuiApplication.clipboard().setText(command_line(summary.run))
            self._say_where(tr("Copied: {command}").format(command=command_line(summary.run)))

    def _open_folder(self) -> None:
        summary = self._only_one()
        if summary is not None:
            self._say_where(open_folder(summary.run.path))

    def _say_where(self, sentence: str = "") -> None:
        put(self.where, sentence)
        self.where.setVisible(bool(sentence))

    def _star(self, line: RunSummary) -> None:
        about = msgspec.structs.replace(line.about, starred=not line.about.starred)
        self.noted.emit([(line, about)])

    def _note(self) -> None:
        chosen = self.table.selected_runs()
        if not chosen:
            return
        self.notes = NotesDialog(self, chosen, [tag for tag, _ in tag_counts(self._all)])
        self.notes.noted.connect(self.noted)
        self.notes.open()

    def _undo(self) -> None:
        self.undo.hide()
        self.put_back_requested.emit(self._deleted)

    def _delete(self) -> None:
        chosen = self.table.selected_runs()
        if not chosen or why_not_deleted(chosen):
            return
        runs = [summary.run for summary in chosen]
        if len(runs) == 1:
            text = tr("Move {name} to the trash, with its checkpoints and its journal?")
            more = tr("{path}\nIt can be put back until it is deleted for good.").format(path=runs[0].path)
        else:
            text = tr("Move {count} runs to the trash, with their checkpoints and their journals?")
            names = ", ".join(summary.name[:60] for summary in chosen[:8])
            more = tr("{names}\nThey can be put back until they are deleted for good.").format(names=names)
        words = text.format(name=chosen[0].name[:200], count=count(len(runs)))
        self.question = ask_to_delete(self, words, more, lambda: self.delete_requested.emit(runs))


def command_line(run: RunDirectory) -> str:
    """What to type in a terminal to start a run's recipe again, under the Python that it was started with."""
    words = ["gradacc", "run", str(run.recipe_path)]
    python = interpreter_of(run)
    return shlex.join([*words, "--python", python] if python else words)


def _totals(runs: Sequence[RunSummary]) -> str:
    """How many there are, live and waiting; empty when there are none."""
    if not runs:
        return ""
    live = sum(summary.state.is_alive for summary in runs)
    waiting = sum(summary.state is RunState.WAITING for summary in runs)
    words = tr("{total} in all, {live} live").format(total=count(len(runs)), live=count(live))
    return words + (tr(", {waiting} waiting").format(waiting=count(waiting)) if waiting else "")
