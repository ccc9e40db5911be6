"""A live run whose folder or journal is taken from under it: said, saved where it lies, resumable."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.trainers import Trainer, events, make_probe, run_here, set_recipe
from trainer_backend.protocol import (
    CheckpointSaved,
    OptimizerStepMeasured,
    RunFailed,
    RunFinished,
    RunStarted,
)
from trainer_backend.run_directory import RunDirectory, checkpoints_in
from trainer_backend.trainer import checkpoint

ENDLESS = {"run": {"max_samples": 10**7}, "checkpoint": {"every_minutes": "never"}}


@pytest.fixture
def live(tmp_path: Path) -> RunDirectory:
    """A run that would train for minutes."""
    return make_probe(tmp_path, ENDLESS, length=1000, duration_s=0.01)


def test_a_renamed_run_saves_where_it_lies_now_and_goes_on_from_there(live: RunDirectory) -> None:
    """Its old path was made anew, with the final weights in it, while the window said it had crashed."""
    with Trainer(live) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured)
        moved = RunDirectory(live.path.rename(live.path.with_name("renamed")))
        assert trainer.wait() == 1
    assert not live.path.exists()
    (failed,) = events(moved, RunFailed)
    assert failed.code == "run-moved"
    assert failed.reason == (
        f"The run's folder was moved from {live.path} to {moved.path} while it trained. The checkpoint of"
        f" step {failed.step} was saved there. Continue with: gradacc resume {moved.path}"
    )
    assert list(checkpoints_in(moved.checkpoints_path)) == [failed.step]
    set_recipe(moved, **{"run.max_samples": (failed.step + 2) * 4, "task.options.duration_s": 0.0})
    assert run_here(moved) == 0
    assert [started.from_step for started in events(moved, RunStarted)] == [0, failed.step]
    assert [step.step for step in events(moved, OptimizerStepMeasured)] == list(range(1, failed.step + 3))


def test_a_deleted_run_ends_and_its_folder_is_not_made_again(live: RunDirectory, tmp_path: Path) -> None:
    """There is nowhere to say so but in what the process prints."""
    log = tmp_path / "log"
    with Trainer(live) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured)
        log.hardlink_to(live.log_path)
        shutil.rmtree(live.path)
        assert trainer.wait() == 1
    assert not live.path.exists()
    assert f"The run's folder {live.path} was deleted or replaced while it trained" in log.read_text("utf-8")


def test_another_folder_at_the_runs_path_is_left_alone(live: RunDirectory) -> None:
    """A copy that is put there belongs to whoever put it."""
    with Trainer(live) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured)
        moved = RunDirectory(live.path.rename(live.path.with_name("renamed")))
        live.path.mkdir()
        assert trainer.wait() == 1
    assert list(live.path.iterdir()) == []
    (failed,) = events(moved, RunFailed)
    assert failed.code == "run-moved"
    assert list(checkpoints_in(moved.checkpoints_path)) == [failed.step]


def test_a_journal_that_is_removed_under_its_trainer_is_written_again(live: RunDirectory) -> None:
    """Readers saw a run without a history that trained on; now it ends, whole, and can be resumed."""
    with Trainer(live) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured)
        for path in live.path.glob("run.sqlite*"):
            path.unlink()
        assert trainer.wait() == 1
    (failed,) = events(live, RunFailed)
    assert failed.code == "run-moved"
    assert failed.reason.startswith(f"run.sqlite was removed from {live.path} while the run trained.")
    assert [saved.step for saved in events(live, CheckpointSaved)] == [failed.step]
    assert [step.step for step in events(live, OptimizerStepMeasured)] == list(range(1, failed.step + 1))
    set_recipe(live, **{"run.max_samples": (failed.step + 2) * 4, "task.options.duration_s": 0.0})
    assert run_here(live) == 0
    assert len(events(live, RunFinished)) == 1


def test_a_checkpoint_that_was_passed_over_is_set_aside_for_good(tmp_path: Path) -> None:
    """Two attempts later it came back, repaired or readable again, with another course of the run."""
    run = make_probe(tmp_path, {"run": {"max_samples": 24}, "checkpoint": {"every_samples": 8}}, length=100)
    assert run_here(run) == 0
    newest = checkpoints_in(run.checkpoints_path)[6]
    whole = (newest / checkpoint.MODEL).read_bytes()
    (newest / checkpoint.MODEL).write_bytes(b"")
    set_recipe(run, **{"run.max_samples": 20})
    assert run_here(run) == 0
    assert events(run, RunStarted, attempt=2)[0].from_step == 4
    aside = run.checkpoints_path / "step-000000006.unreadable-1"
    (aside / checkpoint.MODEL).write_bytes(whole)
    set_recipe(run, **{"run.max_samples": 28})
    assert run_here(run) == 0
    assert events(run, RunStarted, attempt=3)[0].from_step == 5
    assert aside.is_dir()
