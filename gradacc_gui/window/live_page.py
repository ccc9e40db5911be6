"""The Live page: charts (or results, trying, the log) on the left, steering and events on the right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QMessageBox, QSlider, QStackedWidget, QVBoxLayout, QWidget

from gradacc_gui import words
from gradacc_gui.run.attachment import Attachment
from gradacc_gui.run.numbers import count
from gradacc_gui.run.rank_figures import figures_of
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.desktop import open_folder
from gradacc_gui.widgets.flow import TwoParts
from gradacc_gui.widgets.parts import Segments, button, label, put
from gradacc_gui.widgets.placeholders import EmptyState, LoadingState
from gradacc_gui.window.decision_log import Entry
from gradacc_gui.window.log_tab import LogTab
from gradacc_gui.window.pages import make_results, make_try
from gradacc_gui.window.questions import ask_to_end_by_force
from gradacc_gui.window.ranks_panel import RanksPanel
from gradacc_gui.window.run_notices import RunNotices
from gradacc_gui.window.side import Side
from gradacc_gui.words import LogLine, tr
from trainer_backend.protocol import AnyCommand, MicroBatchMeasured, Record, SetAccumulation
from trainer_backend.run_facts import RunState

AXES = (("steps", "Steps"), ("samples", "Samples"), ("tokens", "Tokens"), ("time", "Time"))
TABS = ("charts", "results", "try", "log")


class LivePage(QWidget):
    """One run, live or ended."""

    demo_requested = Signal()
    report_requested = Signal(object)
    """The run that is shown, as a page of its own."""
    recipe_requested = Signal()
    resume_requested = Signal(object)
    """A `RunDirectory` to start again from its last checkpoint."""
    go_back_requested = Signal(object, int)
    """A `RunDirectory` to start again from the checkpoint of this step."""

    def __init__(self, make_charts: Callable[[], QWidget]) -> None:
        """`make_charts`: called when charts are first needed, for their library takes long to import."""
        super().__init__()
        self.setObjectName("page")
        self._make_charts = make_charts
        self._run: Attachment | None = None
        self.charts: Any = None
        self.results: Any = None
        """A `ResultsTab` once it has been wanted."""
        self.trial: Any = None
        """A `TryTab`, likewise."""
        self.question: QMessageBox | None = None
        row = QHBoxLayout(self)
        row.setContentsMargins(space(3), space(3), space(3), space(3))
        row.setSpacing(space(3))
        row.addLayout(self._build_left(), 1)
        self.side = Side()
        self.side.asked.connect(self.send)
        self.side.buttons.stop_asked.connect(self._stop)
        self.side.buttons.force_asked.connect(self._force)
        self.side.buttons.resume_run_asked.connect(self._resume_run)
        self.side.buttons.go_back_asked.connect(self._go_back)
        self.side.buttons.folder_asked.connect(self.open_folder)
        self.side.buttons.report_asked.connect(self._ask_for_report)
        row.addWidget(self.side)
        self._show_nothing()

    # -------------------------------------------------------------------------- building

    def _build_left(self) -> QVBoxLayout:
        column = QVBoxLayout()
        column.setSpacing(space(2))
        self.toolbar = self._build_toolbar()
        column.addWidget(self.toolbar)
        self.notices = RunNotices()
        self.notices.resume_asked.connect(self._resume_run)
        self.notices.go_back_asked.connect(self._go_back)
        self.notices.answered.connect(self.send)
        self.notices.log_asked.connect(lambda: self.show_tab("log"))
        column.addWidget(self.notices)
        self.ranks = RanksPanel()
        column.addWidget(self.ranks)
        self.stack = QStackedWidget()
        self.stack.setObjectName("clear")
        self.empty = EmptyState()
        self.empty.demo_requested.connect(self.demo_requested)
        self.empty.recipe_requested.connect(self.recipe_requested)
        self.waiting = LoadingState()
        self.log: LogTab | None = None
        for page in (self.empty, self.waiting):
            self.stack.addWidget(page)
        column.addWidget(self.stack, 1)
        return column

    def _build_toolbar(self) -> QWidget:
        bar = TwoParts()
        row = bar.left
        words_of = (tr("Charts"), tr("Results"), tr("Try"), tr("Log"))
        self.tabs = Segments(tuple(zip(TABS, words_of, strict=True)), tr("View"))
        self.tabs.chosen.connect(self.show_tab)
        row.addWidget(self.tabs)
        self.tabs.button("log").setToolTip("trainer.log")
        row.addSpacing(space(2))
        self.axis_words = label(tr("x-axis"), "muted")
        self.axis = Segments([(key, tr(word)) for key, word in AXES], tr("x-axis"))
        self.axis.chosen.connect(lambda axis: self.charts is not None and self.charts.set_x_axis(axis))
        row.addWidget(self.axis_words)
        row.addWidget(self.axis)
        row = bar.right
        self.smoothing_words = label(tr("Smoothing {value}").format(value="0"), "muted")
        self.smoothing = QSlider(Qt.Orientation.Horizontal)
        self.smoothing.setRange(0, 99)
        self.smoothing.setFixedWidth(88)
        self.smoothing.setAccessibleName(tr("Smoothing"))
        self.smoothing.valueChanged.connect(self._on_smoothing)
        row.addWidget(self.smoothing_words)
        row.addWidget(self.smoothing)
        self.follow = button(tr("Follow live"))
        self.follow.setCheckable(True)
        self.follow.setChecked(True)
        set_role(self.follow, "quiet")
        self.follow.setToolTip(tr("Keep the newest data in view. Zooming into the past turns this off."))
        self.follow.toggled.connect(self._on_follow)
        row.addWidget(self.follow)
        return bar

    def ensure_charts(self) -> None:
        """Make the charts now; their library is imported for it."""
        if self.charts is None:
            self.charts = self._make_charts()
            self.stack.addWidget(self.charts)
            self.charts.set_x_axis(self.axis.choice())
            self.charts.follow_changed.connect(self.follow.setChecked)
            if self._run is not None:
                self.charts.set_store(self._run.store)

    def ensure_results(self) -> None:
        """Make the results' view now."""
        if self.results is None:
            self.results = make_results()
            self.stack.addWidget(self.results)
            self.results.set_run(self._run)

    def ensure_trial(self) -> None:
        """Make the view that asks the newest checkpoint now."""
        if self.trial is None:
            self.trial = make_try()
            self.stack.addWidget(self.trial)
            self.trial.set_run(self._run)

    def ensure_log(self) -> LogTab:
        """Make trainer.log's view now."""
        if self.log is None:
            self.log = LogTab()
            self.stack.addWidget(self.log)
            self.log.set_path(self._run.run.log_path if self._run is not None else None)
        return self.log

    def shut_down(self) -> None:
        """The window closes: no thread goes on reading files, and no model stays in memory."""
        for view in (self.results, self.trial):
            if view is not None:
                view.shut_down()

    # -------------------------------------------------------------------------- which run

    def set_run(self, run: Attachment | None) -> None:
        """Show another run, or none."""
        self._run = run
        self.side.forget()
        self.notices.forget()
        if self.log is not None:
            self.log.set_path(run.run.log_path if run is not None else None)
        if self.charts is not None:
            self.charts.set_store(run.store if run is not None else None)
        for view in (self.results, self.trial):
            if view is not None:
                view.set_run(run)
        if run is None:
            self._show_nothing()
            return
        self.side.show()
        self.toolbar.show()
        self.follow.setChecked(True)

    def set_starting(self, starting: bool) -> None:
        """A start is under way, and there is no run to show yet."""
        if self._run is None:
            self.waiting.say(tr("Starting…"), tr("Checking the Python interpreter."), moving=True)
            self.stack.setCurrentWidget(self.waiting if starting else self.empty)

    def _show_nothing(self) -> None:
        self.side.hide()
        self.toolbar.hide()
        self.ranks.hide()
        self.stack.setCurrentWidget(self.empty)

    def send(self, command: AnyCommand) -> None:
        """Ask the run for something; the line in the log says that it was asked."""
        run = self._run
        if run is None:
            return
        run.send(command)
        if run.problem:
            self.notices.problem.say(run.problem)
            return
        text = words.requested(command)
        if isinstance(command, SetAccumulation) and run.settings is not None:
            before = run.settings.accumulation_steps
            text = tr("You requested N {before} → {after}").format(
                before=count(before), after=count(command.steps)
            )
        self.side.decisions.add([Entry(command.asked_at, LogLine(text, by=tr("you")))])
        self.side.tick(run)  # the hand that pressed sees at once that it was asked

    def _stop(self, now: bool) -> None:
        if self._run is not None:
            self._run.stop(now=now)

    def _force(self) -> None:
        if self._run is not None:
            self.question = ask_to_end_by_force(self, self._run)

    def _resume_run(self) -> None:
        if self._run is not None:
            self.resume_requested.emit(self._run.run)

    def _go_back(self, step: int) -> None:
        if self._run is not None:
            self.go_back_requested.emit(self._run.run, step)

    def _ask_for_report(self) -> None:
        if self._run is not None:
            self.report_requested.emit(self._run.run)

    def open_folder(self) -> None:
        """Show the run's directory in the system's file manager."""
        if self._run is not None:
            self._say_problem(open_folder(self._run.run.path))

    def _say_problem(self, sentence: str) -> None:
        if sentence:
            self.notices.problem.say(sentence)

    def show_next_tab(self) -> None:
        """Charts, results, trying, the log, then the charts again."""
        self.show_tab(TABS[(TABS.index(self.tabs.choice()) + 1) % len(TABS)])

    def show_tab(self, tab: str) -> None:
        """Show one of `TABS`."""
        self.tabs.choose(tab)
        self._show_middle()

    def _on_follow(self, on: bool) -> None:
        set_role(self.follow, "quiet" if on else "primary")  # it is what brings the newest data back
        if self.charts is None:
            return
        if on and self._run is not None and not self._may_grow(self._run):
            self.charts.reset()
        else:
            self.charts.set_follow(on)

    def _on_smoothing(self, value: int) -> None:
        put(
            self.smoothing_words, tr("Smoothing {value}").format(value=f"{value / 100:.2f}" if value else "0")
        )
        if self.charts is not None:
            self.charts.set_smoothing(value / 100)

    # -------------------------------------------------------------------------- each tick

    def take(self, facts: list[Record]) -> None:
        """New facts of the run."""
        self.side.decisions.take(facts)
        for warned in self.notices.take(facts):
            self.side.memory.set_reason(words.warning(warned))

    def tick(self, *, slow: bool, figures: bool = True, charts: bool = True) -> None:
        """Show where the run stands: figures, charts; `slow` is true a few times a second."""
        run = self._run
        if run is None:
            return
        if figures:
            self._show_middle()
            self.side.tick(run)
        if slow:
            self.notices.show_state(run)
            if self.log is not None and self.stack.currentWidget() is self.log:
                self.log.tick()
        for view in (self.charts if charts else None, self.results, self.trial):
            if view is not None and self.stack.indexOf(view) == self.stack.currentIndex():
                view.tick()

    def _show_middle(self) -> None:
        run = self._run
        if run is None:
            return
        if self.tabs.choice() == "log":
            wanted: QWidget = self.ensure_log()
        elif self.tabs.choice() == "results":
            self.ensure_results()
            wanted = self.results
        elif self.tabs.choice() == "try":
            self.ensure_trial()
            wanted = self.trial
        elif self._has_points(run) or run.state not in (RunState.PENDING, RunState.LOADING):
            self.ensure_charts()
            wanted = self.charts
        else:
            wanted = self.waiting
            self._say_waiting(run)
        if self.stack.currentWidget() is not wanted:
            self.stack.setCurrentWidget(wanted)
        for widget in (self.axis, self.axis_words, self.smoothing, self.smoothing_words):
            widget.setVisible(wanted is self.charts)
        self.ranks.show_figures(figures_of(run.store) if wanted is self.charts else None)
        # Of a run that is over there is nothing to follow; after a zoom the way back to the whole stays.
        grows = self._may_grow(run)
        self.follow.setVisible(wanted is self.charts and (grows or not self.follow.isChecked()))
        text = tr("Follow live") if grows else tr("Show the whole run")
        if self.follow.text() != text:
            self.follow.setText(text)

    @staticmethod
    def _may_grow(run: Attachment) -> bool:
        return run.state.is_alive or run.state is RunState.PENDING

    @staticmethod
    def _has_points(run: Attachment) -> bool:
        return MicroBatchMeasured in run.store.latest

    def _say_waiting(self, run: Attachment) -> None:
        if run.state is RunState.PENDING:
            more = tr("The run's folder exists, but no trainer has written to it yet.")
            self.waiting.say(tr("This run has not started"), more, moving=False)
            return
        phase = words.phase(run.store.phase) if run.store.phase else tr("Starting Python…")
        more = tr("The first points appear within about ten seconds; most of that is importing torch.")
        self.waiting.say(phase, more, moving=True)
