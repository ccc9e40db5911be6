"""The Live page's right column: N, other settings, memory, decision log, and the run's buttons."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from gradacc_gui.derive import memory_of
from gradacc_gui.run.asks import Ask
from gradacc_gui.run.attachment import Attachment
from gradacc_gui.run.target_lines import target_lines
from gradacc_gui.run.worth import worth_of
from gradacc_gui.theme import space
from gradacc_gui.window.decision_log import DecisionLog
from gradacc_gui.window.memory_panel import MemoryPanel
from gradacc_gui.window.n_panel import NPanel
from gradacc_gui.window.run_buttons import RunButtons
from gradacc_gui.window.targets_panel import TargetsPanel
from gradacc_gui.window.tuning_panel import TuningPanel
from gradacc_gui.window.worth_panel import WorthPanel
from trainer_backend.protocol import (
    DeviceSampled,
    HostSampled,
    NoiseScaleMeasured,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
)

WIDTH = 300


class Side(QWidget):
    """Panels that scroll when the window is low, buttons that always stay."""

    asked = Signal(object)
    """A command to send."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("clear")
        self.setFixedWidth(WIDTH)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(2))
        self.n_panel, self.tuning = NPanel(), TuningPanel()
        self.worth, self.targets = WorthPanel(), TargetsPanel()
        self.memory, self.decisions = MemoryPanel(), DecisionLog()
        self.buttons = RunButtons()
        for source in (self.n_panel, self.tuning, self.buttons):
            source.asked.connect(self.asked)
        column.addWidget(self._build_area(), 1)
        column.addWidget(self.buttons)

    def _build_area(self) -> QScrollArea:
        content = QWidget()
        content.setObjectName("page")
        inner = QVBoxLayout(content)
        inner.setContentsMargins(0, 0, 0, 0)
        inner.setSpacing(space(2))
        for panel in (self.n_panel, self.targets, self.worth, self.tuning, self.memory):
            inner.addWidget(panel)
        inner.addWidget(self.decisions, 1)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        area.setWidget(content)
        return area

    def forget(self) -> None:
        """Clear what belongs to the run shown so far; another one follows."""
        for panel in (self.n_panel, self.tuning, self.decisions):
            panel.forget()
        self.memory.set_reason("")

    def tick(self, run: Attachment) -> None:
        """Show what is in force, what was asked, and what can be done now."""
        settings, live = run.settings, run.is_live
        for panel in (self.n_panel, self.tuning):  # a run that is over has nothing to change
            panel.setVisible(live)
        self.n_panel.set_settings(settings, live=live)
        self.n_panel.show_ask(_shown(run.asks.newest(SetAccumulation), live=live))
        self.tuning.set_settings(settings, live=live)
        others = run.asks.newest(SetMicroBatchSize, SetLearningRate, SetMaxGradNorm)
        self.tuning.show_ask(_shown(others, live=live))
        self.buttons.set_state(run.state, rung=run.ladder.rung)
        self.buttons.set_checkpoints(run.checkpoints, run.best_checkpoint)
        self.targets.show_lines(target_lines(run.config, run.store.so_now))
        latest = run.store.latest
        self.worth.show_worth(worth_of(latest.get(NoiseScaleMeasured), settings, run.config))
        self.memory.show_memory(memory_of(latest.get(DeviceSampled), latest.get(HostSampled)))


def _shown(ask: Ask | None, *, live: bool) -> Ask | None:
    """An answered ask of a run that has ended is of no more interest."""
    return ask if ask is not None and (live or ask.is_open or ask.answer == "refused") else None
