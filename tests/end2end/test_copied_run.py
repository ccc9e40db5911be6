"""A copied run directory is a run of its own, which nobody takes for its original."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from gradacc_gui.session.stopping import Act, perform
from gradacc_gui.window.main_window import MainWindow
from tests.end2end.hand import Hand
from tests.support.trainers import Trainer, events, make_probe, records
from trainer_backend.errors import RunDirectoryError
from trainer_backend.protocol import (
    CheckpointSaved,
    MicroBatchMeasured,
    OptimizerStepMeasured,
    RunFinished,
    RunStarted,
    SaveCheckpoint,
)
from trainer_backend.run_directory import RunDirectory, all_runs

MakeWindow = Callable[[], MainWindow]


def copy_of(run: RunDirectory) -> RunDirectory:
    """As a file manager copies it, beside its original."""
    return RunDirectory(Path(shutil.copytree(run.path, run.path.with_name("a-copy"))))


def test_a_copy_of_a_live_run_is_interrupted_and_goes_on_by_itself(
    qtbot: QtBot, make_window: MakeWindow, tmp_path: Path
) -> None:
    """Its trainer.lock names the original's process, to which nothing can be done from here."""
    run = make_probe(tmp_path, {"run": {"max_optimizer_steps": 100_000}}, length=10_000_000, duration_s=0.01)
    with Trainer(run) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.step >= 3)
        trainer.ask(SaveCheckpoint())
        saved = trainer.wait_for_kind(CheckpointSaved)
        copy = copy_of(run)
        assert copy.pid() == trainer.process.pid

        hand = Hand(qtbot, make_window())
        hand.window.open_run(copy)
        hand.wait_for_interruption()
        buttons = hand.window.live.side.buttons
        assert not buttons.pause.isVisible()
        assert not buttons.stop.isVisible()
        assert not hand.window.live.side.n_panel.apply.isEnabled()
        for act in (Act.TERMINATE, Act.KILL):
            with pytest.raises(RunDirectoryError, match="cannot be ended from here"):
                perform(act, copy, asked_by="someone")
        assert trainer.process.poll() is None

        hand.click("resume")
        hand.start_anyway()
        hand.wait_for_state("running")
        hand.wait_for_steps(2)
        started = events(copy, RunStarted)
        assert [fact.from_step for fact in started] == [0, saved.step]
        assert copy.is_alive()
        assert copy.pid() != trainer.process.pid
        hand.set_n("2")
        hand.wait(lambda: hand.answer().startswith("N = 2 since step"))

        reached = events(run, OptimizerStepMeasured)[-1].step
        trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.step > reached)
        assert trainer.process.poll() is None
        assert len(events(run, RunStarted)) == 1
        assert {step.micro_batches for step in events(run, OptimizerStepMeasured)} == {4}
        numbers = [record.seq for record in records(run)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert {found.id for found in all_runs()} == {run.id, copy.id}


def test_a_copy_of_a_finished_run_is_finished_and_shows_all_of_it(
    qtbot: QtBot, make_window: MakeWindow, tmp_path: Path
) -> None:
    """It is not alive, offers no command, and its original is left alone."""
    run = make_probe(tmp_path, {"run": {"max_samples": 40}}, length=1000)
    with Trainer(run) as trainer:
        assert isinstance(trainer.end(), RunFinished)
    copy = copy_of(run)
    before, told = _contents(run), records(copy)
    assert copy.pid() == trainer.process.pid
    assert not copy.is_alive()

    hand = Hand(qtbot, make_window())
    hand.window.open_run(copy)
    hand.wait_for_state("finished")
    hand.wait(lambda: hand.window.header.steps.value.text() == "4")
    hand.has_missed_nothing(copy)
    assert len(events(copy, MicroBatchMeasured)) == 40
    assert not hand.window.live.side.buttons.resume.isVisible()
    assert not hand.window.live.side.n_panel.apply.isEnabled()
    assert hand.window.live.notices.problem.isHidden()
    hand.window.close()
    assert records(copy) == told
    assert _contents(run) == before


def _contents(run: RunDirectory) -> dict[str, bytes]:
    return {
        os.path.relpath(path, run.path): path.read_bytes()
        for path in sorted(run.path.rglob("*"))
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }
