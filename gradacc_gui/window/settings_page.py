"""Settings of the window itself; a run's settings are in its recipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QFrame,
    QHBoxLayout,
    QLineEdit,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.remembered import Preferences
from gradacc_gui.theme import ThemeChoice, Themes, space
from gradacc_gui.widgets.desktop import ask_for_file, open_folder
from gradacc_gui.widgets.parts import SELECTABLE, ElidedLabel, Panel, Segments, button, label, put
from gradacc_gui.words import tr
from trainer_backend.private_files import home

SHORTCUTS = (
    ("Ctrl+L", "Live"),
    ("Ctrl+N", "New run"),
    ("Ctrl+R", "Runs"),
    ("Ctrl+E", "Verify"),
    ("Ctrl+,", "Settings"),
    ("Ctrl+O", "Open a recipe"),
    ("Ctrl+P", "Pause or resume"),
    ("Ctrl+K", "Save a checkpoint"),
    ("Ctrl+T", "Enter a new N"),
    ("Ctrl+J", "Next tab (Charts, Results, Log)"),
    ("Ctrl+S", "Save the recipe (New run)"),
    ("Ctrl+Return", "Start the run (New run)"),
    ("Ctrl+Shift+Return", "Add the run to the queue (New run)"),
    ("F1", "This page"),
)
GESTURES = (
    ("Wheel", "Zoom the x-axis of all charts at the pointer"),
    ("Ctrl+wheel", "Zoom this chart's vertical scale"),
    ("Shift+wheel", "Move along the x-axis"),
    ("Drag", "Zoom to the range you drag over"),
    ("Right drag", "Move along the x-axis (also: Shift+drag)"),
    ("Double click", "Show the whole run again"),
    ("← →", "Move along the x-axis (chart selected with Tab)"),
    ("↑ ↓", "Zoom the x-axis; with Ctrl the vertical scale"),
    ("Home", "Show the whole run again"),
)
"""What a chart does with the pointer and the keyboard (charts/gestures, which this page cannot import: its
library takes half a second)."""


class SettingsPage(QWidget):
    """Theme, sleep, interpreter, where things lie, shortcuts."""

    keep_awake_changed = Signal(bool)

    def __init__(self, preferences: Preferences, themes: Themes) -> None:
        super().__init__()
        self.setObjectName("page")
        self._preferences, self._themes = preferences, themes
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        content = QWidget()
        content.setObjectName("page")
        column = QVBoxLayout(content)
        column.setContentsMargins(space(5), space(4), space(5), space(4))
        column.setSpacing(space(3))
        column.addWidget(label(tr("Settings"), "page-title"))
        for panel in (
            self._build_look(),
            self._build_sleep(),
            self._build_interpreter(),
            self._build_home(),
            _build_list(tr("Keyboard shortcuts"), SHORTCUTS),
            _build_list(tr("Charts: mouse and keyboard"), GESTURES),
        ):
            panel.setMaximumWidth(720)
            column.addWidget(panel)
        column.addStretch(1)
        area.setWidget(content)
        outer.addWidget(area)

    def _build_look(self) -> Panel:
        panel = Panel(tr("Theme"))
        choices = (("system", tr("Same as system")), ("light", tr("Light")), ("dark", tr("Dark")))
        self.theme = Segments(choices, tr("Theme"))
        self.theme.choose(self._preferences.theme)
        self.theme.chosen.connect(self._choose_theme)
        row = QHBoxLayout()
        row.addWidget(self.theme)
        row.addStretch(1)
        panel.body.addLayout(row)
        return panel

    def _choose_theme(self, choice: str) -> None:
        wanted: ThemeChoice = "dark" if choice == "dark" else "light" if choice == "light" else "system"
        self._preferences.theme = wanted
        self._themes.choose(wanted)

    def _build_sleep(self) -> Panel:
        panel = Panel(tr("Sleep"))
        self.keep_awake = QCheckBox(tr("Keep the system from sleeping while a run is live"))
        self.keep_awake.setChecked(self._preferences.keep_awake)
        self.keep_awake.toggled.connect(self._choose_awake)
        self.awake_problem = label(role="warning", wrap=True)
        self.awake_problem.hide()
        panel.body.addWidget(self.keep_awake)
        panel.body.addWidget(
            label(tr("Applies while this window is open. The screen may still turn off."), "help", wrap=True)
        )
        panel.body.addWidget(self.awake_problem)
        return panel

    def _choose_awake(self, on: bool) -> None:
        self._preferences.keep_awake = on
        self.keep_awake_changed.emit(on)

    def say_awake_problem(self, sentence: str) -> None:
        """Why the system may sleep although it was asked not to; empty: it does as asked."""
        put(self.awake_problem, sentence)
        self.awake_problem.setVisible(bool(sentence))

    def _build_interpreter(self) -> Panel:
        panel = Panel(tr("Interpreter"))
        self.interpreter = QLineEdit(self._preferences.interpreter)
        self.interpreter.setPlaceholderText(sys.executable)
        self.interpreter.setAccessibleName(tr("Default interpreter"))
        self.interpreter.editingFinished.connect(self._choose_interpreter)
        row = QHBoxLayout()
        row.addWidget(self.interpreter, 1)
        row.addWidget(button(tr("Browse…"), clicked=self._browse))
        panel.body.addLayout(row)
        help_text = tr(
            "Python used for training unless a run names another. Leave empty to use gradacc's own."
        )
        panel.body.addWidget(label(help_text, "help", wrap=True))
        return panel

    def _choose_interpreter(self) -> None:
        self._preferences.interpreter = self.interpreter.text().strip()

    def _browse(self) -> None:
        start = Path(self.interpreter.text().strip() or sys.executable).parent
        ask_for_file(self, tr("Choose a Python interpreter"), start, self._take_interpreter)

    def _take_interpreter(self, path: Path) -> None:
        self.interpreter.setText(str(path))
        self._choose_interpreter()

    def _build_home(self) -> Panel:
        panel = Panel(tr("Where runs are stored"))
        row = QHBoxLayout()
        self.home = ElidedLabel(str(home()))
        row.addWidget(self.home, 1)
        row.addWidget(button(tr("Open"), icon_name="folder", clicked=self._open_home))
        panel.body.addLayout(row)
        self.home_problem = label(role="warning", wrap=True)
        self.home_problem.setTextInteractionFlags(SELECTABLE)
        self.home_problem.hide()
        panel.body.addWidget(self.home_problem)
        panel.body.addWidget(
            label(tr("Set GRADACC_HOME before starting gradacc to use another folder."), "help", wrap=True)
        )
        return panel

    def _open_home(self) -> None:
        put(self.home_problem, open_folder(home()))
        self.home_problem.setVisible(bool(self.home_problem.text()))


def _build_list(title: str, entries: Sequence[tuple[str, str]]) -> Panel:
    panel = Panel(title)
    for keys, word in entries:
        row = QHBoxLayout()
        shown = label(keys, "muted")
        shown.setFixedWidth(96)
        row.addWidget(shown)
        row.addWidget(label(tr(word)), 1)
        panel.body.addLayout(row)
    return panel
