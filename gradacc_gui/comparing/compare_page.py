"""Runs side by side: what differs on top, their curves over one another, and what came out.

`tick` is called by the window's one timer while the page is in front: some polls, then at most one chart.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtGui import QColor, QGuiApplication, QIcon, QMouseEvent, QPainter, QPen, QPixmap
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QSlider,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.charts import ticks
from gradacc_gui.charts.overlay import Overlay
from gradacc_gui.charts.x_range import XRange
from gradacc_gui.comparing.compared_runs import (
    ComparedRun,
    RunGroup,
    against,
    cell_of,
    differences,
    grouped,
    results_of,
    table_of_differences,
    table_of_results,
    title_of,
    uses_validation,
    x_extent,
)
from gradacc_gui.comparing.run_lines import SERIES, RunLines, fields_for
from gradacc_gui.run.numbers import count
from gradacc_gui.store import View
from gradacc_gui.store.clock import AXES
from gradacc_gui.theme import current_theme, set_role, space
from gradacc_gui.widgets.desktop import ask_where_to_save
from gradacc_gui.widgets.parts import Panel, Segments, button, label, put
from gradacc_gui.widgets.small_table import Cell, SmallTable
from gradacc_gui.words import tr
from trainer_backend.run_directory import RunDirectory

AXIS_WORDS: Final = {"steps": "Steps", "samples": "Samples", "tokens": "Tokens", "time": "Time"}
QUIET_TICKS: Final = 15
"""A run that was read to its end is looked at twice a second."""
TABLE_TICKS: Final = 30
MOST_KEYS: Final = 8
"""Differing settings that have a column; the others are named below."""
LEAST_CHARTS_PX: Final = 330
LEGEND_COLUMNS: Final = 5
VERDICT_ROLES: Final = {"better": "ok", "worse": "error", "same": "help"}


class LegendButton(QPushButton):
    """A group's name and the stroke of its line: shown while it is pressed in."""

    double_clicked = Signal(int)

    def __init__(self, place: int, group: RunGroup) -> None:
        super().__init__(group.label)
        self._place = place
        self.setIcon(swatch(place))
        self.setCheckable(True)
        self.setChecked(True)
        words = tr("{names}. Click: show or hide. Double click: make it the baseline.")
        self.setToolTip(words.format(names=group.names))

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:  # noqa: ARG002 - Qt's
        """The baseline from now on."""
        self.double_clicked.emit(self._place)


class ComparePage(QWidget):
    """The page. `set_runs` chooses what is compared; `leave` closes the journals."""

    back_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.groups: list[RunGroup] = []
        self.baseline = 0
        self.hidden: frozenset[int] = frozenset()
        self.cards: list[RunLines] = []
        self.legend: list[LegendButton] = []
        self.horizon = XRange()
        self.horizon.set_axis("samples")
        self._runs: list[ComparedRun] = []
        self._ticks = 0
        self._smoothing = 0.0
        self._shown_tables: tuple[Any, ...] = ()
        column = QVBoxLayout(self)
        column.setContentsMargins(space(5), space(4), space(5), 0)
        column.setSpacing(space(3))
        column.addLayout(self._build_head())
        inside = QWidget()
        inside.setObjectName("clear")
        self._body = QVBoxLayout(inside)
        self._body.setContentsMargins(0, 0, 0, space(4))
        self._body.setSpacing(space(3))
        self.differs = Panel(tr("What differs"))
        self.differs_table = SmallTable(tr("What differs"))
        self.differs_note = label(role="help", wrap=True)
        self.differs.body.addWidget(self.differs_table)
        self.differs.body.addWidget(self.differs_note)
        self._body.addWidget(self.differs)
        self._body.addWidget(self._build_controls())
        self._charts = QWidget()
        self._charts.setObjectName("clear")
        self._charts.setMinimumHeight(LEAST_CHARTS_PX)
        self._grid = QGridLayout(self._charts)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(space(3))
        self._body.addWidget(self._charts, 1)
        self.results = Panel(tr("Results"))
        self.results_table = SmallTable(tr("Results"))
        self.results_note = label(role="help", wrap=True)
        self.results.body.addWidget(self.results_table)
        self.results.body.addWidget(self.results_note)
        self._body.addWidget(self.results)
        scroll = QScrollArea()
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setWidgetResizable(True)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        scroll.setWidget(inside)
        column.addWidget(scroll, 1)

    def _build_head(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(space(2))
        self.back = button(tr("Runs"), icon_name="", clicked=self.back_requested.emit)
        set_role(self.back, "quiet")
        row.addWidget(self.back)
        self.title = label(role="page-title")
        row.addWidget(self.title)
        self.note = label(role="help")
        row.addWidget(self.note)
        row.addStretch(1)
        self.problem = label(role="error")
        row.addWidget(self.problem)
        self.copy_button = button(tr("Copy the tables"), icon_name="", clicked=self._copy)
        self.export_button = button(tr("Export…"), icon_name="", clicked=self._export)
        row.addWidget(self.copy_button)
        row.addWidget(self.export_button)
        return row

    def _build_controls(self) -> QWidget:
        bar = QWidget()
        bar.setObjectName("clear")
        row = QHBoxLayout(bar)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(space(2))
        row.addWidget(label(tr("x-axis"), "muted"))
        self.axis = Segments([(axis, tr(AXIS_WORDS[axis])) for axis in AXES], tr("x-axis"))
        self.axis.choose("samples")
        self.axis.chosen.connect(self._set_axis)
        row.addWidget(self.axis)
        row.addSpacing(space(2))
        row.addWidget(label(tr("Show"), "muted"))
        self._legend = QWidget()
        self._legend.setObjectName("clear")
        self._legend_row = QGridLayout(self._legend)
        self._legend_row.setContentsMargins(0, 0, 0, 0)
        self._legend_row.setSpacing(space(1))
        row.addWidget(self._legend, 1)
        self.smoothing_words = label(tr("Smoothing {value}").format(value="0"), "muted")
        row.addWidget(self.smoothing_words)
        self.smoothing = QSlider(Qt.Orientation.Horizontal)
        self.smoothing.setRange(0, 99)
        self.smoothing.setFixedWidth(88)
        self.smoothing.setAccessibleName(tr("Smoothing"))
        self.smoothing.valueChanged.connect(self._smooth)
        row.addWidget(self.smoothing)
        return bar

    # ------------------------------------------------------------------------ what is compared

    def set_runs(self, runs: Sequence[RunDirectory]) -> None:
        """Compare these; the first is the baseline."""
        self.leave()
        self._runs = [ComparedRun(run) for run in runs]
        self.groups = grouped(self._runs)
        self.baseline, self.hidden = 0, frozenset()
        put(self.title, tr("Compare {count} runs").format(count=count(len(self._runs))))
        repeated = [group for group in self.groups if len(group.runs) > 1]
        put(self.note, _repetitions(self.groups, repeated))
        self.problem.hide()
        self._build_legend()
        self._build_cards()
        self.horizon.reset()
        self._shown_tables = ()
        self._show_tables()

    def leave(self) -> None:
        """Close the journals of the runs that were compared."""
        for run in self._runs:
            run.close()
        self._runs, self.groups = [], []

    def _build_legend(self) -> None:
        for old in self.legend:
            self._legend_row.removeWidget(old)
            old.hide()
            old.deleteLater()
        self.legend = []
        for place, group in enumerate(self.groups):
            made = LegendButton(place, group)
            made.toggled.connect(lambda on, place=place: self._show_group(place, on=on))
            made.double_clicked.connect(self.set_baseline)
            self.legend.append(made)
            self._legend_row.addWidget(made, place // LEGEND_COLUMNS, place % LEGEND_COLUMNS)
            self._legend_row.setColumnStretch(LEGEND_COLUMNS, 1)

    def _build_cards(self) -> None:
        for card in self.cards:
            self._grid.removeWidget(card)
            card.hide()
            card.deleteLater()
        self.cards = [RunLines(field, self.groups) for field in fields_for(self.groups)]
        for place, card in enumerate(self.cards):
            # As high as there is room, and not as a graphics view would like to be.
            card.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Ignored)
            if place == 0:
                self._grid.addWidget(card, 0, 0, 2, 2)
            else:
                self._grid.addWidget(card, (place - 1) // 2, 2 + (place - 1) % 2)
            view = card.view
            view.zoomed.connect(self.horizon.zoom)
            view.selected.connect(self.horizon.select)
            view.panned.connect(
                lambda distance: None if self.horizon.is_whole else self.horizon.pan(distance)
            )
            view.reset.connect(self.horizon.reset)
            view.hovered.connect(lambda x, card=card: self._hover(card, x))
        for column in range(4):
            self._grid.setColumnStretch(column, 1)

    def set_baseline(self, place: int) -> None:
        """Tell differences from this group's values."""
        self.baseline = place
        self.legend[place].setChecked(True)
        self._shown_tables = ()
        self._show_tables()

    def _show_group(self, place: int, *, on: bool) -> None:
        self.hidden = self.hidden - {place} if on else self.hidden | {place}

    def _set_axis(self, axis: Any) -> None:  # noqa: ANN401 - an Axis
        self.horizon.set_axis(axis)
        self._hover(None, None)

    def _smooth(self, value: int) -> None:
        self._smoothing = 0.0 if not value else 1 - 10 ** (-value / 33)
        put(self.smoothing_words, tr("Smoothing {value}").format(value=f"{self._smoothing:.2g}"))

    # ----------------------------------------------------------------------------------- the tick

    def tick(self) -> None:
        """Read a little of each run that has more, then draw one chart that changed."""
        if not self._runs:
            return
        self._ticks += 1
        behind = [run for run in self._runs if not run.store.caught_up or run.store.is_behind]
        for run in (behind or (self._runs if self._ticks % QUIET_TICKS == 0 else []))[:8]:
            run.poll(0.002)
        problems = [f"{run.name}: {run.store.problem}" for run in self._runs if run.store.problem]
        self.problem.setVisible(bool(problems))
        put(self.problem, problems[0] if problems else "")
        self.horizon.update(x_extent(self.groups, self.horizon.axis), live=False)
        if not behind and [card.field for card in self.cards] != list(fields_for(self.groups)):
            self._build_cards()  # now it is known which measurements there are
        self._draw_next()
        if not behind and self._ticks % TABLE_TICKS == 1:
            self._show_tables()

    def _draw_next(self) -> None:
        view = View(self.horizon.axis, self.horizon.x0, self.horizon.x1, 0)
        theme = current_theme()
        for card in self.cards:
            if theme is not card.view.theme:
                card.set_theme(theme)
            key = card.key_of(self.groups, (view, self._smoothing, self.hidden))
            if card.seen != key and card.isVisible() and view.x1 > view.x0:
                card.show_groups(self.groups, self.hidden, view, self._smoothing)
                card.seen = card.key_of(self.groups, (view, self._smoothing, self.hidden))
                return

    # --------------------------------------------------------------------------------- the tables

    def _show_tables(self) -> None:
        if not self.groups:
            return
        key = (self.baseline, tuple(run.store.last for run in self._runs))
        if key == self._shown_tables:
            return
        self._shown_tables = key
        self._show_differences()
        self._show_results()

    def _show_differences(self) -> None:
        found = differences(self.groups)
        keys = found.keys[:MOST_KEYS]
        rows = []
        for place, group in enumerate(self.groups):
            row = [Cell(self._title(place, group))]
            for key in keys:
                text, ratio = cell_of(group, key, self.groups[self.baseline])
                row.append(Cell(f"{text}   {ratio}".rstrip()))
            rows.append(row)
        self.differs_table.show_rows([tr("Run"), *(title_of(key) for key in keys)], rows)
        told = [tr("{count} other settings are the same.").format(count=count(len(found.same)))]
        if len(found.keys) > MOST_KEYS:
            others = ", ".join(title_of(key) for key in found.keys[MOST_KEYS:])
            told.insert(0, tr("These differ too: {others}.").format(others=others))
        if not found.keys:
            told = [tr("No setting differs: these are repetitions of one run.")]
        unread = [run.name for run in self._runs if not run.settings]
        if unread:
            told.append(tr("The recipe cannot be read: {names}.").format(names=", ".join(unread)))
        put(self.differs_note, " ".join(told))

    def _title(self, place: int, group: RunGroup) -> str:
        names = "" if group.names == group.label else f"   {group.names}"
        return f"{group.label}{names}" + (f"   ({tr('baseline')})" if place == self.baseline else "")

    def _show_results(self) -> None:
        results = [results_of(group) for group in self.groups]
        rows = []
        for place, (group, own) in enumerate(zip(self.groups, results, strict=True)):
            row = [Cell(self._title(place, group))]
            for one, other in zip(own, results[self.baseline], strict=True):
                told = against(one, other)
                text = one.text if place == self.baseline or not told.text else f"{one.text}   {told.text}"
                row.append(Cell(text, "" if place == self.baseline else VERDICT_ROLES[told.verdict]))
            rows.append(row)
        self.results_table.show_rows([tr("Run"), *(result.title for result in results[0])], rows)
        loss = tr("validation loss") if uses_validation(self.groups) else tr("training loss of the steps")
        put(self.results_note, tr(
            "Loss: {loss}. Per cent against the baseline: green is better, red is worse, grey is the same "
            "or within the spread of repetitions."
        ).format(loss=loss))  # fmt: skip

    # ------------------------------------------------------------------------------------ pointer

    def _hover(self, over: RunLines | None, x: float | None) -> None:
        for card in self.cards:
            before = card.view.overlay
            card.view.overlay = None if x is None else Overlay(
                x=x, heading=self._heading(x), with_box=card is over,
                baseline=self.groups[self.baseline].label if self.groups else "",
            )  # fmt: skip
            if card.view.overlay != before:
                card.view.viewport().update()

    def _heading(self, x: float) -> str:
        if self.horizon.axis == "time":
            return tr("after {time}").format(time=ticks.duration(x))
        return f"{max(0.0, x):,.0f} {tr(AXIS_WORDS[self.horizon.axis]).lower()}"

    # ------------------------------------------------------------------------------- taken away

    def _tables_as(self, separator: str) -> str:
        written = io.StringIO()
        writer = csv.writer(written, delimiter=separator, lineterminator="\n")
        writer.writerows(table_of_differences(self.groups, self.baseline))
        writer.writerow([])
        writer.writerows(table_of_results(self.groups, self.baseline))
        return written.getvalue()

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._tables_as("\t"))

    def _export(self) -> None:
        ask_where_to_save(self, tr("Save the tables"), Path.home() / "comparison.csv", self.save_tables)

    def save_tables(self, path: Path) -> None:
        """Write both tables as CSV; a disk that refuses is told."""
        try:
            path.write_text(self._tables_as(","), encoding="utf-8")
        except OSError as error:
            put(self.problem, tr("{path} cannot be written: {why}.").format(path=path, why=error.strerror))
            self.problem.show()


def _repetitions(groups: Sequence[RunGroup], repeated: Sequence[RunGroup]) -> str:
    """Which groups have several runs; empty where none has."""
    counts = {len(group.runs) for group in repeated}
    if len(repeated) == len(groups) and len(counts) == 1:
        return tr("each was repeated {count} times").format(count=counts.pop())
    if len(repeated) > 3:
        return tr("{count} of them were repeated").format(count=len(repeated))
    words = tr("{label} was repeated {count} times")
    return "; ".join(words.format(label=group.label, count=len(group.runs)) for group in repeated)


def swatch(place: int) -> QIcon:
    """The stroke of a group's line."""
    drawn = QPixmap(18, 12)
    drawn.fill(Qt.GlobalColor.transparent)
    painter = QPainter(drawn)
    dashed = place // SERIES % 2 == 1
    pen = QPen(QColor(current_theme().series[place % SERIES]), 3)
    pen.setStyle(Qt.PenStyle.DotLine if dashed else Qt.PenStyle.SolidLine)
    painter.setPen(pen)
    painter.drawLine(QPointF(1, 6), QPointF(17, 6))
    painter.end()
    return QIcon(drawn)
