"""The grid of charts: one x-range for all, and the one place that draws."""

from __future__ import annotations

import time
from typing import Any, Final

from PySide6.QtCore import QEvent, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QScrollArea, QVBoxLayout, QWidget

from gradacc_gui.charts import ticks
from gradacc_gui.charts.card import ChartCard
from gradacc_gui.charts.lane import ViewSettings
from gradacc_gui.charts.overlay import Overlay
from gradacc_gui.charts.specs import Chart, charts_for
from gradacc_gui.charts.x_range import XRange
from gradacc_gui.store import Axis, RunStore, View
from gradacc_gui.theme import current_theme, space
from gradacc_gui.words import is_about_readings, phase, tr, warning
from trainer_backend.protocol import (
    DeviceSampled,
    Event,
    HostSampled,
    MicroBatchMeasured,
    OptimizerStepMeasured,
    Warned,
)
from trainer_backend.run_facts import RunState

ONE_COLUMN_PX: Final = 640
THREE_COLUMNS_PX: Final = 1500
LEAST_CARD_PX: Final = 150
CATCHING_UP_S: Final = 0.016
"""Between two draws while the journal has more to read: reading comes first."""
LOSS_WEIGHT: Final = 3.0
"""The loss's waiting counts this many times: it is what a person watches, yet no other chart starves."""


class ChartGrid(QWidget):
    """Six charts of one run. `tick` is called by the window's timer, after the store was polled."""

    follow_changed = Signal(bool)
    """Whether the charts keep the newest data visible; a zoom into the past ends it."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.store: RunStore | None = None
        self.horizon = XRange()
        self._smoothing = 0.0
        self._gpu = True
        self._theme = current_theme()
        self._hover_x: float | None = None
        self._facts_seen = 0
        self._reasons: dict[str, str] = {}
        self._device_reason = ""
        self._costs_s: dict[str, float] = {}
        self._fetching_s = 0.0
        self._columns = 0
        self._ticked_at = 0.0
        self._fetched: ChartCard | None = None
        """What the next `tick` paints."""
        self.cards = [self._card(spec) for spec in charts_for(gpu=True)]
        self._inside = QWidget()
        self._inside.setObjectName("clear")
        self._layout = QGridLayout(self._inside)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(space(3))
        self._scroll = QScrollArea()
        self._scroll.setFrameShape(QFrame.Shape.NoFrame)
        self._scroll.setWidgetResizable(True)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the charts in it take the arrow keys
        self._scroll.setWidget(self._inside)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self._scroll)
        self._arrange(2)

    def _card(self, spec: Chart) -> ChartCard:
        card = ChartCard(spec)
        view = card.view
        view.zoomed.connect(self._zoom)
        view.selected.connect(self._select)
        view.panned.connect(self._pan)
        view.reset.connect(self.reset)
        view.hovered.connect(lambda x, card=card: self._hover(card, x))
        view.zoomed_y.connect(lambda lane, factor, card=card: _zoom_y(card, lane, factor))
        return card

    # ------------------------------------------------------------------------ what is asked

    def set_store(self, store: RunStore | None) -> None:
        """Show another run's data over its whole length; cards are blank until it is drawn."""
        self.store = store
        self._fetched = None
        self.horizon.reset()
        self._facts_seen = 0
        self._reasons, self._device_reason = {}, ""
        self._hover_x = None
        for card in self.cards:
            # What the run before drew must not stand under this one's name until the card's turn comes.
            card.show_nothing(tr("Reading the run…") if store is not None else tr("No run is open."))
            card.view.blank()
            card.seen, card.painted_at = (), 0.0
            for lane in card.view.lanes:
                lane.zoomed_y = None
        self.follow_changed.emit(True)

    def set_x_axis(self, axis: Axis) -> None:
        """steps, samples, tokens or time."""
        if axis != self.horizon.axis:
            self.horizon.set_axis(axis)
            self._hover_x = None
            self._point()

    def set_smoothing(self, factor: float) -> None:
        """0 is none; toward 1 is smoother."""
        self._smoothing = min(max(factor, 0.0), 0.999)

    def set_follow(self, follow: bool) -> None:
        """Keep the newest data visible, or keep the range."""
        if follow != self.horizon.follows:
            self.horizon.follow(follow)
            self.follow_changed.emit(follow)

    def reset(self) -> None:
        """Show the whole run, follow it, and fit each scale to its data."""
        self.horizon.reset()
        for card in self.cards:
            for lane in card.view.lanes:
                lane.zoomed_y = None
            card.seen = ()
        self.follow_changed.emit(True)

    def _zoom(self, factor: float, about: float) -> None:
        self._moved(lambda: self.horizon.zoom(factor, about))

    def _select(self, x0: float, x1: float) -> None:
        self._moved(lambda: self.horizon.select(x0, x1))

    def _pan(self, distance: float) -> None:
        if not self.horizon.is_whole:
            self._moved(lambda: self.horizon.pan(distance))

    def _moved(self, move: Any) -> None:  # noqa: ANN401 - a call
        before = self.horizon.follows
        move()
        if self.horizon.follows != before:
            self.follow_changed.emit(self.horizon.follows)

    # ---------------------------------------------------------------------------- drawing

    def tick(self, budget_s: float = 0.006) -> int:
        """Draw as many changed charts that can be seen as fit in `budget_s`; gives how many.

        At least one; but a chart that takes longer, and any while the store has more to read, is fetched in
        one tick and painted in the next, so that none of them is long.
        """
        if not self.is_due():
            return 0
        began = self._ticked_at = time.perf_counter()
        fetched, self._fetched = self._fetched, None
        drawn = 0
        if fetched is not None:
            self._paint(fetched)
            drawn += 1
        store = self.store
        if store is not None and store.is_behind:
            if not drawn:
                self._fetched = self._fetch_next(store)
            return drawn
        if store is not None:
            self._follow(store)
        for card in self._due():
            cost_s = self._costs_s.get(card.spec.key, 0.0)
            if drawn and time.perf_counter() - began + cost_s > budget_s:
                break
            if store is not None and cost_s > budget_s:
                self._fetch(card, store)
                self._fetched = card
                break
            self._draw(card)
            drawn += 1
        return drawn

    def _fetch_next(self, store: RunStore) -> ChartCard | None:
        self._follow(store)
        due = self._due()
        if not due:
            return None
        self._fetch(due[0], store)
        return due[0]

    def _follow(self, store: RunStore) -> None:
        self._learn(store)
        self.horizon.update(store.extent(self.horizon.axis)[1], live=not store.state.is_over)

    @property
    def is_half_drawn(self) -> bool:
        """Whether the next `tick` only paints: it may come at once."""
        return self._fetched is not None

    def is_due(self) -> bool:
        """Whether the next `tick` will draw: only what is seen, and seldom while the store is behind."""
        if not self.isVisible():
            return False
        behind = self.store is not None and self.store.is_behind
        waited = time.perf_counter() - self._ticked_at >= CATCHING_UP_S
        return not behind or waited or self._fetched is not None

    def _due(self) -> list[ChartCard]:
        """Visible charts that changed, the one first that waited longest since it was painted.

        An order by waiting alone cannot starve a chart, however long ticks are.
        """
        now = time.perf_counter()

        def waited_s(card: ChartCard) -> float:
            weight = LOSS_WEIGHT if card.spec.key == "loss" else 1.0
            return weight * (now - card.painted_at)

        due = [card for card in self.cards if card.seen != self._key(card) and _is_visible(card)]
        return sorted(due, key=waited_s, reverse=True)

    def _key(self, card: ChartCard) -> tuple[Any, ...]:
        store, horizon = self.store, self.horizon
        if store is None:
            return (None, card.view.size())
        return (
            tuple(store.revision(kind) for kind in sorted(card.kinds, key=lambda kind: kind.__name__)),
            store.markers.revision, horizon.axis, horizon.x0, horizon.x1, self._smoothing,
            card.log.isChecked(), card.devicePixelRatioF(), card.view.size(),
            tuple(lane.zoomed_y for lane in card.view.lanes), store.state, store.phase,
            bool(card.view.message) and store.caught_up,
        )  # fmt: skip

    def _draw(self, card: ChartCard) -> None:
        if self.store is None:
            card.show_nothing(tr("No run is open."))
            card.seen = self._key(card)
        else:
            self._fetch(card, self.store)
        self._paint(card)

    def _fetch(self, card: ChartCard, store: RunStore) -> None:
        began = time.perf_counter()
        horizon = self.horizon
        view = View(horizon.axis, horizon.x0, horizon.x1, card.view.plot_width_px())
        store.look_at(view)
        settings = ViewSettings(view=view, smoothing=self._smoothing, log=card.log.isChecked())
        card.refresh(store, settings, self._waiting(store, card), self._reasons)
        card.seen = self._key(card)  # now: whether it has a message is part of it
        self._fetching_s = time.perf_counter() - began

    def _paint(self, card: ChartCard) -> None:
        began = time.perf_counter()
        card.view.draw()
        card.painted_at = time.perf_counter()
        spent = self._fetching_s + card.painted_at - began
        before = self._costs_s.get(card.spec.key, spent)
        self._costs_s[card.spec.key] = 0.8 * before + 0.2 * spent
        self._fetching_s = 0.0

    def _waiting(self, store: RunStore, card: ChartCard) -> str:
        """Why a chart is empty, when no reading is to blame."""
        if store.problem:
            return store.problem
        if not store.caught_up:  # its newest facts, and so what it does now, are not known yet
            return tr("Reading the run…")
        match store.state:
            case RunState.PENDING:
                return tr("The trainer has not started yet.")
            case RunState.LOADING:
                return phase(store.phase) if store.phase else tr("Starting…")
            case RunState.RUNNING | RunState.PAUSING | RunState.PAUSED | RunState.STOPPING:
                if MicroBatchMeasured in card.kinds:
                    return tr("Waiting for the first micro-batch…")
                if OptimizerStepMeasured in card.kinds:
                    return tr("Waiting for the first optimizer step…")
                return tr("Waiting for the first reading…")
            case _:
                return tr("The run ended before there was anything to show.")

    # ------------------------------------------------------------------ what the facts tell

    def _learn(self, store: RunStore) -> None:
        """Take new facts: which device, and which readings are not to be had."""
        for record in store.facts[self._facts_seen :]:
            if isinstance(record.event, Warned) and is_about_readings(record.event):
                self._take_reason(record.event)
        if len(store.facts) == self._facts_seen:
            return
        self._facts_seen = len(store.facts)
        started = store.started
        if started is None:
            return
        gpu = any(device.kind != "cpu" for device in started.devices)
        if gpu != self._gpu:
            self._gpu = gpu
            for card, spec in zip(self.cards, charts_for(gpu=gpu), strict=True):
                if spec != card.spec:
                    card.set_spec(spec)
        cards = {card.spec.key: card for card in self.cards}
        cards["loss"].set_unit(tr("per {unit}").format(unit=tr(started.loss_unit)))
        names = ", ".join(dict.fromkeys(device.name for device in started.devices))
        cards["device"].set_unit(names if gpu else self._device_reason)
        cards["device"].unit.setToolTip(self._device_reason)
        for card in self.cards:
            card.seen = ()

    def _take_reason(self, event: Warned) -> None:
        """Keep why fields are empty; a warning without a metric is about the whole device."""
        metric = event.values.get("metric")
        if metric is None:
            self._device_reason = warning(event)
        kinds: list[type[Event]] = [DeviceSampled] if metric is None else [DeviceSampled, HostSampled]
        for kind in kinds:
            for name in kind.__struct_fields__:
                if metric is None or name.startswith(str(metric)):
                    self._reasons[name] = warning(event)

    # ---------------------------------------------------------------------------- pointer

    def _hover(self, card: ChartCard, x: float | None) -> None:
        self._hover_x = x
        self._point(card)

    def _point(self, over: ChartCard | None = None) -> None:
        """Move the hair lines of all charts; the box is told in the one under the pointer."""
        for card in self.cards:
            before = card.view.overlay
            if self._hover_x is None or self.store is None:
                card.view.overlay = None
            else:
                heading = self._heading(self._hover_x) + self._n_at(self._hover_x)
                card.view.overlay = Overlay(x=self._hover_x, heading=heading, with_box=card is over)
            if card.view.overlay != before:
                card.view.viewport().update()

    def _n_at(self, x: float) -> str:
        assert self.store is not None
        changes = self.store.markers.n_changes
        before = [mark for mark in changes if mark.place.on(self.horizon.axis) < x]
        n = before[-1].after if before else changes[0].before if changes else self.store.accumulation_steps
        return f" · N {n}"

    def _heading(self, x: float) -> str:
        match self.horizon.axis:
            case "time":
                return tr("after {time}").format(time=ticks.duration(x))
            case "steps":
                return tr("step {step:,.0f}").format(step=max(0.0, x))
            case "samples":
                return tr("{count:,.0f} samples").format(count=max(0.0, x))
            case "tokens":
                return tr("{count:,.0f} tokens").format(count=max(0.0, x))

    # ------------------------------------------------------------------------------ layout

    def _arrange(self, columns: int) -> None:
        if columns == self._columns:
            return
        self._columns = columns
        for card in self.cards:
            self._layout.removeWidget(card)
        rows = -(-len(self.cards) // columns)
        for place, card in enumerate(self.cards):
            self._layout.addWidget(card, place // columns, place % columns)
        for place in range(len(self.cards)):
            self._layout.setRowStretch(place, 1 if place < rows else 0)
            self._layout.setColumnStretch(place, 1 if place < columns else 0)
            self._layout.setRowMinimumHeight(place, LEAST_CARD_PX if place < rows else 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """One, two or three charts abreast."""
        super().resizeEvent(event)
        width = self.width()
        self._arrange(1 if width < ONE_COLUMN_PX else 3 if width >= THREE_COLUMNS_PX else 2)

    def changeEvent(self, event: QEvent) -> None:
        """Draw in the colours of another theme, once the application has applied it."""
        super().changeEvent(event)
        if event.type() in {QEvent.Type.PaletteChange, QEvent.Type.StyleChange}:
            QTimer.singleShot(0, self, self._follow_theme)

    def _follow_theme(self) -> None:
        theme = current_theme()
        if theme is not self._theme:
            self._theme = theme
            for card in self.cards:
                card.set_theme(theme)


def _is_visible(card: ChartCard) -> bool:
    return card.isVisible() and not card.visibleRegion().isEmpty()


def _zoom_y(card: ChartCard, place: int, factor: float) -> None:
    lane = card.view.lanes[place]
    low, high = lane.y_range
    middle = low if lane.spec.from_zero and not lane.log else (low + high) / 2
    lane.zoomed_y = (middle + (low - middle) * factor, middle + (high - middle) * factor)
