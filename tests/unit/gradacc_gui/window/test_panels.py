"""Memory, the decision log, the run's buttons."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gradacc_gui.derive import memory_of
from gradacc_gui.run.header_state import STATE_WORDS
from gradacc_gui.session.stopping import Rung
from gradacc_gui.theme import current_theme
from gradacc_gui.widgets.parts import button
from gradacc_gui.window import run_notices
from gradacc_gui.window.decision_log import MOST_LINES, DecisionLog, Entry
from gradacc_gui.window.memory_panel import MemoryPanel
from gradacc_gui.window.run_buttons import RunButtons
from gradacc_gui.words import LogLine
from tests.support.fake_runs import Plan
from tests.support.fake_runs import events as fake_events
from trainer_backend.protocol import (
    AccumulationChanged,
    AnyEvent,
    CheckpointSaved,
    CommandAccepted,
    DeviceSampled,
    HostSampled,
    Pause,
    Record,
    Resume,
    RollBack,
    RunStarted,
    Warned,
)
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunState

GIB = 2**30


def device(**values: int | None) -> DeviceSampled:
    """A reading of which nothing is known but what is given."""
    names = DeviceSampled.__struct_fields__
    fields = dict.fromkeys(names) | {"device": 0} | values
    return DeviceSampled(**fields)  # type: ignore[arg-type]  # by name


def host() -> HostSampled:
    """A reading of the machine."""
    return HostSampled(
        process_rss_bytes=2 * GIB,
        workers_rss_bytes=None,
        host_memory_used_bytes=8 * GIB,
        host_memory_total_bytes=16 * GIB,
        process_cpu_percent=99.0,
        host_cpu_percent=10.0,
    )


def test_a_gpus_four_lines_are_told_apart(qtbot: QtBot, styled: QApplication) -> None:
    """Allocated, reserved, this process, whole device: never one under another's name."""
    panel = MemoryPanel()
    qtbot.addWidget(panel)
    sample = device(
        memory_used_bytes=7 * GIB,
        memory_total_bytes=12 * GIB,
        process_memory_bytes=5 * GIB,
        torch_allocated_bytes=3 * GIB,
        torch_reserved_bytes=4 * GIB,
    )
    panel.show_memory(memory_of(sample, host()))
    assert panel.texts() == [
        ("torch allocated", "3.00 GiB"),
        ("torch reserved", "4.00 GiB"),
        ("this process", "5.00 GiB"),
        ("whole device", "7.00 GiB"),
    ]
    assert panel.hint.text() == "of 12.0 GiB"


def test_what_a_gpu_does_not_tell_is_not_known_rather_than_zero(qtbot: QtBot, styled: QApplication) -> None:
    """And the reason stands below."""
    panel = MemoryPanel()
    qtbot.addWidget(panel)
    panel.show_memory(memory_of(device(memory_used_bytes=7 * GIB), None))
    assert ("this process", "not known") in panel.texts()
    panel.set_reason("This GPU does not tell what one process holds.")
    assert not panel.reason.isHidden()


def test_without_a_gpu_the_process_and_the_machine_are_shown(qtbot: QtBot, styled: QApplication) -> None:
    """Two lines, of the machine's memory."""
    panel = MemoryPanel()
    qtbot.addWidget(panel)
    panel.show_memory(memory_of(None, host()))
    assert panel.texts() == [("this process", "2.00 GiB"), ("whole machine", "8.00 GiB")]


def test_a_checkpoint_that_answers_twice_is_one_line(qtbot: QtBot, styled: QApplication) -> None:
    """Saved by the clock and asked for at the same border: one file; another one is another line."""
    log = DecisionLog()
    qtbot.addWidget(log)
    saved = CheckpointSaved(command_id=None, step=40, samples_seen=1, path="c", size_bytes=1, duration_s=0.5)
    asked = msgspec.structs.replace(saved, command_id="a")
    later = msgspec.structs.replace(saved, step=80, path="d")
    log.take([Record(seq, 1, 9.0 + seq, event) for seq, event in enumerate((saved, asked, later), start=1)])
    assert [entry.text for entry in log.model.entries()] == ["Checkpoint at step 80", "Checkpoint at step 40"]


def test_the_log_tells_facts_newest_first_and_leaves_answers_out(qtbot: QtBot, styled: QApplication) -> None:
    """An acceptance is told in the N panel; its effect is the decision."""
    log = DecisionLog()
    qtbot.addWidget(log)
    log.take(
        [
            Record(1, 1, 10.0, CommandAccepted(command_id="a", applies_at_step=62)),
            Record(
                2,
                1,
                11.0,
                AccumulationChanged(
                    command_id="a", step=62, before=4, after=8, asked_by="a colleague", asked_at=9.0
                ),
            ),
            Record(
                3,
                1,
                12.0,
                CheckpointSaved(
                    command_id=None, step=100, samples_seen=1, path="c", size_bytes=1, duration_s=0.5
                ),
            ),
        ]
    )
    assert [entry.text for entry in log.model.entries()] == [
        "Checkpoint at step 100",
        "N 4 → 8 at step 62 (a colleague)",
    ]
    assert not log.view.isHidden()


def test_the_log_stays_bounded(qtbot: QtBot, styled: QApplication) -> None:
    """A NaN in each of a million steps must not fill the window's memory."""
    log = DecisionLog()
    qtbot.addWidget(log)
    for batch in range(3):
        log.add([Entry(float(i), LogLine(f"{batch}:{i}")) for i in range(MOST_LINES)])
    assert log.model.rowCount() == MOST_LINES
    assert log.model.entries()[0].text == f"2:{MOST_LINES - 1}"


def test_a_long_line_is_wrapped_and_not_cut(qtbot: QtBot, styled: QApplication) -> None:
    """Its row is as high as its words need."""
    log = DecisionLog()
    qtbot.addWidget(log)
    log.resize(280, 400)
    log.add([Entry(0.0, LogLine("word " * 40)), Entry(1.0, LogLine("short"))])
    log.show()
    QApplication.processEvents()
    model = log.model
    heights = [log.view.visualRect(model.index(row)).height() for row in range(2)]
    assert heights[1] > 3 * heights[0]


@pytest.mark.parametrize("state", list(STATE_WORDS))
def test_each_state_offers_what_can_be_done_and_no_more(
    qtbot: QtBot, styled: QApplication, state: RunState | None
) -> None:
    """A run that ended resumes; one that lives pauses and stops; none is stuck without a button."""
    buttons = RunButtons()
    qtbot.addWidget(buttons)
    buttons.set_state(state)
    can_pause = state in ("running", "paused")
    assert buttons.pause.isEnabled() == can_pause
    assert buttons.checkpoint.isEnabled() == can_pause
    assert buttons.stop.isEnabled() == (state in ("loading", "running", "pausing", "paused", "stopping"))
    assert buttons.resume.isHidden() == (state not in ("stopped", "failed", "interrupted"))


def test_resume_names_the_last_checkpoint_only_where_there_is_one(qtbot: QtBot, styled: QApplication) -> None:
    """Without one, a new attempt begins at the first step, and its button says so."""
    buttons = RunButtons()
    qtbot.addWidget(buttons)
    buttons.set_state(RunState.INTERRUPTED)
    assert buttons.resume.text() == "Start again from step 1"
    buttons.set_checkpoints([100])
    assert buttons.resume.text() == "Resume from the last checkpoint"


def test_pause_becomes_resume(qtbot: QtBot, styled: QApplication) -> None:
    """One button, whose word says what it will do."""
    buttons = RunButtons()
    qtbot.addWidget(buttons)
    cases: tuple[tuple[RunState, str, type], ...] = (
        (RunState.RUNNING, "Pause", Pause),
        (RunState.PAUSED, "Resume", Resume),
    )
    for state, word, kind in cases:
        buttons.set_state(state)
        assert buttons.pause.text() == word
        with qtbot.waitSignal(buttons.asked) as caught:
            QTest.mouseClick(buttons.pause, Qt.MouseButton.LeftButton)
        assert isinstance(caught.args[0], kind)


def test_a_stop_climbs_only_where_this_window_asked(qtbot: QtBot, styled: QApplication) -> None:
    """Ending the process is offered after a stop was asked, not before."""
    buttons = RunButtons()
    qtbot.addWidget(buttons)
    buttons.set_state(RunState.RUNNING)
    assert not buttons.stop_force.isVisible()
    buttons.set_state(RunState.STOPPING, rung=Rung.ASKED_NOW)
    assert buttons.stop_force.isVisible()
    assert not buttons.stop_now.isEnabled()
    assert "checkpoint" in buttons.words.text()


def test_a_live_run_rolls_back_to_a_checkpoint_that_is_kept(qtbot: QtBot, styled: QApplication) -> None:
    """Newest first."""
    buttons = RunButtons()
    qtbot.addWidget(buttons)
    buttons.set_state(RunState.RUNNING)
    buttons.set_checkpoints([20, 1000])
    actions = buttons.roll_back_menu.actions()
    assert [action.text() for action in actions] == ["step 1,000", "step 20"]
    assert buttons.roll_back_menu.isEnabled()
    with qtbot.waitSignal(buttons.asked) as caught:
        actions[1].trigger()
    assert isinstance(caught.args[0], RollBack)
    assert caught.args[0].step == 20


def test_a_full_disk_under_a_live_run_is_said_and_taken_back(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer cannot say so itself: what it says would have to be written there."""
    notices = run_notices.RunNotices()
    qtbot.addWidget(notices)
    run: Any = SimpleNamespace(
        state="running", problem="", run=None, store=SimpleNamespace(alive=True, problem="")
    )
    monkeypatch.setattr(run_notices, "disk_problem", lambda _run: "The disk is full.")
    notices.show_state(run)
    assert not notices.disk.isHidden()
    assert notices.disk.sentence.text() == "The disk is full."
    monkeypatch.setattr(run_notices, "disk_problem", lambda _run: "")
    notices.show_state(run)
    assert notices.disk.isHidden()


def test_a_run_whose_folder_is_gone_is_not_said_to_have_crashed(tmp_path: Path) -> None:
    """Its trainer lives, and saves a checkpoint where the folder lies now."""
    run: Any = SimpleNamespace(
        run=RunDirectory(tmp_path / "gone"),
        store=SimpleNamespace(extent=lambda _axis: (0.0, 12.0)),
        checkpoints=[],
    )
    sentence, more = run_notices.interrupted_words(run)
    assert sentence.startswith("The run's folder was moved or deleted at step 12: ")
    assert "crashed" not in sentence + more
    (tmp_path / "gone").mkdir()
    assert "crashed" in run_notices.interrupted_words(run)[1]
    assert "no checkpoint" in run_notices.interrupted_words(run)[1]
    run.checkpoints = [10]
    assert "from the last checkpoint" in run_notices.interrupted_words(run)[1]


def test_what_is_warned_of_before_a_run_stays_when_it_starts_and_goes_with_the_next(
    qtbot: QtBot,
) -> None:
    """All of an attempt's warnings, an error apart and red; they come before its RunStarted."""
    notices = run_notices.RunNotices()
    qtbot.addWidget(notices)
    started = next(event for _, event in fake_events(Plan()) if isinstance(event, RunStarted))
    found: list[AnyEvent] = [
        Warned(code="batch-norm-of-one", values={"modules": 2, "first": "net.1", "level": "error"}),
        Warned(code="half-gradients", values={"parameters": 3}),
        Warned(code="loss-mean", values={"term": "dice"}),
        Warned(code="loss-mean", values={"term": "dice"}),
        started,
    ]
    notices.take([Record(number, 1, 0.0, event) for number, event in enumerate(found, start=1)])
    assert notices.error.property("role") == "notice-bad"
    assert "net.1" in notices.error.sentence.text()
    assert "dice" in notices.warning.sentence.text()
    assert notices.warning.more.text().startswith("3 parameters gather")
    notices.take([Record(9, 2, 0.0, started)])
    assert notices.error.isHidden()
    assert notices.warning.isHidden()


def test_an_icon_has_the_colour_of_its_word(qtbot: QtBot, styled: QApplication) -> None:
    """White on the accent, as the word is; also when the role comes later."""
    made = button("Resume", role="primary", icon_name="resume")
    qtbot.addWidget(made)
    image = made.icon().pixmap(made.iconSize()).toImage()
    opaque = [image.pixelColor(x, y) for x in range(image.width()) for y in range(image.height())]
    (colour,) = {pixel.name() for pixel in opaque if pixel.alpha() == 255}
    assert colour == current_theme().on_accent
