"""The pairs of a plan as rows: micro-batch, N, predicted peak as a bar against the limit, speed."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from gradacc_gui.run.numbers import DASH, count, real
from gradacc_gui.theme import application_font, current_theme, mix, space
from gradacc_gui.words import tr
from trainer_backend.planner.pairs import Pair, Plan

ROW_PX: Final = 34
HEAD_PX: Final = 26
COLUMNS: Final = (92, 64)
"""Pixels of the columns left of the bar."""
RIGHT: Final = (84, 92, 92, 96)
"""Pixels of those right of it: GiB, samples/s, s per step, verdict."""
GIB: Final = 2.0**30


class PairsTable(QWidget):
    """Rows to look at and to choose from; arrow keys move, a click chooses one that fits."""

    chosen = Signal(int)
    """Place of a pair that fits."""

    def __init__(self) -> None:
        super().__init__()
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(tr("Pairs of micro-batch and N"))
        self._plan: Plan | None = None
        self.selected: int | None = None

    def show_plan(self, plan: Plan | None) -> None:
        """Show its pairs; the chosen one is selected."""
        self._plan = plan
        self.selected = plan.chosen if plan is not None else None
        self.setMinimumHeight(self.sizeHint().height())
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        """One row a pair."""
        rows = len(self._plan.pairs) if self._plan is not None else 0
        return QSize(560, HEAD_PX + rows * ROW_PX + 2)

    def texts(self) -> list[tuple[str, ...]]:
        """What stands in each row."""
        if self._plan is None:
            return []
        return [self._cells(place, pair) for place, pair in enumerate(self._plan.pairs)]

    def _cells(self, place: int, pair: Pair) -> tuple[str, ...]:
        assert self._plan is not None
        verdict = (
            tr("fastest") if place == self._plan.chosen else tr("fits") if pair.fits else tr("too large")
        )
        speed = (real(pair.samples_per_s, 3), real(pair.step_s, 3)) if pair.fits else (DASH, DASH)
        peak = real(pair.peak_bytes / GIB, 3)
        return (count(pair.micro_batch_size), count(pair.accumulation_steps), peak, *speed, verdict)

    # ------------------------------------------------------------------------------- choosing

    def select(self, place: int) -> None:
        """Choose a pair that fits."""
        if self._plan is None or not 0 <= place < len(self._plan.pairs) or not self._plan.pairs[place].fits:
            return
        self.selected = place
        self.update()
        self.chosen.emit(place)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """The row under the pointer."""
        self.select(int((event.position().y() - HEAD_PX) // ROW_PX))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Up and down."""
        now = self.selected if self.selected is not None else 0
        match event.key():
            case Qt.Key.Key_Up:
                self.select(now - 1)
            case Qt.Key.Key_Down:
                self.select(now + 1)
            case _:
                super().keyPressEvent(event)

    # -------------------------------------------------------------------------------- drawing

    def paintEvent(self, _event: QPaintEvent) -> None:
        """All rows, and the limit across them."""
        plan = self._plan
        if plan is None:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        theme = current_theme()
        bar = self._bar_rect()
        largest = 1.35 * max(plan.machine.limit_bytes, *(p.peak_bytes for p in plan.pairs if p.fits), 1)
        self._draw_head(painter, bar)
        for place, pair in enumerate(plan.pairs):
            self._draw_row(painter, place, pair, bar, largest)
        x = bar.left() + bar.width() * plan.machine.limit_bytes / largest
        painter.setPen(QColor(theme.text))
        painter.drawLine(int(x), HEAD_PX, int(x), HEAD_PX + ROW_PX * len(plan.pairs))
        painter.end()

    def _bar_rect(self) -> QRectF:
        left = sum(COLUMNS) + space(3)
        return QRectF(left, 0, max(60.0, self.width() - left - sum(RIGHT) - space(2)), 8)

    def _places(self, bar: QRectF) -> list[QRectF]:
        """Where the texts of a row stand, right-aligned."""
        found, x = [], 0.0
        for width in COLUMNS:
            found.append(QRectF(x, 0, width - 8, ROW_PX))
            x += width
        x = bar.right()
        for width in RIGHT:
            found.append(QRectF(x, 0, width - 8, ROW_PX))
            x += width
        return found

    def _draw_head(self, painter: QPainter, bar: QRectF) -> None:
        assert self._plan is not None
        painter.setFont(application_font(12))
        painter.setPen(QColor(current_theme().muted))
        words = (
            tr("micro-batch"), tr("N"), tr("GiB"), tr("samples / s"), tr("s per step"), ""
        )  # fmt: skip
        for place, word in zip(self._places(bar), words, strict=True):
            painter.drawText(
                place.translated(0, 0).adjusted(0, 0, 0, HEAD_PX - ROW_PX),
                int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), word,
            )  # fmt: skip
        limit = tr("predicted peak memory, limit {limit} GiB").format(
            limit=real(self._plan.machine.limit_bytes / GIB, 3)
        )
        painter.drawText(
            QRectF(bar.left(), 0, bar.width(), HEAD_PX), int(Qt.AlignmentFlag.AlignVCenter), limit
        )

    def _draw_row(self, painter: QPainter, place: int, pair: Pair, bar: QRectF, largest: float) -> None:
        theme, top = current_theme(), HEAD_PX + place * ROW_PX
        is_selected = place == self.selected
        if is_selected:
            painter.setPen(QColor(theme.accent))
            painter.setBrush(QColor(mix(theme.panel, theme.accent, 0.14)))
            painter.drawRoundedRect(QRectF(0.5, top + 0.5, self.width() - 1, ROW_PX - 1), 5, 5)
        else:
            painter.setPen(QColor(theme.line))
            painter.drawLine(0, top + ROW_PX - 1, self.width(), top + ROW_PX - 1)
        painter.setPen(Qt.PenStyle.NoPen)
        trough = QRectF(bar.left(), top + ROW_PX / 2 - 4, bar.width(), 8)
        painter.setBrush(QColor(theme.raised))
        painter.drawRoundedRect(trough, 4, 4)
        filled = QRectF(trough)
        filled.setWidth(max(6.0, trough.width() * min(1.0, pair.peak_bytes / largest)))
        colour = theme.accent if is_selected else theme.series[0] if pair.fits else theme.bad
        painter.setBrush(QColor(colour if pair.fits else mix(theme.bad, theme.panel, 0.5)))
        painter.drawRoundedRect(filled, 4, 4)
        for number, (where, text) in enumerate(zip(self._places(bar), self._cells(place, pair), strict=True)):
            self._draw_cell(painter, where.translated(0, top), text, number, pair, is_selected=is_selected)

    def _draw_cell(
        self, painter: QPainter, where: QRectF, text: str, number: int, pair: Pair, *, is_selected: bool
    ) -> None:
        theme = current_theme()
        painter.setFont(application_font(13, bold=is_selected))
        is_verdict = number == len(COLUMNS) + len(RIGHT) - 1
        tone = theme.text if pair.fits else theme.muted
        if is_verdict or (number == len(COLUMNS) and not pair.fits):
            tone = theme.ok if pair.fits else theme.bad
        painter.setPen(QColor(theme.accent if is_verdict and is_selected else tone))
        painter.drawText(where, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), text)
