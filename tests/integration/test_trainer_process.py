"""A real trainer in a process of its own: started, steered, stopped, refused, failed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.support.trainers import (
    Trainer,
    environment,
    events,
    make_probe,
    make_run,
    records,
    run_here,
    set_recipe,
)
from trainer_backend.__main__ import main
from trainer_backend.inbox import send
from trainer_backend.protocol import (
    AccumulationChanged,
    CheckpointSaved,
    CommandAccepted,
    CommandRefused,
    OptimizerStepMeasured,
    Pause,
    Paused,
    PhaseEntered,
    Resume,
    Resumed,
    RollBack,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStopped,
    SaveCheckpoint,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    SettingChanged,
    Stop,
)
from trainer_backend.run_directory import RunDirectory, runs_folder

ENDLESS = {"run": {"max_samples": 10**9}}


def refused(answer: CommandAccepted | CommandRefused) -> CommandRefused:
    """The answer, which is a refusal."""
    assert isinstance(answer, CommandRefused), answer
    return answer


def accepted(answer: CommandAccepted | CommandRefused) -> CommandAccepted:
    """The answer, which is a yes."""
    assert isinstance(answer, CommandAccepted), answer
    return answer


def test_a_person_steers_a_live_run(tmp_path: Path) -> None:
    """N 4 to 3 at the next border, pause, changes while paused, resume, checkpoint, roll back, stop."""
    run = make_probe(tmp_path, ENDLESS, length=1000, duration_s=0.005)
    with Trainer(run) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.step >= 2)
        _change_n(trainer)
        _pause_and_go_on(trainer)
        _be_refused(trainer)
        _save_and_roll_back(trainer)
        _refuse_a_second_trainer(run)
        accepted(trainer.ask(Stop()))
        ended = trainer.end()
        assert isinstance(ended, RunStopped)
        assert ended.reason == "stop"
        assert trainer.process.returncode == 0
    assert not run.is_alive()
    phases = [event.phase for event in events(run, PhaseEntered)]
    assert phases[:3] == ["importing-torch", "reading-data", "building-model"]
    answers = [
        record.event for record in records(run) if isinstance(record.event, CommandAccepted | CommandRefused)
    ]
    assert len(answers) == len({answer.command_id for answer in answers})
    assert list(run.inbox_path.iterdir()) == []


def _change_n(trainer: Trainer) -> None:
    answer = accepted(trainer.ask(SetAccumulation(steps=3, asked_by="a test")))
    changed = trainer.wait_for_kind(AccumulationChanged)
    assert (changed.command_id, changed.before, changed.after) == (answer.command_id, 4, 3)
    assert changed.step == answer.applies_at_step
    trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.step >= changed.step + 2)
    for step in trainer.seen:
        if isinstance(step, OptimizerStepMeasured):
            expected = 4 if step.step < changed.step else 3
            assert (step.accumulation_steps, step.micro_batches) == (expected, expected)


def _pause_and_go_on(trainer: Trainer) -> None:
    pause = accepted(trainer.ask(Pause()))
    paused = trainer.wait_for_kind(Paused)
    assert (paused.command_id, paused.step) == (pause.command_id, pause.applies_at_step - 1)
    assert refused(trainer.ask(Pause())).code == "already-paused"
    rate = accepted(trainer.ask(SetLearningRate(value=0.5)))
    assert rate.applies_at_step == paused.step + 1
    changed = trainer.wait_for_kind(SettingChanged, lambda change: change.command_id == rate.command_id)
    assert (changed.step, changed.key, changed.after) == (paused.step + 1, "optimizer.learning_rate", 0.5)
    steps = [step.step for step in trainer.seen if isinstance(step, OptimizerStepMeasured)]
    assert max(steps) == paused.step
    resume = accepted(trainer.ask(Resume()))
    assert trainer.wait_for_kind(Resumed).command_id == resume.command_id
    after = trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.step == paused.step + 1)
    assert after.learning_rate == 0.5
    assert refused(trainer.ask(Resume())).code == "not-paused"


def _be_refused(trainer: Trainer) -> None:
    assert refused(trainer.ask(SetAccumulation(steps=0))).code == "out-of-range"
    assert refused(trainer.ask(SetMaxGradNorm(value=-1.0))).code == "out-of-range"
    assert refused(trainer.ask(SetAccumulation(steps=2, scale_beta2=True))).code == "no-beta2"
    odd = refused(trainer.ask(SetMicroBatchSize(size=2)))  # effective batch 3
    assert (odd.code, odd.values["below"], odd.values["above"]) == ("not-divisible", 1, 3)
    assert refused(trainer.ask(RollBack(step=123456))).code == "no-checkpoint"
    broken = trainer.run.inbox_path / "00-broken.json"
    broken.write_text("{", encoding="utf-8")
    answer = trainer.wait_for_kind(CommandRefused, lambda fact: fact.command_id == "00-broken")
    assert answer.code == "malformed"


def _save_and_roll_back(trainer: Trainer) -> None:
    save = accepted(trainer.ask(SaveCheckpoint()))
    saved = trainer.wait_for_kind(CheckpointSaved)
    assert saved.command_id == save.command_id
    assert (trainer.run.path / saved.path / "model.safetensors").is_file()
    saved = _save_twice(trainer, saved.step)
    trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.step == saved.step + 2)
    back = accepted(trainer.ask(RollBack()))
    rolled = trainer.wait_for_kind(RolledBack)
    assert (rolled.command_id, rolled.to_step, rolled.to_samples) == (
        back.command_id, saved.step, saved.samples_seen,
    )  # fmt: skip
    place = trainer.seen.index(rolled)
    trainer.wait_for(lambda event: isinstance(event, OptimizerStepMeasured) and event in trainer.seen[place:])
    again = next(event for event in trainer.seen[place:] if isinstance(event, OptimizerStepMeasured))
    assert again.step == saved.step + 1


def _save_twice(trainer: Trainer, saved: int) -> CheckpointSaved:
    """Two requests at one border: one file, and each is answered with it."""
    trainer.ask(Pause())
    trainer.wait_for_kind(Paused, lambda fact: fact.step >= saved)
    ids = [accepted(trainer.ask(SaveCheckpoint())).command_id for _ in range(2)]
    first = trainer.wait_for_kind(CheckpointSaved, lambda fact: fact.command_id == ids[0])
    second = trainer.wait_for_kind(CheckpointSaved, lambda fact: fact.command_id == ids[1])
    assert second == msgspec.structs.replace(first, command_id=ids[1])
    trainer.ask(Resume())
    return first


def _refuse_a_second_trainer(run: RunDirectory) -> None:
    command = [sys.executable, "-P", "-m", "trainer_backend", "run", str(run.path)]
    second = subprocess.run(
        command, cwd=run.path, env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert second.returncode == 2
    assert "A trainer already runs in" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_signal_asks_for_a_clean_stop_and_loading_can_be_stopped(tmp_path: Path) -> None:
    """SIGTERM finishes the window and saves; a stop while the user's code loads needs no wait for it."""
    run = make_probe(tmp_path / "signal", ENDLESS, length=1000, duration_s=0.005)
    module = tmp_path / "slow.py"
    module.write_text("import time\nprint('loading', flush=True)\ntime.sleep(600)\n", encoding="utf-8")
    slow = make_run(tmp_path / "slow", {"run": {"epochs": 1}}, module=module)
    with Trainer(run, cold=True) as trainer, Trainer(slow, cold=True) as loading:
        trainer.wait_for_kind(OptimizerStepMeasured, lambda step: step.step >= 2)
        trainer.process.send_signal(signal.SIGTERM)
        ended = trainer.end()
        assert isinstance(ended, RunStopped)
        assert (ended.reason, trainer.process.returncode) == ("signal", 0)
        last = events(run, OptimizerStepMeasured)[-1]
        assert (last.step, last.micro_batches) == (ended.step, 4)
        assert events(run, CheckpointSaved)[-1].step == ended.step

        loading.wait_for_kind(PhaseEntered, lambda event: event.phase == "reading-data")
        _wait_for_log(slow, "loading")
        accepted(loading.ask(Stop()))
        assert isinstance(loading.end(), RunStopped)
        assert loading.process.returncode == 0


def _wait_for_log(run: RunDirectory, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in run.log_path.read_text("utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_first_fact_waits_for_no_torch() -> None:
    """What opens the journal and answers commands is there seconds before torch is."""
    check = "import sys, trainer_backend.trainer.attempt; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], env=environment(), check=False, timeout=60)
    assert done.returncode == 0


def test_an_import_that_fails_is_told_with_the_users_line(tmp_path: Path) -> None:
    """The sentence, the user's file and line, and a traceback without our frames."""
    module = tmp_path / "broken.py"
    module.write_text("import json\n\nraise RuntimeError('no data today')\n", encoding="utf-8")
    run = make_run(tmp_path / "run", {"run": {"epochs": 1}}, module=module)
    assert run_here(run) == 1
    (failed,) = events(run, RunFailed)
    assert failed.reason.startswith("RuntimeError: no data today")
    assert failed.where.endswith(".py:3")
    assert "trainer_backend" not in failed.traceback
    assert "raise RuntimeError('no data today')" in failed.traceback


def test_an_entry_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    """A module, an object, an option that does not exist: exit 2, and what would be right."""
    run = make_probe(tmp_path, ENDLESS)
    entry = make_entry(run)
    for key, value, words in (
        ("task.entry", "no_such_module:Task", "there is no module no_such_module"),
        ("task.entry", f"{entry}:Tusk", "has no Tusk"),
        ("task.options.lenght", 5, "do not fit"),
    ):
        set_recipe(run, **{"task.entry": f"{entry}:Task"})
        set_recipe(run, **{key: value})
        assert run_here(run) == 2
        assert words in events(run, RunFailed)[-1].reason


def make_entry(run: RunDirectory) -> str:
    """The name of a run's module."""
    text = run.recipe_path.read_text("utf-8")
    return text.partition('entry = "')[2].partition(":")[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_the_users_code_is_told_with_its_line(tmp_path: Path, workers: int) -> None:
    """In the loss, and in a loader's worker: where it happened, at which step, exit 1."""
    module = tmp_path / "failing.py"
    module.write_text(FAILING, encoding="utf-8")
    tables = {"run": {"epochs": 1}, "data": {"num_workers": workers, "shuffle": False}}
    accumulation = {"accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2}}
    run = make_run(tmp_path / "run", tables | accumulation, module=module)
    set_recipe(run, **{"task.options.in_worker": bool(workers)})
    assert run_here(run) == 1
    (failed,) = events(run, RunFailed)
    assert failed.step == 1
    assert "the cat ate sample 6" in failed.reason
    line = 1 + FAILING[: FAILING.index("raise ValueError")].count("\n")
    assert failed.where.endswith(f".py:{line}")


FAILING = """
import torch
from trainer_backend.tasks import Datasets, LossTerm

class Data(torch.utils.data.Dataset):
    def __init__(self, fails):
        self.fails = fails
    def __len__(self):
        return 12
    def __getitem__(self, index):
        if self.fails:
            check(index)
        return torch.tensor(float(index))

def check(index):
    if index >= 6:
        raise ValueError(f"the cat ate sample {int(index)}")

class Task:
    def __init__(self, in_worker):
        self.in_worker = in_worker
    def model(self):
        return torch.nn.Linear(1, 1)
    def datasets(self):
        return Datasets(train=Data(self.in_worker))
    def loss(self, model, batch):
        if not self.in_worker:
            check(batch.max() - batch.max() % 2)
        return LossTerm(model(batch[:, None]).sum(), len(batch))
"""


def test_a_bad_recipe_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, a sentence for each fault, and no run directory."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[run]\nepochs = 0\n[accumulation]\nmicro_batch_sise = 4\n", encoding="utf-8")
    assert main(["run", str(recipe)]) == 2
    told = capsys.readouterr().err
    assert "run.epochs" in told
    assert "micro_batch_size" in told
    assert main(["run", str(tmp_path / "nowhere.toml")]) == 2
    assert not runs_folder().exists()


@pytest.mark.parametrize(
    ("text", "words"), [(None, "no such file or folder"), (b"", "no file"), (b"ab", "fewer")]
)
def test_text_that_is_missing_or_too_short_is_a_sentence(
    tmp_path: Path, text: bytes | None, words: str
) -> None:
    """A folder that is not there, one without text, a file shorter than one context."""
    folder = tmp_path / "text"
    if text is not None:
        folder.mkdir()
    if text:
        (folder / "a.txt").write_bytes(text)
    run = make_run(tmp_path / "run", {"run": {"epochs": 1}, "data": {"path": str(folder)}})
    set_recipe(run, **{"accumulation.gradient_accumulation_steps": 4})
    assert run_here(run) == 2
    assert words in events(run, RunFailed)[0].reason


def test_a_command_from_before_the_attempt_is_stale_but_not_before_the_first(tmp_path: Path) -> None:
    """What was asked of a run that had ended does not hit the next attempt. Clocks have no say."""
    run = make_probe(tmp_path, {"run": {"max_samples": 1000}}, length=100)  # longer than a look at the inbox
    first = send(run.inbox_path, Stop(now=True, asked_at=time.time() - 10**6))
    assert run_here(run) == 0
    assert [fact.command_id for fact in events(run, CommandAccepted)] == [first]

    second = send(run.inbox_path, Stop(now=True, asked_at=time.time() + 10**6))
    assert run_here(run) == 0
    (answer,) = events(run, CommandRefused)
    assert (answer.command_id, answer.code) == (second, "stale")
    assert events(run, RunFinished)
    assert list(run.inbox_path.iterdir()) == []


@pytest.mark.parametrize("name", ["WORLD_SIZE", "SLURM_NTASKS"])
def test_several_trainers_of_one_launcher_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """They would be as many runs, each with the whole of the data."""
    run = make_probe(tmp_path, {"run": {"max_samples": 8}}, length=100)
    monkeypatch.setenv(name, "2")
    assert main(["run", str(run.path)]) == 2
    assert f"{name} = 2" in capsys.readouterr().err
    assert not run.journal_path.exists()
    monkeypatch.setenv(name, "1")
    assert main(["run", str(run.path)]) == 0
