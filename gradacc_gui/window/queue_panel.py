"""The queue, above the list of runs: what runs, what waits and for what, what was done today."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from PySide6.QtCore import QModelIndex, QRect, QSize, Qt, Signal
from PySide6.QtGui import QAction, QColor, QFont, QKeySequence, QPainter
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QListWidget,
    QListWidgetItem,
    QMessageBox,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.queueing.entries import GOOD, EndedEntry, Queue
from gradacc_gui.queueing.waiting import QueueView, WaitingRun
from gradacc_gui.run.header_state import STATE_WORDS
from gradacc_gui.run.numbers import count
from gradacc_gui.session.runs import RunSummary, delete_run
from gradacc_gui.theme import current_theme, space
from gradacc_gui.widgets.desktop import Index, ask_for_file
from gradacc_gui.widgets.parts import Panel, button, clear_widget, label, put
from gradacc_gui.words import end_reason, tr
from trainer_backend.run_directory import RunDirectory, runs_folder

ROW_HEIGHT: Final = 40
SHOWN: Final = 3
"""Rows of a column that are seen at once; the others are scrolled to."""
RECIPES: Final = "Recipes (*.toml);;All files (*)"
_LINES = Qt.ItemDataRole.UserRole
_OUTCOMES: Final = {
    "finished": "Finished",
    "stopped": "Stopped",
    "failed": "Failed",
    "interrupted": "Interrupted",
    "refused": "Not started",
}


class Line(tuple[str, str, str, str]):
    """A row: its name, what stands below it, what stands at the right, and its dot's colour in a theme."""

    __slots__ = ()


class TwoLines(QStyledItemDelegate):
    """A name with a dot, a smaller line below it, and words at the right."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """What any item has, then the words."""
        name, below, right, colour = index.data(_LINES)
        theme = current_theme()
        option.text = ""
        super().paint(painter, option, QModelIndex())
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        area = option.rect.adjusted(2, 3, -6, -3)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(getattr(theme, colour)))
        painter.drawEllipse(area.x() + 2, area.y() + 6, 7, 7)
        words = area.adjusted(18, 0, 0, 0)
        bold, small = QFont(option.font), QFont(option.font)
        bold.setWeight(QFont.Weight.DemiBold)
        small.setPixelSize(12)
        top = QRect(words.x(), words.y(), words.width(), words.height() // 2)
        painter.setFont(small)
        painter.setPen(QColor(theme.muted))
        painter.drawText(top, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), right)
        room = top.width() - painter.fontMetrics().horizontalAdvance(right) - 8
        lower = top.translated(0, top.height())
        painter.setPen(QColor(theme.bad if colour == "bad" else theme.muted))
        cut = painter.fontMetrics().elidedText(below, Qt.TextElideMode.ElideRight, lower.width())
        painter.drawText(lower, int(Qt.AlignmentFlag.AlignVCenter), cut)
        painter.setFont(bold)
        painter.setPen(QColor(theme.text))
        cut = painter.fontMetrics().elidedText(name, Qt.TextElideMode.ElideRight, room)
        painter.drawText(top, int(Qt.AlignmentFlag.AlignVCenter), cut)
        painter.restore()

    def sizeHint(self, _option: QStyleOptionViewItem, _index: Index) -> QSize:
        """Two lines high, as wide as the list."""
        return QSize(60, ROW_HEIGHT)


class LineList(QListWidget):
    """Rows of two lines."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.setItemDelegate(TwoLines(self))
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setFixedHeight(SHOWN * ROW_HEIGHT + 4)
        self._shown: list[tuple[Line, str, str]] = []

    def show_lines(self, lines: Sequence[tuple[Line, str, str]]) -> None:
        """Show rows, each with the id of its run and a tool-tip; the selection stays with its run."""
        if list(lines) == self._shown:
            return
        self._shown = list(lines)
        chosen = self.chosen()
        self.clear()
        for line, run, tip in lines:
            item = QListWidgetItem()
            item.setData(_LINES, line)
            item.setData(_LINES + 1, run)
            item.setData(Qt.ItemDataRole.AccessibleTextRole, ", ".join(filter(None, line[:3])))
            item.setToolTip(tip)
            self.addItem(item)
            if run == chosen:
                self.setCurrentItem(item)

    def chosen(self) -> str:
        """The id of the selected row's run; empty when none is."""
        row = self.currentRow()
        return str(self.item(row).data(_LINES + 1)) if row >= 0 else ""

    def runs(self) -> list[str]:
        """The ids in the order of the rows."""
        return [str(self.item(row).data(_LINES + 1)) for row in range(self.count())]

    def texts(self) -> list[tuple[str, str, str]]:
        """What the rows say."""
        return [tuple(self.item(row).data(_LINES)[:3]) for row in range(self.count())]


class QueuePanel(Panel):
    """Three columns; hidden while the queue was never used today."""

    recipes_chosen = Signal(list)
    """Paths of recipes to add."""
    changed = Signal(object)
    """A function that changes the queue on disk: for the background."""
    start_requested = Signal(object)
    """A waiting `RunDirectory` that shall start now."""
    open_requested = Signal(object)

    def __init__(self) -> None:
        super().__init__(tr("Queue"), tr("one run per device; keeps going if you close this window"))
        self._view = QueueView()
        self._news = ""
        self.add = button(tr("Add recipes…"), role="link", clicked=self._ask_for_recipes)
        self.pause = button(tr("Pause the queue"), role="link", clicked=self._pause_or_resume)
        for made in (self.add, self.pause):
            self.head.addSpacing(space(3))
            self.head.addWidget(made)
        columns = QHBoxLayout()
        columns.setSpacing(space(4))
        self.running = LineList(tr("Running"))
        self.waiting = LineList(tr("Waiting, in order"))
        self.done = LineList(tr("Done today"))
        self.running.itemActivated.connect(lambda _item: self._open(self.running.chosen()))
        self.done.itemActivated.connect(lambda _item: self._open(self.done.chosen()))
        self._hints = [label(role="help") for _ in range(3)]
        titles = (tr("Running"), tr("Waiting"), tr("Done today"))
        for title, hint, rows in zip(
            titles, self._hints, (self.running, self.waiting, self.done), strict=True
        ):
            columns.addWidget(_column(title, hint, rows), 1)
        self.body.addLayout(columns)
        self.body.addLayout(self._build_acts())
        self._arrange_waiting()
        self.question: QMessageBox | None = None
        self._refresh()

    def _arrange_waiting(self) -> None:
        rows = self.waiting
        rows.setDragDropMode(QAbstractItemView.DragDropMode.InternalMove)
        rows.model().rowsMoved.connect(lambda *_: self._dropped())
        rows.itemSelectionChanged.connect(self._refresh)
        for keys, act in (
            ("Alt+Up", partial(self._move, -1)),
            ("Alt+Down", partial(self._move, 1)),
            ("Del", self._remove),
        ):
            action = QAction(rows)
            action.setShortcut(QKeySequence(keys))
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
            action.triggered.connect(lambda _on=False, act=act: act())
            rows.addAction(action)

    def _build_acts(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(space(4))
        self.words = label(role="help")
        row.addWidget(self.words, 1)
        self.start = button(tr("Start now…"), role="link", clicked=self._start)
        self.earlier = button(tr("Move up"), role="link", clicked=partial(self._move, -1))
        self.later = button(tr("Move down"), role="link", clicked=partial(self._move, 1))
        self.take_out = button(tr("Remove…"), role="link", clicked=self._remove)
        self._acts = (self.start, self.earlier, self.later, self.take_out)
        for made in self._acts:
            row.addWidget(made)
        row.addStretch(1)
        return row

    # ------------------------------------------------------------------------------- showing

    def show_queue(self, view: QueueView, runs: Sequence[RunSummary]) -> None:
        """Show the queue, and every live run: those take its devices."""
        self._view = view
        live = [summary for summary in runs if summary.state.is_alive]
        today = [one for one in view.done if _is_today(one.done_at)]
        names = {summary.run.id: summary for summary in runs}
        self.running.show_lines([(_running(one), one.run.id, str(one.run.path)) for one in live])
        self.waiting.show_lines([(_waiting(one), one.entry.run, one.waits_for) for one in view.waiting])
        self.done.show_lines([(_done(one, names.get(one.run)), one.run, one.reason) for one in today])
        failed = sum(one.outcome not in GOOD for one in today)
        put(self._hints[0], count(len(live)))
        put(
            self._hints[1],
            tr("{count}, drag or Alt+↑ Alt+↓ to reorder").format(count=count(len(view.waiting))),
        )
        put(
            self._hints[2],
            tr("{count}, {failed} failed").format(count=count(len(today)), failed=count(failed))
            if failed
            else count(len(today)),
        )
        self.setVisible(bool(view.waiting or view.running or today or view.settings.paused))
        self._refresh()

    def tell(self, sentence: str) -> None:
        """News of the queue, until the next."""
        self._news = sentence
        self._refresh()

    def _refresh(self) -> None:
        paused = self._view.settings.paused
        self.pause.setText(tr("Resume the queue") if paused else tr("Pause the queue"))
        said = tr("Paused: {why}. No waiting run starts; runs that are running continue.")
        put(self.words, said.format(why=self._view.settings.why_paused) if paused else self._news)
        chosen = self._chosen()
        for made in self._acts:
            made.setVisible(bool(self._view.waiting))
            made.setEnabled(chosen is not None)
        self.earlier.setEnabled(chosen is not None and chosen.place > 1)
        self.later.setEnabled(chosen is not None and chosen.place < len(self._view.waiting))

    def _chosen(self) -> WaitingRun | None:
        run = self.waiting.chosen()
        return next((one for one in self._view.waiting if one.entry.run == run), None)

    # -------------------------------------------------------------------------------- acting

    def _ask_for_recipes(self) -> None:
        title = tr("Add a recipe to the queue")
        ask_for_file(
            self, title, Path.home(), lambda path: self.recipes_chosen.emit([str(path)]), tr(RECIPES)
        )

    def _pause_or_resume(self) -> None:
        paused = not self._view.settings.paused
        why = tr("by you") if paused else ""
        self.changed.emit(lambda: Queue().change(paused=paused, why_paused=why))

    def _move(self, by: int) -> None:
        chosen = self._chosen()
        if chosen is not None:
            self.changed.emit(lambda: Queue().move(chosen.entry.run, chosen.place + by))

    def _dropped(self) -> None:
        """A row was dragged: its place is now the one where it lies."""
        run = self.waiting.chosen()
        if run:
            place = self.waiting.runs().index(run) + 1
            self.changed.emit(lambda: Queue().move(run, place))

    def _start(self) -> None:
        chosen = self._chosen()
        if chosen is not None:
            self.start_requested.emit(chosen.entry.directory)

    def _open(self, run: str) -> None:
        if run:
            self.open_requested.emit(RunDirectory(runs_folder() / run))

    def _remove(self) -> None:
        chosen = self._chosen()
        if chosen is None:
            return
        if not chosen.unstarted:
            self.changed.emit(lambda: Queue().remove(chosen.entry.run))
            return
        question = QMessageBox(self)
        question.setWindowTitle(tr("Remove from the queue"))
        question.setText(tr("Remove {name} from the queue?").format(name=chosen.name))
        question.setInformativeText(tr("It was never started, so it is deleted with its copy of the recipe."))
        question.setStandardButtons(QMessageBox.StandardButton.Cancel)
        remove = question.addButton(tr("Remove"), QMessageBox.ButtonRole.DestructiveRole)
        question.setDefaultButton(QMessageBox.StandardButton.Cancel)
        question.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        question.buttonClicked.connect(
            lambda clicked: self.changed.emit(_removal(chosen)) if clicked is remove else None
        )
        self.question = question
        question.open()


def _removal(chosen: WaitingRun) -> Callable[[], None]:
    def remove() -> None:
        Queue().remove(chosen.entry.run)
        delete_run(chosen.entry.directory)

    return remove


def _column(title: str, hint: QWidget, rows: LineList) -> QWidget:
    made = clear_widget()
    column = QVBoxLayout(made)
    column.setContentsMargins(0, 0, 0, 0)
    column.setSpacing(space(1))
    head = QHBoxLayout()
    head.addWidget(label(title, "title"))
    head.addWidget(hint)
    head.addStretch(1)
    column.addLayout(head)
    column.addWidget(rows)
    return made


def _running(summary: RunSummary) -> Line:
    word, token = STATE_WORDS[summary.state]
    step = tr("step {step}").format(step=count(summary.step)) if summary.step else ""
    return Line((summary.name, step or tr(word), tr(word) if step else "", token))


def _waiting(one: WaitingRun) -> Line:
    return Line((f"{one.place}  {one.name}", one.waits_for, "", "bad" if one.skipped else "muted"))


def _done(one: EndedEntry, summary: RunSummary | None) -> Line:
    name = summary.name if summary is not None else one.run
    word = tr(_OUTCOMES[one.outcome])
    if one.outcome in GOOD:
        below = end_reason(one.reason) if one.reason else word
        if summary is not None and summary.loss is not None:
            below = tr("{word}, loss {loss:.4g}").format(word=word, loss=summary.loss)
    else:
        below = f"{word}: {one.reason.splitlines()[0]}" if one.reason else word
    when = time.strftime("%H:%M", time.localtime(one.done_at))
    return Line(
        (
            name,
            below,
            when,
            "ok" if one.outcome == "finished" else "muted" if one.outcome == "stopped" else "bad",
        )
    )


def _is_today(at: float) -> bool:
    return time.localtime(at)[:3] == time.localtime()[:3]
