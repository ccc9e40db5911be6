"""The main window: navigation, header, pages, and the one timer that moves all of them.

tick, about 30 times a second:  background work ▸ the run's journal ▸ header ▸ the page that is shown
"""

from __future__ import annotations

import functools
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QCloseEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QHBoxLayout,
    QMainWindow,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.assets import asset
from gradacc_gui.queueing.entries import Queue, QueueEntry
from gradacc_gui.queueing.runner import ensure_runner, leave_runners, reap_runners
from gradacc_gui.remembered import Preferences
from gradacc_gui.report.run_report import write_report
from gradacc_gui.run import starter
from gradacc_gui.run.attachment import Attachment
from gradacc_gui.run.header_state import HeaderState
from gradacc_gui.run.header_text import header_of
from gradacc_gui.session.awake import Awake
from gradacc_gui.session.background import Background
from gradacc_gui.session.launch import Launch
from gradacc_gui.session.runs import seal_ended, summarise
from gradacc_gui.theme import Themes, space
from gradacc_gui.widgets.desktop import ask_for_file, ask_where_to_save, show_file
from gradacc_gui.widgets.desktop_notice import DesktopNotices
from gradacc_gui.widgets.parts import Notice
from gradacc_gui.window.header import Header
from gradacc_gui.window.live_page import LivePage
from gradacc_gui.window.pages import (
    PAGES,
    Navigation,
    Pages,
    make_charts,
    make_compare,
    make_form,
    make_verify,
)
from gradacc_gui.window.questions import Starts, explain_that_run_continues
from gradacc_gui.window.runs_library import RunsLibrary
from gradacc_gui.window.runs_page import RunsPage
from gradacc_gui.window.settings_page import SettingsPage
from gradacc_gui.words import tr
from trainer_backend.errors import GradaccError
from trainer_backend.regular_files import LARGEST_TEXT_BYTES, read_regular
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunState

TICK_MS: Final = 33
CATCHING_UP_MS: Final = 0
"""Between two ticks while the journal has more than one tick takes; what a hand does comes between."""
SLOW_TICKS: Final = 10
"""Logs, notices and the like are looked at about three times a second."""
LIST_TICKS: Final = 60
SMALLEST: Final = (1000, 600)
DEMO_RECIPE: Final = "recipes/stdlib-gpt.toml"


class MainWindow(QMainWindow):
    """The window: navigation, header and pages, moved by one timer."""

    def __init__(
        self, themes: Themes, preferences: Preferences, make_form_page: Callable[[], Any] | None = None
    ) -> None:
        super().__init__()
        self.setWindowTitle("gradacc")
        self.setMinimumSize(*SMALLEST)
        self.preferences = preferences
        self.background = Background()
        self.awake = Awake()
        self.desktop_notices = DesktopNotices(self)
        self.run: Attachment | None = None
        self._ticks = 0
        self._shown_at = 0.0
        self._may_close = False
        self._to_queue: list[Path] = []
        self.starts = Starts(self, self.background, self._began, self._queued, self._fail)
        self._make_form = make_form_page or make_form
        self._build(themes)
        self._connect()
        self._build_shortcuts()
        self.timer = QTimer(self)
        self.timer.setTimerType(Qt.TimerType.PreciseTimer)
        self.timer.timeout.connect(self.tick)
        self.timer.start(TICK_MS)

    # -------------------------------------------------------------------------- building

    def _build(self, themes: Themes) -> None:
        centre = QWidget()
        centre.setObjectName("page")
        row = QHBoxLayout(centre)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        self.navigation = Navigation()
        row.addWidget(self.navigation)
        column = QVBoxLayout()
        column.setSpacing(0)
        self.header = Header()
        self.notice = Notice("notice-bad")
        around = QHBoxLayout()
        around.setContentsMargins(space(3), 0, space(3), 0)
        around.addWidget(self.notice)
        self.pages = Pages()
        self.pages.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        column.addWidget(self.header)
        column.addLayout(around)
        column.addWidget(self.pages, 1)
        row.addLayout(column, 1)
        self.live = LivePage(make_charts)
        self.runs = RunsPage()
        self.library = RunsLibrary(self.runs, self.background, self._let_go_of)
        self.settings = SettingsPage(self.preferences, themes)
        self.pages.add("live", self.live)
        self.pages.add("runs", self.runs)
        self.pages.add("settings", self.settings)
        self.pages.add_later("new-run", self._build_form)
        self.pages.add_later("verify", self._build_verify)
        self.pages.add_later("compare", self._build_compare)
        self.setCentralWidget(centre)

    def _connect(self) -> None:
        self.navigation.chosen.connect(self.show_page)
        for page in (self.live, self.runs):
            page.demo_requested.connect(self.start_demo)
            page.recipe_requested.connect(self.choose_recipe)
            page.resume_requested.connect(self.resume)
        self.live.go_back_requested.connect(self.resume)
        self.live.report_requested.connect(self._save_report)
        self.runs.open_requested.connect(self.open_run)
        self.runs.copy_requested.connect(self._new_run_from)
        self.runs.compare_requested.connect(self.compare)
        self.runs.queue_panel.recipes_chosen.connect(self._queue_recipes)
        self.runs.queue_panel.changed.connect(self._change_queue)
        self.runs.queue_panel.start_requested.connect(self._start_waiting)
        self.runs.queue_panel.open_requested.connect(self.open_run)
        self.settings.keep_awake_changed.connect(lambda _on: self._keep_awake())

    def _build_shortcuts(self) -> None:
        for page, _word, keys in PAGES:
            self._shortcut(keys, functools.partial(self.show_page, page))
        self._shortcut("F1", lambda: self.show_page("settings"))
        buttons = self.live.side.buttons
        self._shortcut("Ctrl+P", buttons.pause.click)
        self._shortcut("Ctrl+K", buttons.checkpoint.click)
        self._shortcut("Ctrl+T", self._type_n)
        self._shortcut("Ctrl+J", self._next_tab)
        self.open_shortcut = self._shortcut("Ctrl+O", self.choose_recipe)

    def _shortcut(self, keys: str, do: Callable[[], object]) -> QShortcut:
        made = QShortcut(QKeySequence(keys), self)
        made.activated.connect(do)
        return made

    def _type_n(self) -> None:
        self.show_page("live")
        self.live.side.n_panel.edit.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.live.side.n_panel.edit.selectAll()

    def _next_tab(self) -> None:
        if self.run is not None:
            self.show_page("live")
            self.live.show_next_tab()

    # -------------------------------------------------------------------------- pages

    def show_page(self, page: str) -> None:
        """Bring a page to the front."""
        self.navigation.choose(page)
        if (compare := self.pages.if_made("compare")) is not None and self.page() == "compare":
            compare.leave()
        self.pages.bring(page)
        # The form has its own Ctrl+O; two at once would be ambiguous, and neither would work.
        self.open_shortcut.setEnabled(page != "new-run")
        if page == "runs":
            self._list_runs()
        if page == "verify" and (form := self.pages.if_made("new-run")) is not None:
            self._offer_to_verify(form.startable())

    def form(self) -> Any:  # noqa: ANN401 - FormPage, imported late
        """The New-run page, built when it is first wanted."""
        return self.pages.get("new-run")

    def page(self) -> str:
        """The page that is in front."""
        return self.pages.front()

    def _build_form(self) -> Any:  # noqa: ANN401 - FormPage, imported late
        form = self._make_form()
        form.start_requested.connect(self._start_from_form)
        form.queue_requested.connect(self._queue_from_form)
        form.verify_requested.connect(self._verify_recipe)
        return form

    def _build_verify(self) -> Any:  # noqa: ANN401 - VerifyPage, imported late
        page = make_verify()
        page.recipe_requested.connect(lambda: self.show_page("new-run"))
        return page

    def _build_compare(self) -> Any:  # noqa: ANN401 - ComparePage, imported late
        page = make_compare()
        page.back_requested.connect(lambda: self.show_page("runs"))
        return page

    def compare(self, runs: list[RunDirectory]) -> None:
        """Show runs side by side."""
        self.pages.get("compare").set_runs(runs)
        self.pages.bring("compare")

    def _offer_to_verify(self, recipe: tuple[str, Path, str, str] | None) -> None:
        """Have the Verify page ready for what stands in the form, unless it shows a certificate."""
        page = self.pages.get("verify")
        if recipe is not None and page.state in ("empty", "ready"):
            text, folder, name, python = recipe
            page.set_recipe(text, folder, python or sys.executable, name)

    def _verify_recipe(self, text: str, folder: Path, name: str, python: str) -> None:
        page = self.pages.get("verify")
        page.set_recipe(text, folder, python or sys.executable, name)
        self.show_page("verify")
        page.run()

    # -------------------------------------------------------------------------- runs

    def open_run(self, run: RunDirectory, launch: Launch | None = None) -> None:
        """Show a run live, whoever started it; the run shown before goes on by itself."""
        if self.run is not None and self.run.run == run:
            if launch is not None:
                self.run.relaunched(launch)
        else:
            self._let_go()
            self.run = Attachment(run, launch)
            self.live.set_run(self.run)
        self.show_page("live")
        self.tick()

    def _let_go(self) -> None:
        if self.run is None:
            return
        self.run.close()
        ended = self.run
        self.run = None
        self.live.set_run(None)
        self.background.submit(lambda: seal_ended([summarise(ended.run)]), _nothing, self._fail)

    def start_demo(self) -> None:
        """Start the run that needs nothing: Python's own standard library as text."""
        self._start_recipe(asset(DEMO_RECIPE))

    def choose_recipe(self) -> None:
        """Ask for a recipe file and show it in the form."""
        filters = tr("Recipes (*.toml);;All files (*)")
        ask_for_file(self, tr("Open a recipe"), Path.home(), self._show_recipe, filters)

    def _show_recipe(self, path: Path) -> None:
        self.form().set_recipe(path)
        self.show_page("new-run")

    def _start_recipe(self, path: Path) -> None:
        try:
            request = starter.request_for_recipe(path)
        except GradaccError as error:
            self._fail(str(error))
            return
        self._start(request, self.preferences.interpreter)

    def _start_from_form(self, text: str, folder: Path, name: str, python: str) -> None:
        self._start(starter.StartRequest(text=text, folder=str(folder), name=name), python)

    def _queue_from_form(self, text: str, folder: Path, name: str, python: str) -> None:
        request = starter.StartRequest(text=text, folder=str(folder), name=name, queued=True)
        self._start(request, python)

    def _queue_recipes(self, paths: list[str]) -> None:
        """Add recipe files to the queue, one after the other."""
        self._to_queue += [Path(path) for path in paths]
        self._queue_next()

    def _queue_next(self) -> None:
        if not self._to_queue or self.starts.pending is not None:
            return
        try:
            request = starter.request_for_recipe(self._to_queue.pop(0))
        except GradaccError as error:
            self._fail(str(error))
            self._queue_next()
            return
        self._start(msgspec.structs.replace(request, queued=True), self.preferences.interpreter)

    def resume(self, run: RunDirectory, from_step: int | None = None) -> None:
        """Start a new attempt of a run that ended, from the checkpoint of `from_step`, else its last."""
        request = starter.StartRequest(run=run, from_step=from_step)
        self._start(request, starter.interpreter_of(run) or self.preferences.interpreter)

    def _start(self, request: starter.StartRequest, python: str) -> None:
        self.notice.hide()
        if self.starts.start(request, python):
            self.live.set_starting(True)

    def _began(self, launch: Launch) -> None:
        self.open_run(launch.run, launch)

    def _queued(self, entry: QueueEntry) -> None:
        self.live.set_starting(False)
        self.show_page("runs")
        self.runs.queue_panel.tell(
            tr("{name} waits in the queue.").format(name=entry.directory.asked_name or entry.run)
        )
        self._queue_next()

    def _save_report(self, run: RunDirectory) -> None:
        """Ask where to; the page is written by a thread, and shown in the browser."""

        def save(path: Path) -> None:
            self.background.submit(lambda: write_report(run, path), lambda _done: show_file(path), self._fail)

        start = Path.home() / f"{run.id}-report.html"
        ask_where_to_save(self, tr("Save a report"), start, save, tr("Web pages (*.html)"))

    def _fail(self, sentence: str) -> None:
        self.live.set_starting(False)
        self.notice.say(sentence)

    def _start_waiting(self, run: RunDirectory) -> None:
        """Start a waiting run now, whatever its device does: the person chose it."""
        entry = next((entry for entry in Queue().waiting() if entry.run == run.id), None)
        if (
            entry is not None
        ):  # its place stays until its trainer is there: the runner sees that it was started
            self._start(starter.StartRequest(run=run), entry.python)
        self._list_runs()

    def _let_go_of(self, runs: list[RunDirectory]) -> None:
        """Close the run that is shown, if it is one of these."""
        if self.run is not None and self.run.run in runs:
            self._let_go()

    def _new_run_from(self, run: RunDirectory) -> None:
        """Open the form with an old run's settings; the run itself stays as it is."""
        try:
            text = read_regular(run.recipe_path, LARGEST_TEXT_BYTES).decode("utf-8")
        except (OSError, ValueError) as error:
            self.runs.say(tr("The recipe of {name} cannot be read: {why}.").format(name=run.id, why=error))
            return
        self.form().open_copy(text, run.path, run.asked_name or run.id)
        self.show_page("new-run")

    def _list_runs(self) -> None:
        self.library.refresh()

    def _change_queue(self, act: Callable[[], object]) -> None:
        """Change the queue, then show it as it is."""
        self.background.submit(act, lambda _done: self._list_runs(), self.runs.say)
        self._look_after_queue()

    def _look_after_queue(self) -> None:
        """Start the queue's runner where runs wait and none is there."""
        self.background.submit(ensure_runner, _nothing, self.runs.say, only_one="queue")
        reap_runners()

    # -------------------------------------------------------------------------- the one timer

    def tick(self) -> None:
        """One tick: take what is there, show it; never wait."""
        self._ticks += 1
        slow = self._ticks % SLOW_TICKS == 0
        self.background.poll()
        if self.run is not None:
            # While the journal has more than a tick takes, a tick reads or draws: none is a long one.
            draws = self._draws()
            facts = [] if draws else self.run.tick()
            if facts:
                self.live.take(facts)
                self.desktop_notices.take(self.run.run.id, facts)
            figures = self._shows_figures()
            if figures:
                self.header.show_state(header_of(self.run))
            if self.page() == "live":
                self.live.tick(slow=slow, figures=figures, charts=draws or not self._reads_on())
        elif slow:
            request = self.starts.pending
            self.header.show_state(
                HeaderState(name=request.title(), state=RunState.LOADING) if request else HeaderState()
            )
        if self.page() == "compare":
            self.pages.get("compare").tick()
        if slow:
            self._keep_awake()
            self._title()
        half_drawn = self.live.charts is not None and self.live.charts.is_half_drawn
        self.timer.setInterval(CATCHING_UP_MS if half_drawn or self._reads_on() else TICK_MS)
        if self._ticks % LIST_TICKS == 0:
            self._look_after_queue()
            if self.page() == "runs":
                self.library.refresh(soon=False)

    def _shows_figures(self) -> bool:
        """Whether this tick shows figures: while a run is behind, ticks come sooner than anybody reads."""
        now = time.monotonic()
        if self.timer.interval() == CATCHING_UP_MS and now - self._shown_at < TICK_MS / 1000:
            return False
        self._shown_at = now
        return True

    def _reads_on(self) -> bool:
        """Whether this tick was one of reading much: another follows at once."""
        return self.run is not None and (self.run.store.is_behind or self.run.store.took_many)

    def _draws(self) -> bool:
        """Whether this tick will draw charts of a run that is behind."""
        charts = self.live.charts
        return (
            self.run is not None and self.run.store.is_behind and charts is not None and bool(charts.is_due())
        )

    def _title(self) -> None:
        title = f"{header_of(self.run).name} · gradacc" if self.run is not None else "gradacc"
        if self.windowTitle() != title:
            self.setWindowTitle(title)

    def _keep_awake(self) -> None:
        if self.preferences.keep_awake and self.run is not None and self.run.store.alive:
            self.awake.hold()
        else:
            self.awake.release()
        self.settings.say_awake_problem(self.awake.problem())

    # -------------------------------------------------------------------------- closing

    def closeEvent(self, event: QCloseEvent) -> None:
        """The run goes on; say so until the person knows."""
        live = self.run is not None and self.run.store.alive
        if live and self.preferences.says_that_runs_go_on and not self._may_close:
            event.ignore()
            self.goes_on = explain_that_run_continues(
                self,
                self.preferences,
                self._close_knowingly,
                paused=self.run is not None and self.run.state is RunState.PAUSED,
            )
            return
        self.preferences.geometry = self.saveGeometry()
        self.runs.remember()
        self.timer.stop()
        self.awake.release()
        if self.run is not None:
            ended = self.run.run
            self.run.close()
            self.run = None
            seal_ended([summarise(ended)])  # this window was a reader; without it the journal may be folded
        self.background.close()
        leave_runners()
        self.live.shut_down()
        if (form := self.pages.if_made("new-run")) is not None:
            form.shut_down()
        if (verify := self.pages.if_made("verify")) is not None:
            verify.close_down()
        if (compare := self.pages.if_made("compare")) is not None:
            compare.leave()
        super().closeEvent(event)

    def _close_knowingly(self) -> None:
        self._may_close = True
        QTimer.singleShot(0, self, self.close)


def _nothing(_result: object) -> None:
    """Work whose result nobody needs."""


def close_on_interrupt(window: MainWindow) -> None:
    """Ctrl-C in the terminal closes the window; the run goes on."""
    signal.signal(signal.SIGINT, lambda _number, _frame: window.close())
