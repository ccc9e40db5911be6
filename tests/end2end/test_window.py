"""A person's whole way through the window, with a real trainer: nothing is simulated but the hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomlkit
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from gradacc_gui.window.main_window import MainWindow
from tests.end2end.hand import Hand, kill
from tests.support.trainers import events
from trainer_backend.protocol import (
    AccumulationChanged,
    CheckpointSaved,
    MicroBatchMeasured,
    OptimizerStepMeasured,
    Paused,
    RunFailed,
    RunStarted,
    RunStopped,
)
from trainer_backend.run_directory import RunDirectory, all_runs

MakeWindow = Callable[[], MainWindow]


def window_sizes(run: RunDirectory, *, attempt: int = 1) -> dict[int, int]:
    """Micro-batches measured in each window that was closed."""
    # First, for the run goes on: of a window that closes meanwhile not all may have been read.
    closed = {step.step for step in events(run, OptimizerStepMeasured, attempt=attempt)}
    counts: dict[int, int] = {}
    for micro in events(run, MicroBatchMeasured, attempt=attempt):
        counts[micro.step] = counts.get(micro.step, 0) + 1
    return {step: count for step, count in counts.items() if step in closed}


def test_a_run_is_started_steered_paused_saved_and_stopped(
    qtbot: QtBot, make_window: MakeWindow, small: dict[str, Any], tmp_path: Path
) -> None:
    """Form ▸ Start ▸ N 4 → 3 at a border ▸ pause ▸ resume ▸ checkpoint ▸ stop, told by facts throughout."""
    window = make_window()
    hand = Hand(qtbot, window)
    run = hand.start(small, tmp_path)
    assert window.page() == "live"
    hand.wait(lambda: window.header.effective.value.text() == "8")

    hand.set_n("3")
    hand.wait(lambda: hand.answer().startswith("N = 3 since step"))
    hand.wait_for_steps(3)
    changed = events(run, AccumulationChanged)[-1]
    assert (changed.before, changed.after) == (4, 3)
    sizes = window_sizes(run)
    assert {count for step, count in sizes.items() if step < changed.step} == {4}
    assert {count for step, count in sizes.items() if step >= changed.step} == {3}
    assert window.header.effective.value.text() == "6"
    before = [step.samples for step in events(run, OptimizerStepMeasured) if step.step < changed.step]
    assert changed.samples_seen == sum(before)
    told = f"N 4 → 3 at step {changed.step:,}, after {changed.samples_seen:,} samples"
    assert any(line.startswith(told) for line in hand.log())
    assert any(line.startswith("You requested N 4 → 3") for line in hand.log())

    hand.click("pause")
    hand.wait_for_state("paused")
    paused = events(run, Paused)[-1]
    hand.wait(lambda: not window.live.notices.paused.isHidden())
    assert events(run, OptimizerStepMeasured)[-1].step == paused.step
    hand.click("pause")
    hand.wait_for_state("running")
    hand.wait_for_steps(2)

    hand.click("checkpoint")
    hand.wait(lambda: bool(events(run, CheckpointSaved)))
    saved = events(run, CheckpointSaved)[0].step
    hand.wait(lambda: f"Checkpoint at step {saved:,}" in hand.log())

    window.live.side.buttons.stop_clean.trigger()
    hand.wait_for_state("stopped")
    assert events(run, RunStopped)[-1].reason == "stop"
    assert not run.is_alive()
    assert not window.live.side.n_panel.apply.isEnabled()


def test_a_killed_trainer_is_interrupted_and_many_clicks_on_resume_start_one_attempt(
    qtbot: QtBot, make_window: MakeWindow, small: dict[str, Any], tmp_path: Path
) -> None:
    """kill -9 ▸ interrupted, in both windows ▸ two clicks here, one there ▸ one new attempt that goes on."""
    one, other = Hand(qtbot, make_window()), Hand(qtbot, make_window())
    run = one.start(small, tmp_path)
    other.window.open_run(run)
    other.wait_for_state("running")
    one.click("checkpoint")
    one.wait(lambda: bool(events(run, CheckpointSaved)))
    saved = events(run, CheckpointSaved)[-1].step
    one.wait_for_steps(2)
    kill(run)
    for hand in (one, other):
        hand.wait_for_interruption()

    for hand in (one, one, other):
        QTest.mouseClick(hand.window.live.side.buttons.resume, Qt.MouseButton.LeftButton)
    for hand in (one, other):
        hand.wait_for_state("running")
        hand.wait_for_steps(1)
        hand.wait_until_idle()
        assert hand.window.live.notices.interrupted.isHidden()
    started = events(run, RunStarted)
    assert len(started) == 2
    assert started[1].from_step == saved
    assert run.is_alive()


def test_a_window_opened_later_misses_nothing_and_two_windows_command_one_run(
    qtbot: QtBot, make_window: MakeWindow, small: dict[str, Any], tmp_path: Path
) -> None:
    """Close the first window, open two others on the live run, steer from both, stop from one."""
    first = make_window()
    run = Hand(qtbot, first).start(small, tmp_path)
    first.close()
    assert run.is_alive()

    one, other = Hand(qtbot, make_window()), Hand(qtbot, make_window())
    for hand in (one, other):
        hand.window.open_run(run)
        hand.wait_for_state("running")
    one.set_n("3")
    one.wait(lambda: one.answer().startswith("N = 3 since step"))
    other.set_n("5")
    other.wait(lambda: other.answer().startswith("N = 5 since step"))
    for hand in (one, other):
        hand.wait_for_n("5")
    assert [event.after for event in events(run, AccumulationChanged)] == [3, 5]
    assert one.answer().startswith("N = 3 since step")

    other.window.live.side.buttons.stop_now.trigger()
    for hand in (one, other):
        hand.wait_for_state("stopped")
        hand.has_missed_nothing(run)


def test_a_run_that_fails_in_the_users_code_says_where(
    qtbot: QtBot, make_window: MakeWindow, tmp_path: Path
) -> None:
    """The banner has the sentence, the place and the last lines; the log tab has all of it."""
    (tmp_path / "broken_task.py").write_text(
        "from trainer_backend.tasks import Datasets\n\n\nclass Task:\n"
        "    def model(self):\n        raise ValueError('no such width')\n"
        "    def datasets(self):\n        return Datasets(train=[1.0] * 8)\n"
        "    def loss(self, model, batch): ...\n"
    )
    recipe = {
        "run": {"max_optimizer_steps": 5, "device": "cpu"},
        "task": {"kind": "custom", "entry": "broken_task:Task"},
        "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 4},
    }
    path = tmp_path / "broken.toml"
    path.write_text(tomlkit.dumps(recipe))
    window = make_window()
    hand = Hand(qtbot, window)
    form = window.form()
    form.set_recipe(path)
    window.show_page("new-run")
    hand.wait(form.start_bar.start.isEnabled)
    form.start_bar.start.click()
    hand.wait_for_state("failed")
    failed = window.live.notices.failed
    hand.wait(lambda: not failed.isHidden())
    assert "no such width" in failed.sentence.text()
    assert "broken_task.py:6" in failed.sentence.text() + failed.more.text()
    assert len(events(all_runs()[0], RunFailed)) == 1
