"""The queue as the Runs page shows it, and the ways into it: Add to queue, a second run on a taken device."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QModelIndex
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gradacc_gui.queueing import slots
from gradacc_gui.queueing.entries import Queue
from gradacc_gui.queueing.waiting import look
from gradacc_gui.remembered import Preferences
from gradacc_gui.run import starter
from gradacc_gui.session.interpreter import Interpreter, probe
from gradacc_gui.session.launch import Launch
from gradacc_gui.session.listing import list_runs
from gradacc_gui.theme import Themes
from gradacc_gui.window import main_window
from gradacc_gui.window.main_window import MainWindow
from gradacc_gui.window.queue_panel import QueuePanel
from gradacc_gui.window.runs_library import placed
from tests.support import stand_in
from trainer_backend.errors import RunDirectoryError
from trainer_backend.run_facts import RunState


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    """Three runs that wait, on a machine without a GPU, and no runner."""
    monkeypatch.setattr(slots, "cuda_devices", lambda: ())
    monkeypatch.setattr(main_window, "ensure_runner", lambda: False)
    monkeypatch.setattr(starter, "ensure_runner", lambda: False)
    made = Queue()
    for name in "abc":
        made.add(stand_in.new_run(name), "python", asked_by="test")
    return made


@pytest.fixture
def panel(qtbot: QtBot, styled: QApplication, queue: Queue) -> QueuePanel:
    """The panel with these; what it changes is done at once and shown."""
    del styled
    made = QueuePanel()
    qtbot.addWidget(made)
    made.resize(1000, 240)

    def change(act: Callable[[], object]) -> None:
        act()
        made.show_queue(look(), list_runs())

    made.changed.connect(change)
    made.show_queue(look(), list_runs())
    assert queue.waiting()
    return made


def names(panel: QueuePanel) -> list[str]:
    """What waits, as it is read."""
    return [name for name, _, _ in panel.waiting.texts()]


def test_what_waits_stands_in_order_with_what_it_waits_for(panel: QueuePanel) -> None:
    """The first starts next while nothing runs."""
    assert panel.waiting.texts()[0] == ("1  a", "starts next", "")
    assert panel.waiting.texts()[2] == ("3  c", "waits for CPU (a)", "")
    assert names(panel) == ["1  a", "2  b", "3  c"]


def test_the_order_is_changed_by_buttons_keys_and_dragging(panel: QueuePanel, queue: Queue) -> None:
    """And the selection stays with its run."""
    panel.show()
    panel.waiting.setCurrentRow(2)
    panel.earlier.click()
    assert names(panel) == ["1  a", "2  c", "3  b"]
    assert panel.waiting.currentRow() == 1
    panel.waiting.setFocus()
    next(action for action in panel.waiting.actions() if action.shortcut().toString() == "Alt+Up").trigger()
    assert names(panel) == ["1  c", "2  a", "3  b"]
    assert not panel.earlier.isEnabled()
    panel.waiting.model().moveRow(QModelIndex(), 0, QModelIndex(), 3)
    assert [entry.directory.asked_name for entry in queue.waiting()] == ["a", "b", "c"]


def test_the_queue_is_paused_and_says_so(panel: QueuePanel, queue: Queue) -> None:
    """And resumed by the same link."""
    panel.pause.click()
    assert queue.settings().paused
    assert panel.words.text().startswith("Paused: by you.")
    assert panel.pause.text() == "Resume the queue"
    panel.pause.click()
    assert not queue.settings().paused
    assert panel.words.text() == ""


def test_a_run_that_was_never_started_is_removed_only_when_that_is_meant(
    panel: QueuePanel, queue: Queue
) -> None:
    """It is deleted with its place."""
    run = queue.waiting()[0].directory
    panel.waiting.setCurrentRow(0)
    panel.take_out.click()
    assert panel.question is not None
    assert run.path.exists()
    panel.question.button(panel.question.StandardButton.Cancel).click()
    assert names(panel) == ["1  a", "2  b", "3  c"]
    panel.take_out.click()
    next(made for made in panel.question.buttons() if made.text() == "Remove").click()
    assert names(panel) == ["1  b", "2  c"]
    assert not run.path.exists()


def test_what_cannot_be_started_says_why(panel: QueuePanel, queue: Queue) -> None:
    """In the theme's colour of errors."""
    queue.waiting()[1].directory.recipe_path.write_text("[run]\nepochs = 0\n")
    panel.show_queue(look(), list_runs())
    assert panel.waiting.texts()[1][1].startswith("It will be skipped:")


def test_what_was_done_today_stands_with_its_end(panel: QueuePanel, queue: Queue) -> None:
    """A failure with its reason."""
    entry = queue.waiting()[0]
    assert queue.take(entry)
    queue.finish(entry, "failed", "out of memory in step 1")
    panel.show_queue(look(), list_runs())
    assert panel.done.texts()[0][:2] == ("a", "Failed: out of memory in step 1")
    assert panel.done.texts()[0][2] == time.strftime("%H:%M", time.localtime(queue.done()[0].done_at))


def test_the_panel_is_there_only_when_there_is_a_queue(panel: QueuePanel, queue: Queue) -> None:
    """Who does not use it is not bothered."""
    assert not panel.isHidden()
    for entry in queue.waiting():
        queue.remove(entry.run)
    panel.show_queue(look(), list_runs())
    assert panel.isHidden()


def test_waiting_runs_stand_in_the_list_with_their_place(queue: Queue) -> None:
    """And what they wait for."""
    view = look()
    runs = placed(list_runs(), view)
    assert len(view.waiting) == 3
    assert {summary.state for summary in runs} == {RunState.WAITING}
    first = next(summary for summary in runs if summary.name == "a")
    assert first.reason == "place 1, starts next"
    assert not first.can_resume


# ------------------------------------------------------------------------- the ways into it


@pytest.fixture
def window(styled: QApplication, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[MainWindow]:
    """The whole window; starts are noted, not made."""
    del queue
    monkeypatch.setattr(starter, "prepare", lambda _python: starter.ReadyInterpreter(_interpreter(), ()))
    preferences = Preferences()
    preferences.keep_awake = False
    made = MainWindow(Themes(styled, "dark"), preferences)
    made.show()
    yield made
    made.preferences.says_that_runs_go_on = False
    made.close()
    made.deleteLater()
    styled.processEvents()


def _interpreter() -> Interpreter:
    return probe(sys.executable)


@pytest.fixture
def text(tmp_path: Path) -> tuple[str, Path]:
    """A recipe that can be trained, and its folder."""
    (tmp_path / "text.txt").write_text("something to learn " * 4000)
    recipe = (
        '[run]\nname = "new"\ndevice = "cpu"\nepochs = 1\n[data]\npath = "text.txt"\n'
        "[accumulation]\ngradient_accumulation_steps = 2\n"
    )
    return recipe, tmp_path


def test_the_form_adds_a_run_to_the_queue(
    qtbot: QtBot, window: MainWindow, queue: Queue, text: tuple[str, Path]
) -> None:
    """And the Runs page shows it at its place."""
    window.form().queue_requested.emit(*text, "new", "")
    qtbot.waitUntil(lambda: len(queue.waiting()) == 4, timeout=20_000)
    qtbot.waitUntil(lambda: len(names(window.runs.queue_panel)) == 4, timeout=20_000)
    assert names(window.runs.queue_panel)[3] == "4  new"
    assert window.page() == "runs"
    assert window.runs.queue_panel.words.text() == "new waits in the queue."


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trainers that would be started; none is."""
    asked: list[str] = []

    def start(run: object, _interpreter: object, **_options: object) -> Launch:
        asked.append(str(run))
        raise RunDirectoryError("far enough")

    monkeypatch.setattr(starter, "start", start)
    return asked


@pytest.mark.parametrize(("choice", "queued"), [("Add to queue", True), ("Start anyway", False), ("", None)])
def test_a_second_run_on_a_taken_device_asks(
    qtbot: QtBot,
    window: MainWindow,
    text: tuple[str, Path],
    starts: list[str],
    choice: str,
    queued: bool | None,
) -> None:
    """Queue it, start it anyway, or neither."""
    queue = Queue()
    other = stand_in.new_run("other")
    with other.locked():
        window._start_from_form(*text, "new", "")
        qtbot.waitUntil(lambda: window.starts.question is not None, timeout=20_000)
        question = window.starts.question
        assert question is not None
        assert question.text() == "other is running on CPU."
        if choice:
            next(made for made in question.buttons() if made.text() == choice).click()
        else:
            question.button(question.StandardButton.Cancel).click()
        qtbot.waitUntil(lambda: window.starts.pending is None, timeout=20_000)
    assert (len(queue.waiting()) == 4) is bool(queued)
    assert bool(starts) is (queued is False)


def test_a_start_on_a_free_device_asks_nothing(
    qtbot: QtBot, window: MainWindow, text: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before there was a queue."""
    begun: list[starter.StartRequest] = []

    def begin(request: starter.StartRequest, _found: object) -> object:
        begun.append(request)
        raise RunDirectoryError("far enough")

    monkeypatch.setattr(starter, "begin", begin)
    window._start_from_form(*text, "new", "")
    qtbot.waitUntil(lambda: bool(begun), timeout=20_000)
    assert window.starts.question is None
    assert not begun[0].queued
