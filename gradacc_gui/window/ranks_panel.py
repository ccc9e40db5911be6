"""The ranks of a run: a row each, with its step time, wait and memory; the slowest is named."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from gradacc_gui.run.numbers import count, gibibytes
from gradacc_gui.run.rank_figures import RankFigures, RankRow, duration
from gradacc_gui.theme import current_theme, set_role, space
from gradacc_gui.widgets.parts import Bar, Panel, label, put
from gradacc_gui.words import tr

MOST_ROWS: Final = 16
"""Of more ranks the first are shown, and how many are left out."""
BAR_WIDTH: Final = 120


class TimeBar(QWidget):
    """A rank's step: what it computes, then what it waits, as shares of the longest."""

    def __init__(self) -> None:
        super().__init__()
        self._shares = (0.0, 0.0)
        self.setFixedHeight(Bar.HEIGHT)
        self.setMinimumWidth(BAR_WIDTH)

    def set_shares(self, computed: float, waited: float) -> None:
        """Both from 0 to 1, and together at most 1."""
        if (computed, waited) != self._shares:
            self._shares = computed, waited
            self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Groove, wait, and what was computed over it."""
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        computed, waited = self._shares
        for colour, share in ((theme.line, 1.0), (theme.muted, computed + waited), (theme.accent, computed)):
            painter.setBrush(QColor(colour))
            painter.drawRoundedRect(QRectF(0, 0, self.width() * min(share, 1.0), self.height()), 3, 3)
        painter.end()


class _Line:
    """The widgets of one rank's row, placed in the panel's grid."""

    def __init__(self, grid: QGridLayout, place: int) -> None:
        self.name, self.host = label(), label(role="muted")
        self.time = TimeBar()
        self.computed, self.waited = label(), label(role="muted")
        self.memory_bar = Bar(place % len(current_theme().series))
        self.memory_bar.setMinimumWidth(BAR_WIDTH)
        self.memory, self.micro_batches = label(), label(role="muted")
        right = (self.computed, self.waited, self.memory, self.micro_batches)
        for number in right:
            number.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        for column, widget in enumerate(self.widgets()):
            grid.addWidget(widget, place + 1, column)

    def widgets(self) -> tuple[QWidget, ...]:
        """From left to right."""
        return (
            self.name, self.host, self.time, self.computed, self.waited, self.memory_bar, self.memory,
            self.micro_batches,
        )  # fmt: skip

    def show_row(self, row: RankRow, step_s: float, *, is_slowest: bool) -> None:
        put(self.name, str(row.rank))
        put(self.host, tr("{host}, slowest").format(host=row.host) if is_slowest else row.host)
        self.time.set_shares(row.computed_s / step_s, row.waited_s / step_s)
        put(self.computed, duration(row.computed_s))
        set_role(self.computed, "strong-warning" if is_slowest else "")
        put(self.waited, duration(row.waited_s))
        total = row.memory_total_bytes
        self.memory_bar.set_ratio(row.memory_bytes / total if total else None)
        put(self.memory, gibibytes(row.memory_bytes))
        put(self.micro_batches, count(row.micro_batches))
        self.time.setAccessibleName(
            tr("Rank {rank}: computes {computed}, waits {waited}").format(
                rank=row.rank, computed=duration(row.computed_s), waited=duration(row.waited_s)
            )
        )


class RanksPanel(Panel):
    """Hidden for a run of one process."""

    def __init__(self) -> None:
        super().__init__(tr("Ranks"))
        self.words = label(role="help", wrap=True)
        self.body.addWidget(self.words)
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(space(4))
        self._grid.setVerticalSpacing(space(1))
        self._grid.setColumnStretch(2, 1)
        self._grid.setColumnStretch(5, 1)
        self.body.addLayout(self._grid)
        self._heads: list[QLabel] = []
        self._lines: list[_Line] = []
        self.more = label(role="help")
        self.more.hide()
        self.body.addWidget(self.more)
        self.hide()

    def show_figures(self, figures: RankFigures | None) -> None:
        """Show the newest; None hides the panel."""
        self.setVisible(figures is not None)
        if figures is None:
            return
        rows = figures.rows[:MOST_ROWS]
        if len(rows) != len(self._lines):
            self._lay_out(len(rows))
        put(self.hint, tr("Step {step}").format(step=count(figures.step)))
        put(self.words, figures.slowest_words or figures.split_words)
        set_role(self.words, "warning" if figures.slowest is not None else "help")
        self.words.setToolTip(figures.split_words)
        for line, row in zip(self._lines, rows, strict=True):
            line.show_row(row, figures.step_s or 1.0, is_slowest=row.rank == figures.slowest)
        left_out = len(figures.rows) - len(rows)
        put(self.more, tr("and {count} more ranks").format(count=left_out))
        self.more.setVisible(left_out > 0)

    def texts(self) -> list[tuple[str, ...]]:
        """What stands in each row."""
        return [
            tuple(widget.text() for widget in line.widgets() if isinstance(widget, QLabel))
            for line in self._lines
        ]

    def _lay_out(self, rows: int) -> None:
        for old in (*self._heads, *(widget for line in self._lines for widget in line.widgets())):
            self._grid.removeWidget(old)
            old.hide()
            old.deleteLater()
        heads = (
            tr("Rank"), tr("Machine"), tr("Step time"), tr("computes"), tr("waits"), tr("Memory"),
            tr("in use"), tr("micro-batches"),
        )  # fmt: skip
        self._heads = [label(head, "help") for head in heads]
        for column, head in enumerate(self._heads):
            if column in {3, 4, 6, 7}:
                head.setAlignment(Qt.AlignmentFlag.AlignRight)
            self._grid.addWidget(head, 0, column)
        self._lines = [_Line(self._grid, place) for place in range(rows)]
