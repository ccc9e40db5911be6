"""Back to an earlier checkpoint: by a new attempt of a run that has ended, by command in a live one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradacc_gui.cli import main
from gradacc_gui.run.attachment import Attachment
from tests.support.trainers import Trainer, events, make_probe, make_run, records, run_here, set_recipe
from trainer_backend.journal_reader import JournalReader
from trainer_backend.protocol import (
    AccumulationChanged,
    CheckpointSaved,
    NonFiniteSeen,
    OptimizerStepMeasured,
    Pause,
    Paused,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    SaveCheckpoint,
    SetAccumulation,
    SetLearningRate,
)
from trainer_backend.run_directory import RunDirectory, checkpoints_in
from trainer_backend.run_facts import RunFacts
from trainer_backend.trainer import checkpoint

MODULE = Path(__file__).parent.parent / "support" / "diverging_task.py"
RECIPE = {
    "run": {"device": "cpu", "precision": "fp32", "max_samples": 32},
    "data": {"shuffle": True},
    "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
    "checkpoint": {"every_samples": 4, "keep": 10},
}


def diverged(folder: Path) -> tuple[RunDirectory, Path]:
    """A run that failed in its windows 3, 4 and 5; and the file that makes it so."""
    cause = folder / "cause"
    run = make_run(folder, RECIPE, module=MODULE)
    set_recipe(run, **{"task.options.updates": 2, "task.options.while_there": str(cause)})
    cause.touch()
    assert run_here(run) == 1
    return run, cause


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    """Of the newest checkpoint."""
    return checkpoint.read(list(checkpoints_in(run.checkpoints_path).values())[-1]).model


def test_a_run_that_diverged_goes_back_to_its_last_good_checkpoint_by_command(tmp_path: Path) -> None:
    """What is offered lies before the first NaN, and the end is that of a run that never had one."""
    run, cause = diverged(tmp_path / "bad")
    (failed,) = events(run, RunFailed)
    assert {fact.step for fact in events(run, NonFiniteSeen)} == {3, 4, 5}
    assert [saved.step for saved in events(run, CheckpointSaved)] == [1, 2, 3, 4]
    assert failed.values["checkpoint_step"] == 2

    cause.unlink()
    assert main(["resume", run.id, "--from-step", "2", "--json"]) == 0
    (back,) = events(run, RolledBack)
    assert (back.from_step, back.to_step, back.to_samples) == (4, 2, 8)
    assert events(run, RunStarted, attempt=2)[0].from_step == 2
    assert [step.step for step in events(run, OptimizerStepMeasured, attempt=2)] == [3, 4, 5, 6, 7, 8]
    assert len(events(run, RunFinished)) == 1
    reader = JournalReader(run.journal_path)
    so_now = RunFacts().take_all(reader.facts())
    reader.close()
    gone = [
        record.event.step
        for record in records(run)
        if isinstance(record.event, OptimizerStepMeasured)
        and so_now.is_superseded(record.seq, record.event.step)
    ]
    assert gone == [3, 4]

    never, its_cause = make_run(tmp_path / "good", RECIPE, module=MODULE), tmp_path / "none"
    set_recipe(never, **{"task.options.while_there": str(its_cause)})
    assert run_here(never) == 0
    assert all(torch.equal(tensor, weights(never)[name]) for name, tensor in weights(run).items())


def test_a_step_without_a_checkpoint_is_a_sentence_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line and in the trainer itself; the checkpoints stay as they are."""
    run, _cause = diverged(tmp_path)
    before = records(run)
    assert main(["resume", run.id, "--from-step", "7"]) == 2
    assert (
        f"{run.id} has no checkpoint of step 7. Those of steps 1, 2, 3, 4 are there."
        in capsys.readouterr().err
    )
    assert records(run) == before
    assert main(["rollback", run.id, "2"]) != 0
    assert f"gradacc resume {run.id} --from-step K" in capsys.readouterr().err
    assert run_here(run, from_step=7) == 2
    assert "no checkpoint of step 7" in events(run, RunFailed)[-1].reason
    assert list(checkpoints_in(run.checkpoints_path)) == [1, 2, 3, 4]


def test_a_live_run_goes_back_by_command_and_no_second_trainer_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gradacc rollback` takes it there; `gradacc resume --from-step` says that the run is live."""
    run = make_probe(tmp_path, {"run": {"max_samples": 10**6}}, duration_s=0.005, length=100)
    with Trainer(run) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured)
        sent = trainer.send(SaveCheckpoint())
        saved = trainer.wait_for_kind(CheckpointSaved, lambda fact: fact.command_id == sent)
        trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.step > saved.step + 1)
        trainer.ask(Pause())
        paused = trainer.wait_for_kind(Paused)
        assert main(["resume", run.id, "--from-step", str(saved.step)]) == 2
        assert f"gradacc rollback {run.id} {saved.step}" in capsys.readouterr().err
        assert main(["rollback", run.id, "100000"]) == 2
        assert "no checkpoint of step 100000" in capsys.readouterr().err
        assert main(["rollback", run.id, str(saved.step)]) == 0
        back = trainer.wait_for_kind(RolledBack)
        assert (back.from_step, back.to_step) == (paused.step, saved.step)
    assert "Accepted" in capsys.readouterr().out


def test_what_was_changed_after_the_checkpoint_is_not_repeated(tmp_path: Path) -> None:
    """Neither in the attempt that goes back nor in a later one."""
    run = make_probe(tmp_path, {"run": {"max_samples": 10**6}}, duration_s=0.005, length=100)
    with Trainer(run) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured)
        sent = trainer.send(SaveCheckpoint())
        saved = trainer.wait_for_kind(CheckpointSaved, lambda fact: fact.command_id == sent)
        trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.step > saved.step)
        trainer.ask(SetAccumulation(steps=2))
        changed = trainer.wait_for_kind(AccumulationChanged)
        trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.step > changed.step)
        trainer.kill()
    set_recipe(run, **{"run.max_samples": saved.samples_seen + 40, "task.options.duration_s": 0.0})
    assert run_here(run, from_step=saved.step) == 0
    assert {step.accumulation_steps for step in events(run, OptimizerStepMeasured, attempt=2)} == {4}
    set_recipe(run, **{"run.max_samples": saved.samples_seen + 80})
    assert run_here(run) == 0
    assert {step.accumulation_steps for step in events(run, OptimizerStepMeasured, attempt=3)} == {4}


def test_the_window_shows_what_is_in_force_after_going_back(tmp_path: Path) -> None:
    """Learning rate 1, a checkpoint, 7, back by a new attempt: it trains with 1, and says so."""
    run = make_probe(tmp_path, {"run": {"max_samples": 10**6}}, duration_s=0.005, length=100)
    with Trainer(run) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured)
        sent = trainer.send(SaveCheckpoint())
        saved = trainer.wait_for_kind(CheckpointSaved, lambda fact: fact.command_id == sent)
        trainer.ask(SetLearningRate(value=7.0))
        trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.learning_rate == 7.0)
        trainer.kill()
    set_recipe(run, **{"run.max_samples": saved.samples_seen + 40, "task.options.duration_s": 0.0})
    assert run_here(run, from_step=saved.step) == 0
    assert {step.learning_rate for step in events(run, OptimizerStepMeasured, attempt=2)} == {1.0}
    shown = Attachment(run)
    while shown.tick() or not shown.store.caught_up:
        pass
    assert shown.settings is not None
    assert shown.settings.learning_rate == 1.0
    shown.close()
