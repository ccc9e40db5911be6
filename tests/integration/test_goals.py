"""Targets that are missed, best checkpoints, early stopping and the way back, with real trainers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradacc_gui.cli import main
from tests.support.trainers import Trainer, events, make_run, merged, run_here, set_recipe
from trainer_backend.best_checkpoint import ranked
from trainer_backend.protocol import (
    AnswerGate,
    CheckpointSaved,
    CommandRefused,
    EvaluationMeasured,
    GateAnswered,
    OptimizerStepMeasured,
    Paused,
    Resume,
    RollBack,
    RolledBack,
    RunFinished,
    RunStopped,
    SetAccumulation,
    SettingChanged,
    TargetJudged,
    Warned,
)
from trainer_backend.run_directory import RunDirectory, checkpoints_in

MODULE = Path(__file__).parent.parent / "support" / "goal_task.py"
RECIPE: dict[str, Any] = {
    "run": {"device": "cpu", "precision": "fp32", "max_samples": 32, "readings_every_s": 0.05},
    "data": {"shuffle": False},
    "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
    "optimizer": {"name": "sgd", "learning_rate": 0.25},
    "checkpoint": {"every_samples": 4, "keep": 2},
    "evaluation": {"every_samples": 4},
}


def goal_run(folder: Path, losses: list[float], *tables: dict[str, Any], **options: Any) -> RunDirectory:
    """A run of eight steps of four samples, with an evaluation and a checkpoint after each."""
    task = {"task": {"options": {"losses": losses, **options}}}
    return make_run(folder, merged(RECIPE, *tables, task), module=MODULE)


def steps_on_disk(run: RunDirectory) -> list[int]:
    """The checkpoints' steps."""
    return list(checkpoints_in(run.checkpoints_path))


# ------------------------------------------------------------------------- best checkpoints


def test_the_best_checkpoint_stays_beside_the_newest(tmp_path: Path) -> None:
    """By the validation loss; it says why it was kept."""
    run = goal_run(tmp_path, [5, 3, 1, 2, 4, 4, 4, 4], {"checkpoint": {"keep_best": 1}})
    assert run_here(run) == 0
    assert steps_on_disk(run) == [3, 7, 8]
    best = [saved for saved in events(run, CheckpointSaved) if saved.kept_as == "best"]
    assert [(saved.step, saved.value) for saved in best] == [(1, 5.0), (2, 3.0), (3, 1.0)]
    assert ranked(run.checkpoints_path, "loss", "min")[0] == (3, 1.0)


def test_the_best_are_kept_by_any_metric_and_either_way(tmp_path: Path) -> None:
    """Two of them, the larger the better."""
    asked = {"checkpoint": {"keep_best": 2, "metric": "accuracy", "mode": "max", "keep": 1}}
    run = goal_run(tmp_path, [0.5, 0.1, 0.4, 0.2, 0.9, 0.9, 0.9, 0.9], asked)
    assert run_here(run) == 0
    assert steps_on_disk(run) == [2, 4, 8]


def test_a_metric_that_nobody_measures_is_said_once(tmp_path: Path) -> None:
    """With the names of what is measured."""
    run = goal_run(tmp_path, [1.0], {"checkpoint": {"keep_best": 1, "metric": "f1"}})
    assert run_here(run) == 0
    (said,) = [event for event in events(run, Warned) if event.code == "metric-not-measured"]
    assert said.values == {"key": "checkpoint.metric", "name": "f1", "known": "accuracy, loss"}


def test_a_run_is_resumed_from_its_best_checkpoint(tmp_path: Path) -> None:
    """By command, after its end; the recipe was given more."""
    run = goal_run(tmp_path, [5, 1, 3, 3, 3, 3, 3, 3], {"checkpoint": {"keep_best": 1}})
    assert run_here(run) == 0
    assert main(["resume", run.id, "--from-best", "--json"]) == 0
    (back,) = events(run, RolledBack)
    assert (back.from_step, back.to_step) == (8, 2)
    assert len(events(run, RunFinished)) == 2


def test_without_a_measured_checkpoint_there_is_no_best_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentence that says what to set."""
    run = goal_run(tmp_path, [1.0], {"evaluation": {"every_samples": 1000}})
    assert run_here(run) == 0
    assert main(["resume", run.id, "--from-best"]) == 2
    assert "checkpoint.keep_best" in capsys.readouterr().err


# --------------------------------------------------------------------------- early stopping


def test_a_run_ends_when_its_metric_has_stopped_getting_better(tmp_path: Path) -> None:
    """Two evaluations without a better value; the run has finished, with that reason."""
    run = goal_run(tmp_path, [5, 4, 4.5, 4, 1, 1], {"early_stopping": {"patience": 2}})
    assert run_here(run) == 0
    (ended,) = events(run, RunFinished)
    assert (ended.step, ended.reason) == (4, "early-stopping")
    assert len(events(run, EvaluationMeasured)) == 4


def test_patience_counts_over_an_interruption(tmp_path: Path) -> None:
    """What earlier attempts measured counts, without what was gone behind."""
    run = goal_run(tmp_path, [5, 6], {"early_stopping": {"patience": 3}, "run": {"max_samples": 8}})
    assert run_here(run) == 0
    set_recipe(run, **{"run.max_samples": 32, "task.options.losses": [7]})
    assert run_here(run) == 0
    assert [(ended.step, ended.reason) for ended in events(run, RunFinished)] == [
        (2, "max_samples"),
        (4, "early-stopping"),
    ]


# ------------------------------------------------------------------------------- the targets


def verdicts(run: RunDirectory, key: str) -> list[tuple[int, str]]:
    """Steps and verdicts of a target while the run trained."""
    return [
        (fact.step, fact.verdict)
        for fact in events(run, TargetJudged)
        if fact.key == key and not fact.is_final
    ]


def target(limit: float, act: str, by_sample: int = 8) -> dict[str, Any]:
    """A loss of at most `limit` by the second step."""
    metric = {"name": "loss", "at_most": limit, "by_sample": by_sample, "on_miss": act}
    return {"targets": {"metric": [metric]}}


def test_a_metric_is_not_yet_known_then_missed_then_met(tmp_path: Path) -> None:
    """By sample 8; a note changes nothing."""
    run = goal_run(tmp_path, [5, 4, 4, 1, 1], target(2.0, "note"))
    assert run_here(run) == 0
    assert verdicts(run, "targets.metric.loss") == [
        (0, "unknown"), (1, "unknown"), (2, "missed"), (4, "met"),
    ]  # fmt: skip
    (final,) = [fact for fact in events(run, TargetJudged) if fact.is_final]
    assert (final.verdict, final.reached) == ("missed", 4.0)  # it was to be reached by then


def test_a_miss_stops_the_run_where_that_was_chosen(tmp_path: Path) -> None:
    """With a checkpoint, and the reason."""
    run = goal_run(tmp_path, [5, 4, 4], target(2.0, "stop"))
    assert run_here(run) == 0
    (ended,) = events(run, RunStopped)
    assert (ended.step, ended.reason) == (2, "target")
    assert steps_on_disk(run)[-1] == 2


def test_a_miss_rolls_back_once_then_asks(tmp_path: Path) -> None:
    """To the best checkpoint, with a lower learning rate; nobody answers, so the run stops."""
    asked = {
        "targets": {
            "on_miss": "roll-back", "pause_minutes": 0.001, "no_answer": "stop",
            "metric": [{"name": "loss", "at_most": 3.5, "by_sample": 8}],
        },
        "checkpoint": {"keep_best": 1},
    }  # fmt: skip
    run = goal_run(tmp_path, [3, 9, 3, 9, 9, 9], asked)
    assert run_here(run) == 0
    (back,) = events(run, RolledBack)
    assert (back.from_step, back.to_step, back.cause) == (2, 1, "targets.metric.loss")
    (changed,) = events(run, SettingChanged)
    assert (changed.key, changed.before, changed.after) == ("optimizer.learning_rate", 0.25, 0.125)
    (answered,) = events(run, GateAnswered)
    assert (answered.answer, answered.asked_by) == ("stop", "timeout")
    assert events(run, RunStopped)[0].reason == "target"
    incident = json.loads((run.path / back.incident).read_text())
    assert incident["cause"] == "targets.metric.loss"
    assert incident["steps"][-1]["step"] == 2
    assert incident["environment"]["versions"]["torch"]


def test_a_paused_run_goes_on_when_a_person_says_why(tmp_path: Path) -> None:
    """The reason is recorded, and the target asks no more."""
    run = goal_run(tmp_path, [5], target(2.0, "pause"), {"run": {"max_samples": 40}}, length=400)
    with Trainer(run) as trainer:
        trainer.wait_for_kind(Paused)
        refused = trainer.ask(RollBack(step=77))
        assert isinstance(refused, CommandRefused)
        trainer.ask(AnswerGate(answer="continue", reason="warm-up", asked_by="me"))
        trainer.end()
        assert trainer.wait() == 0
    (answered,) = events(run, GateAnswered)
    assert (answered.key, answered.reason, answered.asked_by) == ("targets.metric.loss", "warm-up", "me")
    assert len(events(run, Paused)) == 1
    final = events(run, TargetJudged)[-1]
    assert final.is_final
    assert final.overridden


def test_resume_answers_the_question_too(tmp_path: Path) -> None:
    """Without a reason; and nobody is asked when nothing waits."""
    run = goal_run(tmp_path, [5], target(2.0, "pause"))
    with Trainer(run) as trainer:
        trainer.wait_for_kind(Paused)
        trainer.ask(Resume(asked_by="me"))
        trainer.end()
    (answered,) = events(run, GateAnswered)
    assert (answered.answer, answered.reason) == ("continue", "")


def test_speed_and_sums_are_judged_while_the_run_trains(tmp_path: Path) -> None:
    """Step times once there are enough; money is expected, and missed once it is spent; energy is unknown."""
    asked = {
        "targets": {
            "step_time": 1e-9, "step_time_p95": 100.0, "throughput": 1e9, "money": 1e-12, "cost": 1.0,
            "time_to_finish": 10.0, "peak_memory": 1e6, "on_miss": "note",
        },
        "prices": {"per_hour": 1.0, "currency": "EUR"},
        "run": {"max_samples": 400}, "evaluation": {"every_samples": 1000},
        "checkpoint": {"every_samples": 1000},
    }  # fmt: skip
    run = goal_run(tmp_path, [1.0], asked, length=1000, duration_s=0.004)
    assert run_here(run) == 0
    told = {fact.key: fact for fact in events(run, TargetJudged) if not fact.is_final}
    assert {key: fact.verdict for key, fact in told.items()} == {
        "targets.step_time": "missed", "targets.step_time_p95": "met", "targets.throughput": "missed",
        "targets.money": "missed", "targets.cost": "unknown", "targets.time_to_finish": "unknown",
        "targets.peak_memory": "met",
    }  # fmt: skip
    final = {fact.key: fact for fact in events(run, TargetJudged) if fact.is_final}
    assert final["targets.time_to_finish"].verdict == "met"
    assert final["targets.cost"].reached is None
    duration_s = sum(step.duration_s for step in events(run, OptimizerStepMeasured))
    assert final["targets.money"].reached == pytest.approx(duration_s / 3600)


# ------------------------------------------------------------------------------ the way back


def test_a_roll_back_leaves_out_the_samples_that_came_after(tmp_path: Path) -> None:
    """The next window takes the samples behind them; the incident says how many were left out."""
    seen = tmp_path / "seen"
    asked = {"checkpoint": {"every_samples": 8, "keep": 5}, "run": {"max_samples": 400}}
    run = goal_run(tmp_path, [1.0], asked, length=4000, duration_s=0.02, seen=str(seen))
    with Trainer(run) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.step >= 7)
        trainer.ask(RollBack(step=2, skip_samples=True, learning_rate_factor=0.5))
        back = trainer.wait_for_kind(RolledBack)
        trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.samples_seen == 12 and step.step == 3)
        trainer.wait_for_kind(SettingChanged, lambda fact: fact.after == 0.125)
    lines = [int(line.split()[0]) for line in seen.read_text().splitlines()]
    assert lines == sorted(lines), "no sample came twice"
    assert back.to_step == 2
    assert back.samples_left_out == 4 * (back.from_step - 2)
    assert (run.path / back.incident).is_file()


def test_a_damaged_checkpoint_of_the_ring_gives_way_to_the_next_older(tmp_path: Path) -> None:
    """And it is said."""
    asked = {"checkpoint": {"every_samples": 4, "keep": 50}, "run": {"max_samples": 400}}
    run = goal_run(tmp_path, [1.0], asked, length=4000, duration_s=0.02)
    with Trainer(run) as trainer:
        trainer.wait_for_kind(CheckpointSaved, lambda saved: saved.step >= 4)
        (checkpoints_in(run.checkpoints_path)[3] / "model.safetensors").write_bytes(b"broken")
        trainer.ask(RollBack(step=3))
        assert trainer.wait_for_kind(RolledBack).to_step == 2
        said = trainer.wait_for_kind(Warned, lambda event: event.code == "checkpoint-damaged")
    assert said.values["step"] == 3


def test_a_checkpoint_lies_before_each_live_change_where_that_is_asked(tmp_path: Path) -> None:
    """So that the change can be taken back."""
    asked = {
        "checkpoint": {"every_samples": 1000, "before_changes": True}, "run": {"max_samples": 400},
    }  # fmt: skip
    run = goal_run(tmp_path, [1.0], asked, length=4000, duration_s=0.02)
    with Trainer(run) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.step >= 2)
        accepted = trainer.ask(SetAccumulation(steps=3))
        saved = trainer.wait_for_kind(CheckpointSaved)
        assert saved.kept_as == "before-change"
        assert saved.step == getattr(accepted, "applies_at_step", 0) - 1
