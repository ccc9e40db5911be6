"""All runs: live, finished, interrupted, failed; open, re-attach, resume, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, QSize, Qt, QUrl, Signal
from PySide6.QtGui import QColor, QDesktopServices, QKeyEvent, QPainter
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QHeaderView,
    QMessageBox,
    QStackedWidget,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui import words
from gradacc_gui.session.runs import RunState, RunSummary
from gradacc_gui.theme import current_theme, space
from gradacc_gui.window.empty_state import EmptyState
from gradacc_gui.window.numbers import DASH, count, day_and_time, real
from gradacc_gui.window.parts import button, label, put
from gradacc_gui.words import tr

Index = QModelIndex | QPersistentModelIndex
STATES: Final[dict[RunState, tuple[str, str]]] = {
    RunState.STARTING: ("Starting", "accent"),
    RunState.LIVE: ("Running", "ok"),
    RunState.PAUSED: ("Paused", "warning"),
    RunState.FINISHED: ("Finished", "muted"),
    RunState.STOPPED: ("Stopped", "muted"),
    RunState.FAILED: ("Failed", "bad"),
    RunState.INTERRUPTED: ("Interrupted", "warning"),
    RunState.DAMAGED: ("Damaged", "bad"),
}
COLUMNS: Final = ("State", "Name", "Step", "Samples", "Loss", "Started", "Last event", "Id")
_RIGHT: Final = frozenset((2, 3, 4))


class RunsModel(QAbstractTableModel):
    """The list, newest first."""

    def __init__(self) -> None:
        super().__init__()
        self._runs: list[RunSummary] = []

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own default
        """Runs."""
        return 0 if parent.isValid() else len(self._runs)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own default
        """See COLUMNS."""
        return 0 if parent.isValid() else len(COLUMNS)

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:  # noqa: ANN401
        """Column titles."""
        if orientation != Qt.Orientation.Horizontal:
            return None
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _alignment(section)
        return tr(COLUMNS[section]) if role == Qt.ItemDataRole.DisplayRole else None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401 - Qt's API
        """Texts; why a run ended as tool-tip; the summary itself."""
        if not index.isValid():
            return None
        summary = self._runs[index.row()]
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return _texts(summary)[index.column()]
            case Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(index.column())
            case Qt.ItemDataRole.ToolTipRole:
                return "\n".join(filter(None, (why(summary), str(summary.run.path))))
            case Qt.ItemDataRole.UserRole:
                return summary
            case _:
                return None

    def set_runs(self, runs: Sequence[RunSummary]) -> None:
        """Show another list; rows that stay keep their place, so that a selection survives."""
        if list(runs) == self._runs:
            return
        if [summary.run for summary in runs] == [summary.run for summary in self._runs]:
            self._runs = list(runs)
            self.dataChanged.emit(self.index(0, 0), self.index(len(runs) - 1, len(COLUMNS) - 1))
            return
        self.beginResetModel()
        self._runs = list(runs)
        self.endResetModel()

    def runs(self) -> list[RunSummary]:
        """What is shown."""
        return list(self._runs)


def _texts(summary: RunSummary) -> tuple[str, ...]:
    started, seen = summary.started_at, summary.seen_at
    return (
        tr(STATES[summary.state][0]),
        summary.name,
        count(summary.step) if summary.step else DASH,
        count(summary.samples_seen) if summary.samples_seen else DASH,
        real(summary.loss),
        day_and_time(started) if started else DASH,
        day_and_time(seen) if seen else DASH,
        summary.run.id,
    )


def _alignment(column: int) -> int:
    side = Qt.AlignmentFlag.AlignRight if column in _RIGHT else Qt.AlignmentFlag.AlignLeft
    return int(side | Qt.AlignmentFlag.AlignVCenter)


def why(summary: RunSummary) -> str:
    """Why a run is no longer live, in words."""
    match summary.state:
        case RunState.FINISHED | RunState.STOPPED:
            return words.end_reason(summary.reason)
        case RunState.INTERRUPTED:
            return tr("Interrupted at step {step:,}: its trainer ended without a word.").format(
                step=summary.step
            )
        case _:
            return summary.reason


class _StateDelegate(QStyledItemDelegate):
    """A dot in the state's colour before its word."""

    def initStyleOption(self, option: QStyleOptionViewItem, index: Index) -> None:
        super().initStyleOption(option, index)
        option.text = ""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        summary: RunSummary = index.data(Qt.ItemDataRole.UserRole)
        word, token = STATES[summary.state]
        super().paint(painter, option, index)
        colour = QColor(getattr(current_theme(), token))
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        centre = option.rect.center().y()
        painter.drawEllipse(option.rect.x() + 10, centre - 3, 8, 8)
        painter.setPen(colour)
        flags = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft)
        painter.drawText(option.rect.adjusted(26, 0, 0, 0), flags, tr(word))
        painter.restore()

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        hint = super().sizeHint(option, index)
        return QSize(hint.width() + 28, hint.height())


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
        self.problem.hide()
        column.addWidget(self.problem)
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
        for made in (self.delete_button, self.folder_button, self.resume_button, self.open_button):
            row.addWidget(made)
        return row

    def _build_table(self) -> RunTable:
        table = RunTable()
        table.setModel(self.model)
        table.setAccessibleName(tr("Runs, newest first"))
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        table.setShowGrid(False)
        table.setTabKeyNavigation(False)
        table.verticalHeader().hide()
        table.verticalHeader().setDefaultSectionSize(34)
        table.setItemDelegateForColumn(0, _StateDelegate(table))
        header = table.horizontalHeader()
        header.setHighlightSections(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setStretchLastSection(True)
        for section, width in enumerate((124, 210, 84, 100, 84, 112, 112)):
            table.setColumnWidth(section, width)
        table.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        table.doubleClicked.connect(self._open)
        table.opened.connect(self._open)
        table.delete_pressed.connect(self._delete)
        table.selectionModel().selectionChanged.connect(self._refresh_buttons)
        return table

    def set_runs(self, runs: Sequence[RunSummary]) -> None:
        """Show `runs`, keeping the selection."""
        chosen = self.chosen()
        self.model.set_runs(runs)
        self.stack.setCurrentWidget(self.table if runs else self.empty)
        live = sum(summary.state.is_alive for summary in runs)
        put(
            self.hint,
            tr("{total} in all, {live} live").format(total=count(len(runs)), live=count(live))
            if runs
            else "",
        )
        if chosen is not None and self.chosen() is None:
            self.select(chosen)
        if runs and self.chosen() is None:
            self.table.selectRow(0)
        self._refresh_buttons()

    def select(self, summary: RunSummary) -> None:
        """Select the row of the same run."""
        for row, other in enumerate(self.model.runs()):
            if other.run == summary.run:
                self.table.selectRow(row)

    def chosen(self) -> RunSummary | None:
        """The selected run."""
        rows = self.table.selectionModel().selectedRows()
        return self.model.data(rows[0], Qt.ItemDataRole.UserRole) if rows else None

    def say(self, sentence: str) -> None:
        """A problem, below the table; empty takes it away."""
        put(self.problem, sentence)
        self.problem.setVisible(bool(sentence))

    def _refresh_buttons(self) -> None:
        summary = self.chosen()
        there = summary is not None
        self.open_button.setEnabled(there and summary is not None and summary.state is not RunState.DAMAGED)
        self.folder_button.setEnabled(there)
        self.resume_button.setEnabled(summary is not None and summary.state.can_resume)
        self.delete_button.setEnabled(summary is not None and not summary.state.is_alive)

    def _open(self) -> None:
        summary = self.chosen()
        if summary is not None and summary.state is not RunState.DAMAGED:
            self.open_requested.emit(summary.run)

    def _resume(self) -> None:
        summary = self.chosen()
        if summary is not None and summary.state.can_resume:
            self.resume_requested.emit(summary.run)

    def _open_folder(self) -> None:
        summary = self.chosen()
        if summary is not None:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(summary.run.path)))

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
