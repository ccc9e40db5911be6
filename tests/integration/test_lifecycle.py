"""What happens to a run on its way: memory, disk, bad numbers, targets, and what a task shows and leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.trainers import events, make_probe, make_run, records, run_here, set_recipe
from trainer_backend.protocol import (
    AccumulationChanged,
    ArtifactSaved,
    CheckpointSaved,
    EvaluationMeasured,
    NonFiniteSeen,
    OptimizerStepMeasured,
    OutOfMemoryRecovered,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStopped,
    SettingChanged,
    TargetJudged,
    Warned,
)
from trainer_backend.run_directory import RunDirectory


def codes(run: RunDirectory) -> list[str]:
    """Codes of the run's warnings, without those about this machine's readings."""
    found = [event.code for event in events(run, Warned)]
    return [code for code in found if not code.startswith("nvml")]


def test_out_of_memory_halves_the_micro_batch_and_keeps_the_batch(tmp_path: Path) -> None:
    """Micro-batch 8 → 2, N 1 → 4, effective batch 8: said, kept for the windows after, no sample lost."""
    run = make_probe(
        tmp_path,
        {"run": {"max_samples": 24}},
        {"accumulation": {"micro_batch_size": 8, "gradient_accumulation_steps": 1}},
        length=100, largest=2,
    )  # fmt: skip
    assert run_here(run) == 0
    facts = events(run, OutOfMemoryRecovered)
    assert [fact.micro_batch_size for fact in facts] == [4, 2]
    assert {(fact.step, fact.effective_batch) for fact in facts} == {(1, 8)}
    steps = events(run, OptimizerStepMeasured)
    assert [(step.samples, step.micro_batches, step.micro_batch_size) for step in steps] == [(8, 4, 2)] * 3
    assert round((steps[0].gradient_norm or 0) * 8) == 11111111
    (changed,) = events(run, AccumulationChanged)
    assert (changed.step, changed.before, changed.after, changed.asked_by) == (2, 1, 4, "out-of-memory")
    (size,) = events(run, SettingChanged)
    assert (size.key, size.before, size.after) == ("accumulation.micro_batch_size", 8, 2)


def test_a_single_sample_that_does_not_fit_is_a_sentence(tmp_path: Path) -> None:
    """Nothing smaller is left to try."""
    run = make_run(tmp_path, RECIPE, module=module(tmp_path, "raise torch.OutOfMemoryError('full')"))
    assert run_here(run) == 1
    (failed,) = events(run, RunFailed)
    assert "single sample" in failed.reason


RECIPE = {
    "run": {"max_samples": 12, "device": "cpu"},
    "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
    "checkpoint": {"every_samples": 4},
    "optimizer": {"name": "sgd", "learning_rate": 0.01},
}


def module(folder: Path, loss: str = "", more: str = "") -> Path:
    """A small task: `loss` is done before each loss, `more` are further methods."""
    text = SMALL_TASK.replace("LOSS", loss or "pass").replace("MORE", more)
    path = folder / "small.py"
    path.write_text(text, encoding="utf-8")
    return path


SMALL_TASK = """
import torch
from trainer_backend.tasks import Datasets, LossTerm

class Task:
    def __init__(self):
        self.count = 0
    def model(self):
        return torch.nn.Linear(1, 1)
    def datasets(self):
        data = torch.utils.data.TensorDataset(torch.arange(1.0, 13.0)[:, None])
        return Datasets(train=data, validation=data)
    def loss(self, model, batch):
        self.count += model.training
        LOSS
        return LossTerm(model(batch[0]).square().sum(), len(batch[0]))
MORE
"""


def test_a_disk_that_refuses_the_last_checkpoint_fails_the_run_which_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those on the way are said and training goes on; the last is tried for a while. Nothing is finished."""
    monkeypatch.setattr("trainer_backend.trainer.checkpoints.LAST_PATIENCE_S", 0.5)
    monkeypatch.setattr("trainer_backend.trainer.checkpoints.FIRST_WAIT_S", 0.1)
    spoil = (
        "if self.count == 1:\n"
        "            import os, shutil\n"
        "            shutil.rmtree(os.environ['SPOIL'])\n"
        "            open(os.environ['SPOIL'], 'x').close()"
    )
    run = make_run(tmp_path, RECIPE, module=module(tmp_path, spoil))
    monkeypatch.setenv("SPOIL", str(run.checkpoints_path))
    assert run_here(run) == 1
    assert set(codes(run)) == {"checkpoint-not-saved", "last-checkpoint-waits"}
    assert events(run, CheckpointSaved) == []
    (failed,) = events(run, RunFailed)
    assert (failed.code, failed.step) == ("last-checkpoint-not-saved", 3)
    run.checkpoints_path.unlink()
    monkeypatch.setenv("SPOIL", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    assert run_here(run) == 0
    assert len(events(run, RunFinished)) == 1


def test_three_windows_that_are_not_finite_stop_the_run_and_name_a_checkpoint(tmp_path: Path) -> None:
    """Each is recorded; the last good checkpoint's step is offered."""
    path = module(tmp_path, "batch = [batch[0] * (float('nan') if self.count > 4 else 1.0)]")
    run = make_run(tmp_path, RECIPE | {"run": {"max_samples": 100, "device": "cpu"}}, module=path)
    assert run_here(run) == 1
    (failed,) = events(run, RunFailed)
    assert failed.code == "non-finite-in-a-row"
    assert [saved.step for saved in events(run, CheckpointSaved)] == [1, 2, 3, 4]
    assert failed.values["checkpoint_step"] == 2  # the later ones lie among the windows of NaN
    assert {fact.step for fact in events(run, NonFiniteSeen)} == {3, 4, 5}


def test_an_update_that_runs_out_of_memory_starts_again_from_the_checkpoint(tmp_path: Path) -> None:
    """Parameters may be half changed, so they come from the disk; the run goes on."""
    optimizer = """
    def optimizer(self, parameters):
        return Full(parameters, lr=0.01)

class Full(torch.optim.SGD):
    calls = 0
    def step(self, closure=None):
        Full.calls += 1
        if Full.calls == 3:
            raise torch.OutOfMemoryError("full")
        return super().step(closure)
"""
    run = make_run(tmp_path, RECIPE, module=module(tmp_path, more=optimizer))
    assert run_here(run) == 0
    (rolled,) = events(run, RolledBack)
    assert (rolled.command_id, rolled.to_step) == (None, 2)
    assert [step.step for step in events(run, OptimizerStepMeasured)] == [1, 2, 3]


def test_targets_are_judged_at_the_end(tmp_path: Path) -> None:
    """Each once: met, missed, or never measured."""
    targets = {"validation_loss": 1e9, "throughput": 1e12, "cost": 1.0, "peak_memory": 1e6}
    recipe = RECIPE | {
        "targets": targets,
        "run": {"max_samples": 12, "device": "cpu", "readings_every_s": 0.05},
    }
    run = make_run(tmp_path, recipe, module=module(tmp_path))
    assert run_here(run) == 0
    verdicts = {event.key: event for event in events(run, TargetJudged) if event.is_final}
    met = {key: event.verdict for key, event in verdicts.items()}
    assert met == {
        "targets.validation_loss": "met",
        "targets.throughput": "missed",
        "targets.cost": "missed",
        "targets.peak_memory": "met",
    }
    assert verdicts["targets.cost"].reached is None
    assert len(events(run, EvaluationMeasured)) == 1
    assert isinstance(records(run)[-1].event, RunFinished)


def test_what_a_task_shows_and_leaves_lies_in_the_run(tmp_path: Path) -> None:
    """Artifacts at an evaluation, an export at the end, metrics beside the loss."""
    more = """
    def evaluate(self, model, batch):
        return {"double": LossTerm(2 * batch[0].sum(), len(batch[0]))}
    def artifacts(self, model, folder):
        assert not model.training
        folder.mkdir(parents=True)
        (folder / "note.txt").write_text("hello")
        return [("text", folder / "note.txt", "a note")]
    def export(self, model, folder):
        folder.mkdir()
        (folder / "model.txt").write_text("there")
"""
    recipe = RECIPE | {"evaluation": {"every_samples": 8, "max_samples": 5}}
    run = make_run(tmp_path, recipe, module=module(tmp_path, more=more))
    assert run_here(run) == 0
    shown = events(run, ArtifactSaved)
    assert [(fact.step, fact.kind, fact.caption) for fact in shown] == [
        (2, "text", "a note"),
        (3, "text", "a note"),
    ]
    assert (run.path / shown[0].path).read_text() == "hello"
    assert (run.path / "export" / "model.txt").read_text() == "there"
    measured = events(run, EvaluationMeasured)
    assert [(event.samples, event.metrics) for event in measured] == [(5, {"double": 6.0})] * 2


def test_evaluation_without_validation_data_is_a_sentence(tmp_path: Path) -> None:
    """Before anything is trained."""
    path = module(tmp_path)
    path.write_text(path.read_text("utf-8").replace(", validation=data", ""), encoding="utf-8")
    run = make_run(tmp_path, RECIPE | {"evaluation": {"every_samples": 8}}, module=path)
    assert run_here(run) == 2
    assert "no validation data" in events(run, RunFailed)[0].reason


def test_a_device_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    """With what would be right."""
    run = make_run(tmp_path, RECIPE, module=module(tmp_path))
    set_recipe(run, **{"run.device": "cuda:97"})
    assert run_here(run) == 2
    assert "run.device = cuda:97" in events(run, RunFailed)[0].reason


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_on_the_cpu_too(tmp_path: Path, precision: str) -> None:
    """Autocast, totals in fp32; no update is lost to the loss scale."""
    text = {"path": "text.txt"}
    (tmp_path / "text.txt").write_bytes(bytes(range(97, 123)) * 40)
    run = make_run(
        tmp_path,
        {
            "run": {"max_samples": 16, "device": "cpu", "precision": precision},
            "task": {"kind": "language-model", "context_length": 8, "layers": 1, "width": 16, "heads": 2},
            "data": text,
            "accumulation": {"micro_batch_size": 4, "gradient_accumulation_steps": 2},
        },
    )
    assert run_here(run) == 0
    steps = events(run, OptimizerStepMeasured)
    assert [(step.skipped, step.tokens) for step in steps] == [("", 64)] * 2


def test_an_error_in_the_users_code_leaves_a_checkpoint_of_the_border(tmp_path: Path) -> None:
    """Two windows were trained since the start; a resume of the corrected code goes on behind them."""
    path = module(tmp_path, "assert self.count != 6, 'made up'")
    run = make_run(tmp_path, RECIPE | {"checkpoint": {"every_minutes": "never"}}, module=path)
    assert run_here(run) == 1
    (failed,) = events(run, RunFailed)
    assert [saved.step for saved in events(run, CheckpointSaved)] == [2]
    assert (failed.step, failed.values["checkpoint_step"]) == (2, 2)
    module(tmp_path, "pass")
    assert run_here(run) == 0
    assert [step.step for step in events(run, OptimizerStepMeasured)] == [1, 2, 3]


def test_a_signal_whose_grace_is_short_drops_the_window_and_saves_the_border(tmp_path: Path) -> None:
    """A window of minutes with ten seconds of grace ended in SIGKILL without any checkpoint."""
    path = module(
        tmp_path,
        "import os, signal, time\n"
        "        time.sleep(0.2)\n"
        "        if self.count == 6: os.kill(os.getpid(), signal.SIGTERM)",
    )
    run = make_run(
        tmp_path,
        RECIPE
        | {
            "run": {"max_samples": 400, "device": "cpu", "grace_s": 2.0},
            "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 4},
            "checkpoint": {"every_minutes": "never"},
        },
        module=path,
    )
    assert run_here(run) == 0
    (stopped,) = events(run, RunStopped)
    assert (stopped.reason, stopped.step) == ("signal", 1)
    assert [saved.step for saved in events(run, CheckpointSaved)] == [1]
