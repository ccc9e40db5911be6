"""The header: which run, its state, micro-batch × N × world = effective batch, place in the step, speed."""

from __future__ import annotations

from typing import Final

import msgspec
from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from gradacc_gui.run.header_state import STATE_WORDS, HeaderState, strip_words
from gradacc_gui.run.numbers import DASH, clock_s, count, short
from gradacc_gui.theme import current_theme, set_role, space
from gradacc_gui.widgets.drawings import MicroBatchStrip
from gradacc_gui.widgets.parts import ElidedLabel, label, put
from gradacc_gui.words import tr
from trainer_backend.run_facts import RunState

DOT: Final = " · "
NARROW_PX: Final = 1060
"""Below this width the header leaves out what matters least."""


class StatePill(QWidget):
    """A run's state as a dot and a word."""

    def __init__(self) -> None:
        super().__init__()
        self._state: RunState | None = None
        self.setAccessibleName(self.text())
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def set_state(self, state: RunState | None) -> None:
        """Show `state`."""
        if state != self._state:
            self._state = state
            self.setAccessibleName(self.text())
            self.updateGeometry()
            self.update()

    def text(self) -> str:
        """The state's word."""
        return tr(STATE_WORDS[self._state][0])

    def sizeHint(self) -> QSize:
        """Room for the dot, the word and their margins."""
        return QSize(self.fontMetrics().horizontalAdvance(self.text()) + 36, 22)

    def paintEvent(self, _event: QPaintEvent) -> None:
        """A rounded outline, the dot, the word in the state's colour."""
        theme = current_theme()
        colour = QColor(getattr(theme, STATE_WORDS[self._state][1]))
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QColor(theme.line))
        painter.setBrush(QColor(theme.raised))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        painter.drawEllipse(QRectF(10, self.height() / 2 - 4, 8, 8))
        painter.setPen(colour)
        painter.drawText(self.rect().adjusted(25, 0, 0, 0), int(Qt.AlignmentFlag.AlignVCenter), self.text())
        painter.end()


class Figure(QWidget):
    """A number above its unit. Keeps the width of its widest text so that neighbours stand still."""

    def __init__(self, unit: str, role: str = "number", widest: str = "") -> None:
        super().__init__()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        self.value = label(DASH, role)
        self.unit = label(unit, "help")
        column.addWidget(self.value)
        column.addWidget(self.unit)
        reserve(self.value, widest)

    def show_value(self, text: str) -> None:
        """Show `text`; a column that has become wider stays so."""
        put(self.value, text)
        reserve(self.value, text)

    def show_unit(self, text: str) -> None:
        """Show another unit, likewise."""
        put(self.unit, text)
        reserve(self.unit, text)


class FactsLabel(ElidedLabel):
    """Facts with dots between them: those at the end give way whole; only a single one is cut."""

    def _shown(self) -> str:
        facts, metrics = self.full_text().split(DOT), self.fontMetrics()
        for count_shown in range(len(facts), 0, -1):
            text = DOT.join(facts[:count_shown])
            if metrics.horizontalAdvance(text) <= self.width():
                return text
        return super()._shown()


def reserve(target: QLabel, text: str) -> None:
    """Keep room for `text` in a label from now on: what stands beside it does not move any more."""
    target.ensurePolished()
    width = target.fontMetrics().horizontalAdvance(text) + 1  # a label rounds its own width up
    if width > target.minimumWidth():
        target.setMinimumWidth(width)


class Header(QFrame):
    """Always on top of every page."""

    def __init__(self) -> None:
        super().__init__()
        set_role(self, "header")
        self.setFixedHeight(68)
        self._is_narrow = False
        self._has_tokens = True
        self._row = row = QHBoxLayout(self)
        row.setContentsMargins(space(4), space(2), space(4), space(2))
        row.setSpacing(space(4))
        row.addLayout(self._build_name(), 1)
        self._equation = self._build_equation()
        row.addLayout(self._equation)
        self.no_step = Figure(tr("step"))
        self.place = self._build_step()
        row.addWidget(self.no_step)
        row.addWidget(self.place)
        self.samples = Figure(tr("samples / s"), widest="27.9 k")
        self.tokens = Figure(tr("tokens / s"), widest="27.9 k")
        self.time = Figure(tr("elapsed"), widest="00 d 00:00")
        reserve(self.time.unit, tr("{time} left").format(time="22 h 22 min"))
        for figure in (self.samples, self.tokens, self.time):
            row.addWidget(figure)

    def _build_name(self) -> QVBoxLayout:
        column = QVBoxLayout()
        column.setSpacing(2)
        line = QHBoxLayout()
        line.setSpacing(space(2))
        self.name = ElidedLabel("", "run-name")
        self.name.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
        self.name.setMinimumWidth(48)
        self.pill = StatePill()
        line.addWidget(self.name)
        line.addWidget(self.pill)
        line.addStretch(1)
        self.detail = FactsLabel("", "help", Qt.TextElideMode.ElideRight)
        column.addStretch(1)
        column.addLayout(line)
        column.addWidget(self.detail)
        column.addStretch(1)
        return column

    def _build_equation(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(space(2))
        self.micro_batch = Figure(tr("micro-batch"))
        self.steps = Figure(tr("accumulation N"))
        self.world = Figure(tr("world"))
        self.effective = Figure(tr("effective batch"), "number-accent")
        for figure, sign in (
            (self.micro_batch, "×"),
            (self.steps, ""),
            (self.world, "="),
            (self.effective, ""),
        ):
            if figure is self.world:
                self._times_world = label("×", "muted")
                row.addWidget(self._times_world)
            row.addWidget(figure)
            if sign:
                row.addWidget(label(sign, "muted"))
        return row

    def _build_step(self) -> QWidget:
        place = QWidget()
        place.setObjectName("clear")
        column = QVBoxLayout(place)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(1))
        line = QHBoxLayout()
        line.setSpacing(space(1))
        self.step = label(tr("Step {step}").format(step=DASH), "title")
        self.last_step = label("", "muted")
        line.addWidget(self.step)
        line.addWidget(self.last_step)
        line.addStretch(1)
        self.strip = MicroBatchStrip()
        self.strip.setMinimumWidth(152)
        self.strip_words = label("", "help")
        for part in (line, self.strip, self.strip_words):
            column.addLayout(part) if isinstance(part, QHBoxLayout) else column.addWidget(part)
        place.hide()
        return place

    def resizeEvent(self, event: QResizeEvent) -> None:
        """In a narrow window a world of 1 and tokens/s give way to the run's name, and units are shorter."""
        super().resizeEvent(event)
        narrow = self.width() < NARROW_PX
        if narrow != self._is_narrow:
            self._is_narrow = narrow
            self._row.setSpacing(space(2) if narrow else space(4))
            self._equation.setSpacing(space(1) if narrow else space(2))
            put(self.steps.unit, tr("N") if narrow else tr("accumulation N"))
            put(self.effective.unit, tr("effective") if narrow else tr("effective batch"))
            self._show_tokens()
            self._show_world()

    def show_state(self, state: HeaderState) -> None:
        """Show `state`; costs next to nothing where nothing changed."""
        self.name.set_full_text(state.name or tr("No run is open"))
        self.name.setMaximumWidth(self.name.natural_width())
        self.detail.set_full_text(state.detail)
        self.pill.set_state(state.state)
        self._show_equation(state)
        self._show_step(state)
        self.samples.show_value(short(state.samples_per_s))
        self.tokens.show_value(short(state.tokens_per_s))
        self._has_tokens = state.tokens_per_s != 0  # pictures have none; unknown is a dash
        self._show_tokens()
        self.time.show_value(clock_s(state.elapsed_s))
        self.time.show_unit(state.left or tr("elapsed"))

    def _show_tokens(self) -> None:
        shown = self._has_tokens and not self._is_narrow
        if self.tokens.isHidden() == shown:
            self.tokens.setVisible(shown)
        rate = tr("{rate} tokens / s").format(rate=self.tokens.value.text())
        self.samples.setToolTip(rate if self._has_tokens and self._is_narrow else "")

    def _show_world(self) -> None:
        shown = not self._is_narrow or self.world.value.text() not in ("1", DASH)
        if self.world.isHidden() == shown:
            self.world.setVisible(shown)
            self._times_world.setVisible(shown)

    def _show_equation(self, state: HeaderState) -> None:
        self.micro_batch.show_value(count(state.micro_batch_size))
        self.steps.show_value(count(state.accumulation_steps))
        self.world.show_value(count(state.world_size))
        self._show_world()
        factors = (state.micro_batch_size, state.accumulation_steps, state.world_size)
        effective = 1
        for factor in factors:
            effective *= factor or 0
        self.effective.show_value(_fitting(effective) if all(factors) else DASH)
        self.effective.setToolTip(count(effective) if all(factors) else "")

    def _show_step(self, state: HeaderState) -> None:
        put(self.step, tr("Step {step}").format(step=count(state.step)))
        put(self.last_step, tr("of {last}").format(last=count(state.last_step)) if state.last_step else "")
        running = state.state in (RunState.RUNNING, RunState.PAUSING, RunState.STOPPING)
        self.strip.set_progress(state.window_cells, state.window_done, running=running)
        put(self.strip_words, strip_words(state))
        # With as many digits as the window's size has, every micro-batch's words fit: "12 of 16".
        reserve(self.strip_words, strip_words(msgspec.structs.replace(state, window_done=state.window_cells)))
        is_somewhere = state.step is not None or bool(state.doing)
        if self.place.isHidden() == is_somewhere:
            self.place.setVisible(is_somewhere)
            self.no_step.setVisible(not is_somewhere)


def _fitting(value: int) -> str:
    """The number itself while it fits beside the others, else three figures of it."""
    return count(value) if value < 1_000_000 else short(value)
