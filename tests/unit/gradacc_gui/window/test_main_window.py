"""The main window without a trainer: pages, keys, starts that fail, closing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeySequence
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QApplication, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from gradacc_gui.remembered import Preferences
from gradacc_gui.session.about_file import AboutRun
from gradacc_gui.session.trash import to_trash
from gradacc_gui.theme import Themes
from gradacc_gui.window.main_window import SMALLEST, MainWindow
from gradacc_gui.window.pages import PAGES
from tests.support.fake_runs import Plan, write_run
from trainer_backend.journal import JournalWriter
from trainer_backend.protocol import RunFailed
from trainer_backend.run_directory import RunDirectory, all_runs, runs_folder

MakeWindow = Callable[[], MainWindow]


class Form(QWidget):
    """Stands in for the form, which has its own tests."""

    start_requested = Signal(str, Path, str, str)
    queue_requested = Signal(str, Path, str, str)
    verify_requested = Signal(str, Path, str, str)

    def set_recipe(self, path: Path) -> None:
        """Remember what was opened."""
        self.recipe = path

    def open_copy(self, text: str, folder: Path, name: str) -> None:
        """Remember what a new run begins with."""
        self.copied = text, folder, name

    def shut_down(self) -> None:
        """Nothing is under way here."""

    def startable(self) -> None:
        """Nothing stands in it."""


@pytest.fixture
def make_window(qtbot: QtBot, styled: QApplication) -> Iterator[MakeWindow]:
    """Windows at 1280 x 720, closed at the end without a question."""
    made: list[MainWindow] = []

    def make() -> MainWindow:
        preferences = Preferences()
        preferences.keep_awake = False
        window = MainWindow(Themes(styled, "dark"), preferences, Form)
        window.resize(1280, 720)
        window.show()
        made.append(window)
        return window

    yield make
    for window in made:
        window.preferences.says_that_runs_go_on = False
        window.close()
        window.deleteLater()
    styled.processEvents()


@pytest.fixture
def ended_run() -> RunDirectory:
    """A run of sixty steps that finished."""
    return write_run(runs_folder(), Plan(steps=60, end="finished"))


def test_every_page_is_reached_by_its_word_and_by_its_key(qtbot: QtBot, make_window: MakeWindow) -> None:
    """Live, New run, Runs, Verify, Settings."""
    window = make_window()
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow, timeout=20_000)
    for page, word, keys in PAGES:
        window.navigation.button(page).click()
        assert window.page() == page
        assert window.navigation.button(page).text() == word
        window.show_page("verify" if page != "verify" else "live")
        QTest.keySequence(window, QKeySequence(keys))
        assert window.page() == page
    QTest.keyClick(window, Qt.Key.Key_F1)
    assert window.page() == "settings"


def test_everything_that_can_be_pressed_has_a_name_and_can_be_reached_by_key(make_window: MakeWindow) -> None:
    """A button that shows only a sign says its name to a screen reader; none is left out of the Tab order."""
    window = make_window()
    for page, _, _ in PAGES:
        window.show_page(page)
    ours = [
        button for button in window.findChildren(QAbstractButton) if not button.objectName().startswith("qt_")
    ]
    nameless = [button for button in ours if not (button.text() or button.accessibleName())]
    unreachable = [
        button.text() or button.accessibleName()
        for button in ours
        if not button.focusPolicy() & Qt.FocusPolicy.TabFocus
        and type(button).__module__.startswith(("gradacc", "PySide6"))
        and button.metaObject().className() != "QTableCornerButton"
    ]
    assert nameless == []
    assert [text for text in unreachable if text != "Dismiss"] == []


@pytest.mark.parametrize("size", [SMALLEST, (1280, 720), (1440, 900)])
def test_nothing_lies_outside_the_window(
    qtbot: QtBot, make_window: MakeWindow, ended_run: RunDirectory, size: tuple[int, int]
) -> None:
    """Every visible button of the Live page is inside, at the smallest size too."""
    window = make_window()
    window.resize(*size)
    window.open_run(ended_run)
    qtbot.waitUntil(lambda: window.run is not None and window.run.state == "finished", timeout=20_000)
    window.live.side.tuning.set_open(open_=True)
    QApplication.processEvents()
    assert (window.width(), window.height()) == size
    for button in (
        *window.live.toolbar.findChildren(QPushButton),
        *window.live.side.buttons.findChildren(QPushButton),
    ):
        if button.isVisible():
            place = button.mapTo(window, button.rect().bottomRight())
            assert place.x() < size[0], button.text()
            assert place.y() < size[1], button.text()
            assert button.width() >= button.minimumSizeHint().width(), button.text()


def test_a_finished_run_opens_with_its_numbers_and_its_log(
    qtbot: QtBot, make_window: MakeWindow, ended_run: RunDirectory
) -> None:
    """The same path as a live one."""
    window = make_window()
    window.open_run(ended_run)
    qtbot.waitUntil(lambda: window.run is not None and window.run.state == "finished", timeout=20_000)
    window.tick()
    assert window.header.pill.text() == "Finished"
    assert window.header.step.text() == "Step 60"
    log = [entry.text for entry in window.live.side.decisions.model.entries()]
    assert log[0].startswith("Finished at step 60")
    assert not window.live.side.n_panel.edit.isEnabled()


def test_an_interpreter_that_is_none_is_a_sentence_and_starts_nothing(
    qtbot: QtBot, make_window: MakeWindow
) -> None:
    """No run directory is made before the interpreter has answered."""
    window = make_window()
    window.form().start_requested.emit("[run]\nepochs = 1\n", Path("/"), "x", "/no/such/python")
    assert window.starts.pending is not None
    qtbot.waitUntil(lambda: window.starts.pending is None, timeout=20_000)
    assert "/no/such/python" in window.notice.sentence.text()
    assert window.notice.isVisible()
    assert all_runs() == []


def test_a_click_on_start_while_starting_does_nothing(qtbot: QtBot, make_window: MakeWindow) -> None:
    """One start at a time."""
    window = make_window()
    emit = window.form().start_requested.emit
    emit("[run]\nepochs = 1\n", Path("/"), "first", "/no/such/python")
    emit("[run]\nepochs = 1\n", Path("/"), "second", "/no/such/python")
    assert window.starts.pending is not None
    assert window.starts.pending.name == "first"
    qtbot.waitUntil(lambda: window.starts.pending is None, timeout=20_000)
    assert not window.background.is_busy


def test_a_recipe_that_is_refused_names_each_key(qtbot: QtBot, make_window: MakeWindow) -> None:
    """The form lets none through; a start by other ways is held to the same."""
    window = make_window()
    window.form().start_requested.emit("[run]\nepoch = 1\n", Path("/"), "x", "")
    qtbot.waitUntil(lambda: window.starts.pending is None, timeout=60_000)
    assert "run.epoch is not a key" in window.notice.sentence.text()
    assert all_runs() == []


def test_closing_a_window_on_a_live_run_says_that_it_goes_on(
    qtbot: QtBot, make_window: MakeWindow, ended_run: RunDirectory
) -> None:
    """Once, until the person ticks it away."""
    window = make_window()
    with ended_run.locked():
        window.open_run(ended_run)
        qtbot.waitUntil(lambda: window.run is not None and window.run.store.alive, timeout=20_000)
        window.close()
        assert window.isVisible()
        assert "keeps running" in window.goes_on.text()
        window.goes_on.checkBox().setChecked(True)
        yes = next(button for button in window.goes_on.buttons() if "Close" in button.text())
        yes.click()
        qtbot.waitUntil(lambda: not window.isVisible(), timeout=20_000)
    assert not Preferences().says_that_runs_go_on


def test_a_failed_run_shows_its_reason_and_offers_to_go_on(qtbot: QtBot, make_window: MakeWindow) -> None:
    """The banner, not a dialog."""
    run = write_run(runs_folder(), Plan(steps=9, end="failed"))
    writer = JournalWriter(run.journal_path, attempt=1)
    end = RunFailed(step=9, samples_seen=1, reason="ValueError: weight is negative", where="my_task.py:42")
    writer.put(end)
    writer.close()
    window = make_window()
    window.open_run(run)
    failed = window.live.notices.failed
    qtbot.waitUntil(failed.isVisible, timeout=20_000)
    assert failed.sentence.text() == "ValueError: weight is negative"
    assert "my_task.py:42" in failed.more.text()
    assert window.live.side.buttons.resume.isVisible()
    # It has no checkpoint: nothing is offered as if it had.
    assert window.live.side.buttons.resume.text() == "Start again from step 1"
    assert window.live.notices.resume[failed].text() == "Start again"


def test_runs_are_listed_and_deleted_in_the_background(
    qtbot: QtBot, make_window: MakeWindow, ended_run: RunDirectory
) -> None:
    """The page asks; the window lets go of the run first when it shows it."""
    window = make_window()
    window.open_run(ended_run)
    window.show_page("runs")
    qtbot.waitUntil(lambda: len(window.runs.model.runs()) == 1, timeout=20_000)
    window.runs.delete_requested.emit([ended_run])
    assert window.run is None
    qtbot.waitUntil(lambda: window.runs.model.runs() == [], timeout=60_000)
    assert not ended_run.journal_path.exists()
    assert window.runs.stack.currentWidget() is window.runs.empty
    window.runs._undo()
    qtbot.waitUntil(lambda: len(window.runs.model.runs()) == 1, timeout=60_000)
    assert ended_run.journal_path.exists()


def test_the_trash_gives_runs_back_or_removes_them_for_good(
    qtbot: QtBot, make_window: MakeWindow, ended_run: RunDirectory
) -> None:
    """Asked before, and only what is selected in it."""
    in_trash = to_trash(ended_run)
    window = make_window()
    window.show_page("runs")
    window.runs.trash_button.click()
    trash = window.library.trash
    assert trash is not None
    qtbot.waitUntil(lambda: trash.list.count() == 1, timeout=60_000)
    trash.list.setCurrentRow(0)
    trash.remove.click()
    assert trash.question is not None
    next(part for part in trash.question.buttons() if part.text().replace("&", "") == "Delete").click()
    qtbot.waitUntil(lambda: trash.list.count() == 0, timeout=60_000)
    assert not in_trash.path.exists()
    trash.close()


def test_a_star_and_a_label_are_kept_and_shown(
    qtbot: QtBot, make_window: MakeWindow, ended_run: RunDirectory
) -> None:
    """The run's folder keeps its name."""
    window = make_window()
    window.show_page("runs")
    qtbot.waitUntil(lambda: len(window.runs.model.runs()) == 1, timeout=60_000)
    line = window.runs.model.runs()[0]
    window.runs.noted.emit([(line, AboutRun("mine", starred=True))])
    qtbot.waitUntil(lambda: window.runs.model.runs()[0].name == "mine", timeout=60_000)
    assert window.runs.model.runs()[0].about.starred
    assert ended_run.path.is_dir()


def test_a_new_run_begins_with_an_old_ones_settings_and_leaves_its_recipe_alone(
    qtbot: QtBot, make_window: MakeWindow, ended_run: RunDirectory
) -> None:
    """A recipe that is gone is told."""
    window = make_window()
    window.runs.copy_requested.emit(ended_run)
    assert window.page() == "new-run"
    assert window.form().copied == (ended_run.recipe_path.read_text("utf-8"), ended_run.path, "stdlib-gpt")
    ended_run.recipe_path.unlink()
    window.runs.copy_requested.emit(ended_run)
    assert "cannot be read" in window.runs.problem.text()


def test_choices_are_kept_for_the_next_start(make_window: MakeWindow) -> None:
    """Colours, sleep, interpreter."""
    window = make_window()
    window.settings.theme.button("light").click()
    window.settings.keep_awake.setChecked(True)
    window.settings.interpreter.setText("/some/python")
    window.settings.interpreter.editingFinished.emit()
    again = Preferences()
    assert (again.theme, again.keep_awake, again.interpreter) == ("light", True, "/some/python")
    window.settings.theme.button("dark").click()
    window.settings.keep_awake.setChecked(False)


def test_a_home_that_cannot_be_written_costs_only_the_memory_of_choices(
    make_window: MakeWindow, gradacc_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No traceback for a read-only home."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("GRADACC_HOME", str(blocked / "home"))
    preferences = Preferences()
    preferences.theme = "light"
    assert os.environ["GRADACC_HOME"].endswith("home")
    assert preferences.says_that_runs_go_on


def test_a_tick_waits_for_nothing(make_window: MakeWindow, qtbot: QtBot, ended_run: RunDirectory) -> None:
    """While the background works, a tick comes back at once: it never joins the worker."""
    window = make_window()
    window.open_run(ended_run)
    gate: list[float] = []

    def slow() -> None:
        deadline = time.monotonic() + 20
        while not gate and time.monotonic() < deadline:
            time.sleep(0.001)

    window.background.submit(slow, lambda _: None, pytest.fail)
    for _ in range(5):
        window.tick()
    assert window.background.is_busy
    gate.append(1.0)
    qtbot.waitUntil(lambda: not window.background.is_busy, timeout=20_000)


@pytest.mark.parametrize("tab", ["charts", "results", "log"])
def test_a_run_that_is_behind_is_read_to_its_end_whatever_is_looked_at(
    qtbot: QtBot, make_window: MakeWindow, tab: str
) -> None:
    """Beats that leave reading to the next one, for a chart's sake, are only those that draw one."""
    run = write_run(runs_folder(), Plan(steps=4_000, end="finished"))
    window = make_window()
    window.open_run(run)
    window.live.ensure_charts()
    window.live.show_tab(tab)
    attached = window.run
    assert attached is not None
    assert attached.store.is_behind
    qtbot.waitUntil(lambda: not attached.store.is_behind, timeout=20_000)
    assert attached.store.ended is not None


@pytest.mark.parametrize("page", ["runs", "settings"])
def test_a_run_that_is_behind_is_read_while_another_page_is_shown(
    qtbot: QtBot, make_window: MakeWindow, page: str
) -> None:
    """Its state in the header is as new as ever."""
    run = write_run(runs_folder(), Plan(steps=4_000, end="finished"))
    window = make_window()
    window.open_run(run)
    window.live.ensure_charts()
    window.show_page(page)
    attached = window.run
    assert attached is not None
    assert attached.store.is_behind
    qtbot.waitUntil(lambda: not attached.store.is_behind, timeout=20_000)


def test_a_run_that_is_over_has_no_controls_that_do_nothing(
    make_window: MakeWindow, tmp_path: Path, qtbot: QtBot
) -> None:
    """N and the other settings are gone; what was decided and what can be done now stay."""
    window = make_window()
    window.open_run(write_run(tmp_path, Plan(steps=20, end="finished")))
    side = window.live.side
    qtbot.waitUntil(lambda: side.isVisible() and side.n_panel.isHidden(), timeout=5000)
    assert side.tuning.isHidden()
    assert side.decisions.isVisible()
    assert side.buttons.isVisible()


def test_runs_are_compared_on_a_page_of_their_own(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    """From the list and back to it; the journals are closed on leaving."""
    window = make_window()
    runs = [write_run(tmp_path, Plan(name=f"n{n}", n=n, steps=12, end="finished")) for n in (4, 8)]
    window.show_page("runs")
    window.runs.compare_requested.emit(runs)
    assert window.page() == "compare"
    page = window.pages.get("compare")
    qtbot.waitUntil(lambda: any(len(curve.trace.x) for curve in page.cards[0].view.lanes[0].curves))
    page.back.click()
    assert window.page() == "runs"
    assert page.groups == []
