"""The first optimizer step as rows of tokens, micro-batch by micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from gradacc_gui.checking.token_flow import LossStrip, TokenFlow, legend_chip
from gradacc_gui.checking.token_pieces import learnt_count
from gradacc_gui.theme import current_theme, mix, space
from gradacc_gui.widgets.parts import ElidedLabel, Panel, Segments, button, clear_widget, label, put, rule
from gradacc_gui.words import tr
from trainer_backend.preflight.findings import FirstWindow, MicroBatchSeen, TensorRow, TokenRow

MOST_ROWS: Final = 16
"""Of a micro-batch that are drawn."""
MOST_CELLS: Final = 24


class MicroBatchCells(QWidget):
    """One cell for each micro-batch that can be looked at; a press chooses it."""

    chosen = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self._count, self._shown = 0, 0
        self._bad: frozenset[int] = frozenset()
        self.setFixedHeight(12)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(tr("Micro-batches of the first step"))

    def show_cells(self, count: int, shown: int, bad: frozenset[int]) -> None:
        """`count` cells, one of them shown, some with a problem in them."""
        self._count, self._shown, self._bad = min(count, MOST_CELLS), shown, bad
        self.setFixedWidth(self.sizeHint().width())
        self.update()

    def sizeHint(self) -> QSize:
        """Ten pixels a cell."""
        return QSize(max(1, self._count * 10), 12)

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Small squares."""
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        for number in range(self._count):
            colour = (
                theme.accent if number == self._shown
                else theme.bad if number in self._bad
                else mix(theme.line, theme.muted, 0.3)
            )  # fmt: skip
            painter.setBrush(QColor(colour))
            painter.drawRoundedRect(QRectF(number * 10 + 1, 3, 7, 7), 1.5, 1.5)
        painter.end()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Choose the micro-batch under the pointer."""
        super().mousePressEvent(event)
        number = int(event.position().x() // 10)
        if 0 <= number < self._count:
            self.chosen.emit(number)


class TokenPanel(Panel):
    """Rows of one micro-batch, with a legend, a way to the others, and the selected token."""

    def __init__(self) -> None:
        super().__init__(tr("First optimizer step"))
        self._window = FirstWindow(whole=True)
        self._shown = 0
        self._flows: list[TokenFlow] = []
        self._build_legend()
        self._build_bar()
        self.area = QScrollArea()
        self.area.setWidgetResizable(True)
        self.area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.area.setObjectName("clear")
        self.body.addWidget(self.area, 1)
        self.foot = label("", "help", wrap=True)
        self.body.addWidget(rule())
        self.body.addWidget(self.foot)

    def _build_legend(self) -> None:
        self.legend = clear_widget()
        row = QHBoxLayout(self.legend)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(space(3))
        row.addStretch(1)
        for text, kind in ((tr("no loss"), "prompt"), (tr("learnt"), "learnt"), (tr("special"), "special")):
            row.addWidget(legend_chip(text, kind))
        self.outside = legend_chip(tr("outside the embedding"), "outside")
        row.addWidget(self.outside)
        self.head.addWidget(self.legend)

    def _build_bar(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(space(2))
        self.previous = button(tr("Previous"), clicked=lambda: self.show_micro_batch(self._shown - 1))
        self.next = button(tr("Next"), clicked=lambda: self.show_micro_batch(self._shown + 1))
        self.cells = MicroBatchCells()
        self.cells.chosen.connect(self.show_micro_batch)
        self.which = label("", "title")
        self.length = Segments(
            [("short", tr("Shortened")), ("whole", tr("Whole text"))], tr("Length of the rows")
        )
        self.length.chosen.connect(lambda _key: self.show_micro_batch(self._shown))
        for widget in (self.previous, self.next, self.cells, self.which):
            row.addWidget(widget)
        row.addStretch(1)
        row.addWidget(self.length)
        self.body.addLayout(row)

    # ------------------------------------------------------------------------------ showing

    def show_window(self, window: FirstWindow) -> None:
        """Another first step."""
        self._window = window
        has_tokens = any(isinstance(row, TokenRow) for row in window.rows)
        for part in (self.legend, self.length, self.foot):
            part.setVisible(has_tokens)
        self.outside.setVisible(any(isinstance(row, TokenRow) and row.outside for row in window.rows))
        self.show_micro_batch(0)

    def with_rows(self) -> int:
        """How many micro-batches have rows to be looked at."""
        return sum(1 for batch in self._window.micro_batches if batch.rows)

    def show_micro_batch(self, number: int) -> None:
        """The rows of one micro-batch."""
        count = self.with_rows()
        self._shown = min(max(number, 0), max(0, count - 1))
        self.previous.setEnabled(self._shown > 0)
        self.next.setEnabled(self._shown + 1 < count)
        self._flows = []
        holder = clear_widget()
        column = QVBoxLayout(holder)
        column.setContentsMargins(0, 0, space(2), 0)
        column.setSpacing(space(2))
        if count:
            batch = self._window.micro_batches[self._shown]
            self._say(batch)
            for place, row in enumerate(batch.rows[:MOST_ROWS]):
                if place:
                    column.addWidget(rule())
                column.addWidget(self._row_view(place, row, batch))
            hidden = len(batch.rows) - MOST_ROWS
            if hidden > 0:
                column.addWidget(label(tr("and {count:,} more rows").format(count=hidden), "help"))
        column.addStretch(1)
        self.area.setWidget(holder)
        self.cells.show_cells(count, self._shown, self._bad())
        put(self.foot, tr("Select a token to see its id, its place and the weight of its loss."))

    def _bad(self) -> frozenset[int]:
        return frozenset(
            number
            for number, batch in enumerate(self._window.micro_batches)
            if any(isinstance(row, TokenRow) and row.outside for row in batch.rows)
        )

    def _say(self, batch: MicroBatchSeen) -> None:
        put(
            self.which,
            tr("Micro-batch {number:,} of {steps:,}").format(
                number=self._shown + 1, steps=max(self._window.steps, 1)
            ),
        )
        words = []
        if batch.weights:
            words.append(tr("{weight:,.10g} of D").format(weight=next(iter(batch.weights.values()))))
        if batch.padding_ratio is not None:
            words.append(tr("{share:.0%} padding").format(share=batch.padding_ratio))
        put(self.hint, ", ".join(words))

    def _row_view(self, place: int, row: object, batch: MicroBatchSeen) -> QWidget:
        holder = clear_widget()
        column = QVBoxLayout(holder)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(1))
        match row:
            case TokenRow():
                longest = max(len(other.texts) for other in batch.rows if isinstance(other, TokenRow))
                column.addLayout(self._row_head(place, row))
                column.addWidget(LossStrip(row, longest))
                flow = TokenFlow(row, shortened=self.length.choice() == "short")
                flow.selected.connect(lambda chosen, flow=flow: self._selected(flow, chosen))
                self._flows.append(flow)
                column.addWidget(flow)
            case TensorRow():
                column.addWidget(ElidedLabel(row.source, "title"))
                for fact in row.tensors:
                    column.addWidget(
                        label(_tensor_words(fact.name, fact.shape, fact.dtype, fact.low, fact.high))
                    )
            case _:
                column.addWidget(label(tr("a picture"), "help"))
        return holder

    def _row_head(self, place: int, row: TokenRow) -> QHBoxLayout:
        head = QHBoxLayout()
        head.setSpacing(space(2))
        number = self._shown * self._window.micro_batch_size + place + 1
        head.addWidget(label(f"{number:,}", "title"))
        source = ElidedLabel(_short(row.source), "link")
        source.setToolTip(row.source)
        head.addWidget(source, 1)
        words = tr("{learnt:,} of {all:,} tokens learnt")
        head.addWidget(label(words.format(learnt=learnt_count(row), all=len(row.texts)), "help"))
        return head

    def _selected(self, flow: TokenFlow, place: int) -> None:
        for other in self._flows:
            if other is not flow:
                other.clear_choice()
        row = flow.row
        words = tr("Selected token  {text}   id {id}   place {place:,} of {all:,}   weight {weight:.4g}")
        said = words.format(
            text=repr(row.texts[place]),
            id=f"{row.ids[place]:,}" if row.ids else "?",
            place=place + 1,
            all=len(row.texts),
            weight=row.weights[place],
        )
        if self._window.denominator:
            said += tr(" of D = {d:,.10g}").format(d=self._window.denominator)
        put(self.foot, said)


def _short(source: str) -> str:
    """Names and lines without their folders."""
    return ", ".join(Path(part).name for part in source.split(", "))


def _tensor_words(
    name: str, shape: tuple[int, ...], dtype: str, low: float | None, high: float | None
) -> str:
    size = " × ".join(map(str, shape)) or tr("one number")
    if low is None or high is None:
        return f"{name}: {size}, {dtype}"
    return tr("{name}: {size}, {dtype}, from {low:.4g} to {high:.4g}").format(
        name=name, size=size, dtype=dtype, low=low, high=high
    )
