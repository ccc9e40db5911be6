"""A resume says what it did not do, and does what it can: recipe, data and surroundings are compared."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainers import events, make_run, run_here, set_recipe
from trainer_backend.protocol import OptimizerStepMeasured, RunFailed, SettingChanged, Warned
from trainer_backend.run_directory import RunDirectory, checkpoints_in
from trainer_backend.trainer import checkpoint

TASK = """
import json, pathlib, torch
from trainer_backend.tasks import Datasets, LossTerm

class Task:
    def model(self):
        torch.manual_seed(0)
        return torch.nn.Linear(2, 1)
    def datasets(self):
        length, value = json.loads(pathlib.Path(__file__).with_name("data.json").read_text())
        return Datasets(train=[torch.full((2,), value + i) for i in range(length)])
    def loss(self, model, batch):
        return LossTerm((model(batch) ** 2).sum(), len(batch))
"""


def write_data(folder: Path, *, length: int = 64, value: float = 0.0) -> None:
    """What the task reads: so many samples from `value` on."""
    (folder / "data.json").write_text(json.dumps([length, value]), encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A finished run of two windows."""
    recipe: dict[str, Any] = {
        "run": {"max_samples": 8, "device": "cpu"},
        "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3, "weight_decay": 0.0},
    }
    (tmp_path / "small.py").write_text(TASK, encoding="utf-8")
    write_data(tmp_path)
    made = make_run(tmp_path, recipe, module=tmp_path / "small.py")
    assert run_here(made) == 0
    return made


def said(run: RunDirectory) -> dict[str, list[dict[str, Any]]]:
    """What attempts warned of, by code."""
    found: dict[str, list[dict[str, Any]]] = {}
    for warned in events(run, Warned):
        if warned.code.startswith("nvml"):  # of this machine
            continue
        found.setdefault(warned.code, []).append(warned.values)
    return found


def groups_of(run: RunDirectory) -> list[dict[str, Any]]:
    """The optimizer's groups in the newest checkpoint."""
    newest = list(checkpoints_in(run.checkpoints_path).values())[-1]
    return list(checkpoint.read(newest).state["optimizer"]["groups"])


def test_a_weight_decay_that_was_0_is_applied(run: RunDirectory) -> None:
    """It was recorded, and the optimizer kept 0: there was no ratio to multiply with."""
    set_recipe(run, **{"run.max_samples": 16, "optimizer.weight_decay": 0.1})
    assert run_here(run) == 0
    (changed,) = [fact for fact in events(run, SettingChanged) if fact.key == "optimizer.weight_decay"]
    assert (changed.before, changed.after) == (0.0, 0.1)
    assert [group["weight_decay"] for group in groups_of(run)] == [0.1]


def test_the_optimizers_constants_follow_the_recipe(run: RunDirectory) -> None:
    """Epsilon and the first beta came back with the checkpoint's groups, without a word."""
    set_recipe(run, **{"run.max_samples": 16, "optimizer.eps": 1e-6, "optimizer.betas": [0.8, 0.95]})
    assert run_here(run) == 0
    (group,) = groups_of(run)
    assert (group["eps"], group["betas"][0]) == (1e-6, 0.8)
    assert {values["key"] for values in said(run)["recipe-changed"]} == {"optimizer.eps", "optimizer.betas"}
    assert [values["key"] for values in said(run)["length-changed"]] == ["run.max_samples"]


@pytest.mark.parametrize(
    ("key", "value"), [("run.seed", 7), ("data.shuffle", False), ("optimizer.name", "sgd")]
)
def test_what_would_repeat_samples_or_lose_state_is_refused(run: RunDirectory, key: str, value: Any) -> None:
    """With what it was, what it is, and why."""
    set_recipe(run, **{"run.max_samples": 16, key: value})
    assert run_here(run) == 1
    reason = events(run, RunFailed)[-1].reason
    assert reason.startswith(f"{key} was ")
    assert "Set it back, or start a new run." in reason
    assert len(events(run, OptimizerStepMeasured)) == 2


def test_other_data_is_said_and_another_number_of_samples_refused(run: RunDirectory, tmp_path: Path) -> None:
    """The order of the samples follows from their number."""
    write_data(tmp_path, value=10.5)
    set_recipe(run, **{"run.max_samples": 16})
    assert run_here(run) == 0
    assert "data-changed" in said(run)
    write_data(tmp_path, length=65, value=10.5)
    set_recipe(run, **{"run.max_samples": 24})
    assert run_here(run) == 1
    assert "has 65 samples, and had 64" in events(run, RunFailed)[-1].reason


def test_files_of_the_data_are_compared_by_size_and_time(tmp_path: Path) -> None:
    """The sixteen samples compared need not be those that changed."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(3):
        (texts / f"{number}.txt").write_text("plain words, some of them twice. " * 40, encoding="utf-8")
    recipe: dict[str, Any] = {
        "run": {"max_samples": 2, "device": "cpu"},
        "task": {"kind": "language-model", "context_length": 16, "layers": 1, "width": 8, "heads": 1},
        "data": {"path": str(texts), "pattern": "*.txt"},
        "accumulation": {"micro_batch_size": 1, "gradient_accumulation_steps": 2},
    }
    run = make_run(tmp_path, recipe)
    assert run_here(run) == 0
    last = texts / "2.txt"
    os.utime(last, ns=(1, 1))
    set_recipe(run, **{"run.max_samples": 4})
    assert run_here(run) == 0
    assert "data-files-touched" in said(run)
    (texts / "3.md").write_text("not read by this pattern, but there", encoding="utf-8")
    set_recipe(run, **{"run.max_samples": 6})
    assert run_here(run) == 0
    assert "data-files-changed" in said(run)


def test_a_resume_under_the_same_recipe_says_nothing(run: RunDirectory) -> None:
    """Only the longer run."""
    set_recipe(run, **{"run.max_samples": 16})
    assert run_here(run) == 0
    assert set(said(run)) == {"length-changed"}
