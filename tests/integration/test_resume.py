"""A run that was killed ends, once resumed, bit for bit where it would have ended undisturbed."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.trainers import Trainer, events, make_run, merged, records, run_here, set_recipe
from trainer_backend.journal import JournalWriter
from trainer_backend.protocol import (
    AccumulationChanged,
    AnyCommand,
    CheckpointSaved,
    CommandAccepted,
    EvaluationMeasured,
    MicroBatchMeasured,
    OptimizerStepMeasured,
    OutOfMemoryRecovered,
    Pause,
    Paused,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SaveCheckpoint,
    SetAccumulation,
    SettingChanged,
    Warned,
)
from trainer_backend.run_directory import RunDirectory, checkpoints_in
from trainer_backend.trainer import checkpoint

MODULE = Path(__file__).parent.parent / "support" / "exact_task.py"
RECIPE: dict[str, Any] = {
    "run": {"max_samples": 150, "device": "cpu", "precision": "fp32", "seed": 7},
    "data": {"num_workers": 2, "shuffle": True},
    "accumulation": {
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 3,
        "schedule": [{"from_sample": 84, "steps": 4}],
    },
    "optimizer": {"ema_decay": 0.9, "max_grad_norm": 1.0},
    "schedule": {"kind": "cosine", "warmup_samples": 24},
    "checkpoint": {"every_samples": 24, "keep": 10},
}
ASK_AT = 8
"""A micro-batch of window 3: N becomes 2 at window 4, behind the checkpoint of window 2."""
FULL_AT = 8
"""Another of that window."""


def make(folder: Path, *tables: dict[str, Any], **options: int) -> RunDirectory:
    """A run of the exact task."""
    run = make_run(folder, merged(RECIPE, {"task": {"options": {"inbox": ""}}}, *tables), module=MODULE)
    set_recipe(run, **{"task.options.inbox": str(run.inbox_path)})
    set_recipe(run, **{f"task.options.{key}": value for key, value in options.items()})
    return run


def end_state(run: RunDirectory) -> dict[str, torch.Tensor]:
    """Every tensor of the last checkpoint."""
    step, path = list(checkpoints_in(run.checkpoints_path).items())[-1]
    saved = checkpoint.read(path)
    where = {"step": torch.tensor(step), "samples": torch.tensor(saved.state["samples_seen"])}
    return where | saved.model | saved.training


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Equal names, types, shapes and bits."""
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert different == []


@functools.cache
def undisturbed(folder: Path) -> dict[str, torch.Tensor]:
    """Where the run ends when nothing happens to it, with the same live changes."""
    run = make(folder / "undisturbed", ask_at=ASK_AT)
    assert run_here(run) == 0
    return end_state(run)


@functools.cache
def undisturbed_but_split(folder: Path) -> dict[str, torch.Tensor]:
    """Where the run ends that once had no memory for a micro-batch, without live changes."""
    run = make(folder / "split", {"data": {"num_workers": 0}}, full_at=FULL_AT)
    assert run_here(run) == 0
    (split,) = events(run, OutOfMemoryRecovered)
    assert (split.step, split.micro_batch_size_before, split.micro_batch_size) == (3, 4, 2)
    return end_state(run)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what all tests here compare with."""
    return tmp_path_factory.mktemp("reference")


@pytest.mark.parametrize(
    "kill",
    [
        {"kill_loss": 11},
        {"kill_backward": 11},
        {"kill_step": 5},
        {"kill_saving": 5},
        {"kill_writing": 6},
        {"kill_renaming": 3},
        {"kill_evaluating": 8},
    ],
    ids=lambda kill: next(iter(kill)),
)
def test_a_killed_run_ends_where_the_undisturbed_one_does(
    tmp_path: Path, reference: Path, kill: dict[str, int]
) -> None:
    """With two workers, augmentation, dropout, BatchNorm, AdamW, EMA.

    N and the learning rate were changed live before the kill, which comes in a forward, in a backward, in
    an optimizer step, while a checkpoint's state is taken, between its files, before it gets its name, or
    in an evaluation, which itself changes nothing.
    """
    expected = undisturbed(reference)
    evaluation = {"evaluation": {"every_samples": 20, "max_samples": 6}}
    run = make(tmp_path, evaluation, ask_at=ASK_AT, **kill)
    with Trainer(run) as trainer:
        assert trainer.wait() == -9
    assert not run.is_alive()
    changed = [(c.step, c.after) for c in events(run, AccumulationChanged, attempt=1)]
    assert changed[0] == (4, 2)

    set_recipe(run, **{f"task.options.{key}": 0 for key in ("ask_at", *kill)})
    assert run_here(run) == 0
    assert_same_bits(end_state(run), expected)
    started = events(run, RunStarted, attempt=2)[0]
    again = [(c.step, c.after) for c in events(run, AccumulationChanged, attempt=2) if c.asked_by == "replay"]
    assert again == ([(4, 2)] if started.from_step < 4 else [])
    assert len(events(run, EvaluationMeasured)) > 3


def test_settings_that_were_accepted_and_not_yet_obeyed_at_the_kill_apply_where_they_would_have(
    tmp_path: Path, reference: Path
) -> None:
    """A kill dropped them in silence."""
    expected = undisturbed(reference)
    run = make(tmp_path, ask_at=ASK_AT, kill_asked=1)
    with Trainer(run) as trainer:
        assert trainer.wait() == -9
    accepted = events(run, CommandAccepted)
    assert [(fact.command, fact.applies_at_step) for fact in accepted] == [
        ("SetAccumulation", 4), ("SetLearningRate", 4),
    ]  # fmt: skip
    assert not events(run, AccumulationChanged)

    set_recipe(run, **{"task.options.ask_at": 0})
    assert run_here(run) == 0
    assert_same_bits(end_state(run), expected)
    changed = events(run, AccumulationChanged, attempt=2)[0]
    assert (changed.command_id, changed.step, changed.after) == (accepted[0].command_id, 4, 2)


@pytest.mark.parametrize("command", [Pause(), SetAccumulation(steps=2)])
def test_what_was_accepted_and_is_not_obeyed_after_a_kill_is_reported_once(
    tmp_path: Path, command: AnyCommand
) -> None:
    """A pause is not meant for the next attempt; settings are left out where changes are declined."""
    run = make(tmp_path, {"run": {"max_samples": 24}, "data": {"num_workers": 0}})
    writer = JournalWriter(run.journal_path, attempt=1)
    writer.put(CommandAccepted(command_id=command.id, applies_at_step=1, command="Pause", asked=command))
    assert writer.close()
    for attempt in (2, 3):
        assert run_here(run, replay=False) == 0
        told = [fact for fact in events(run, Warned, attempt=attempt) if fact.code == "command-not-obeyed"]
        assert [fact.values["command_id"] for fact in told] == ([command.id] if attempt == 2 else [])


def test_a_run_that_is_killed_while_its_checkpoint_is_loaded_ends_as_the_undisturbed_one(
    tmp_path: Path, reference: Path
) -> None:
    """Half the state was taken up; the checkpoint and what the journal says are as they were."""
    expected = undisturbed(reference)
    run = make(tmp_path, ask_at=ASK_AT, stop_now_at=11)
    assert run_here(run) == 0
    set_recipe(run, **{f"task.options.{key}": 0 for key in ("ask_at", "stop_now_at")})
    set_recipe(run, **{"task.options.kill_loading": 1})
    with Trainer(run) as trainer:
        assert trainer.wait() == -9
    assert events(run, RunStarted, attempt=2) == []
    set_recipe(run, **{"task.options.kill_loading": 0})
    assert run_here(run) == 0
    assert_same_bits(end_state(run), expected)


@pytest.mark.parametrize("kill_step", [3, 4])
def test_a_window_that_ran_out_of_memory_before_the_kill_is_split_again(
    tmp_path: Path, reference: Path, kill_step: int
) -> None:
    """The checkpoint lies before it, and at Resume memory would be enough; the bits are the same.

    The kill comes in the window that was split, or in a later one, whose smaller micro-batches are then
    recorded.
    """
    expected = undisturbed_but_split(reference)
    run = make(tmp_path / "killed", {"data": {"num_workers": 0}}, full_at=FULL_AT, kill_step=kill_step)
    with Trainer(run) as trainer:
        assert trainer.wait() == -9
    assert list(checkpoints_in(run.checkpoints_path)) == [2]
    set_recipe(run, **{"task.options.full_at": 0, "task.options.kill_step": 0})
    assert run_here(run) == 0
    assert events(run, RunStarted, attempt=2)[0].from_step == 2
    sizes = {row.step: row.samples for row in events(run, MicroBatchMeasured, attempt=2)}
    assert (sizes[3], sizes[4]) == (2, 2)
    assert_same_bits(end_state(run), expected)


@pytest.mark.parametrize("stop", [{"stop_at": 11}, {"stop_now_at": 11}])
def test_a_stopped_run_ends_where_the_undisturbed_one_does(
    tmp_path: Path, reference: Path, stop: dict[str, int]
) -> None:
    """After its window, or in the middle of it: what the partial window drew and moved is taken back."""
    expected = undisturbed(reference)
    run = make(tmp_path, ask_at=ASK_AT, **stop)
    assert run_here(run) == 0
    assert len(events(run, RunStopped)) == 1
    set_recipe(run, **{f"task.options.{key}": 0 for key in ("ask_at", *stop)})
    assert run_here(run) == 0
    assert_same_bits(end_state(run), expected)


def test_a_declined_replay_keeps_the_checkpoints_own_settings(tmp_path: Path) -> None:
    """Without replay the run goes on under the N that the checkpoint has."""
    run = make(tmp_path, {"data": {"num_workers": 0}}, ask_at=ASK_AT, stop_at=11)
    assert run_here(run) == 0
    for step, path in checkpoints_in(run.checkpoints_path).items():
        if step > 2:  # as if the run had been killed before they were saved
            shutil.rmtree(path)
    set_recipe(run, **{"task.options.ask_at": 0, "task.options.stop_at": 0})
    assert run_here(run, replay=False) == 0
    assert [c.asked_by for c in events(run, AccumulationChanged, attempt=2)] == ["schedule"]
    assert events(run, SettingChanged, attempt=2) == []
    assert [w.code for w in events(run, Warned, attempt=2) if w.code.startswith("replay")] == [
        "replay-declined"
    ]
    assert {step.accumulation_steps for step in events(run, OptimizerStepMeasured, attempt=2)} == {3, 4}


@pytest.mark.parametrize("with_place", [True, False])
def test_what_was_changed_before_a_checkpoint_at_the_same_border_is_in_it(
    tmp_path: Path, with_place: bool
) -> None:
    """N changed while paused, then saved: declining the replay declines nothing, and N stays.

    A checkpoint of before, without the journal's sequence number, is taken up all the same; there the
    change counts as one after it.
    """
    run = make(tmp_path, {"run": {"max_samples": 10**6}, "data": {"num_workers": 0}})
    with Trainer(run) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured)
        trainer.ask(Pause())
        trainer.wait_for_kind(Paused)
        trainer.ask(SetAccumulation(steps=5))
        changed = trainer.wait_for_kind(AccumulationChanged, lambda fact: fact.after == 5)
        sent = trainer.send(SaveCheckpoint())
        saved = trainer.wait_for_kind(CheckpointSaved, lambda fact: fact.command_id == sent)
        trainer.kill()
    assert changed.step == saved.step + 1
    newest = checkpoints_in(run.checkpoints_path)[saved.step]
    attempt, seq = checkpoint.read_state(newest)["standing"]["journal"]
    of_change = next(record.seq for record in records(run) if record.event == changed)
    of_saved = next(record.seq for record in records(run) if record.event == saved)
    assert (attempt, of_change <= seq < of_saved) == (1, True)
    if not with_place:
        state = checkpoint.read_state(newest)
        del state["standing"]["journal"]
        (newest / checkpoint.STATE).write_text(json.dumps(state))
        _sign(newest)

    set_recipe(run, **{"run.max_samples": saved.samples_seen + 20})
    assert run_here(run, replay=False) == 0
    assert events(run, RunStarted, attempt=2)[0].from_step == saved.step
    assert events(run, OptimizerStepMeasured, attempt=2)[0].accumulation_steps == 5
    declined = [warned for warned in events(run, Warned, attempt=2) if warned.code == "replay-declined"]
    assert len(declined) == (0 if with_place else 1)


def test_a_longer_run_goes_on_from_its_end(tmp_path: Path) -> None:
    """A finished run whose recipe is given more samples ends where one with so many would have."""
    tables = {"run": {"max_samples": 48}, "schedule": {"samples": 96}, "data": {"num_workers": 0}}
    run = make(tmp_path / "short", tables)
    assert run_here(run) == 0
    set_recipe(run, **{"run.max_samples": 96})
    assert run_here(run) == 0
    longer = make(tmp_path / "long", merged(tables, {"run": {"max_samples": 96}}))
    assert run_here(longer) == 0
    assert_same_bits(end_state(run), end_state(longer))
    assert [started.from_samples for started in events(run, RunStarted)] == [0, 48]


def damage(run: RunDirectory, how: str) -> None:
    """Spoil the newest checkpoint."""
    newest = list(checkpoints_in(run.checkpoints_path).values())[-1]
    path = newest / checkpoint.MODEL
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:100])
    elif how == "altered":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    elif how == "pickled":
        torch.save({"w": torch.zeros(1)}, path)
        _sign(newest)
    elif how == "incomplete":
        (newest / checkpoint.CHECKSUMS).unlink()


def _sign(folder: Path) -> None:
    """Make the checksums right again, as somebody would who made a checkpoint by hand."""
    sums = {
        name: checkpoint._sha256(folder / name)
        for name in (checkpoint.MODEL, checkpoint.TRAINING, checkpoint.STATE)
    }
    (folder / checkpoint.CHECKSUMS).write_text(json.dumps(sums))


@pytest.mark.parametrize("how", ["truncated", "altered", "pickled", "incomplete"])
def test_a_damaged_checkpoint_is_said_and_the_one_before_is_taken(tmp_path: Path, how: str) -> None:
    """The end is that of the undisturbed run all the same."""
    tables = {"run": {"max_samples": 60}, "data": {"num_workers": 0}, "schedule": {"samples": 96}}
    run = make(tmp_path / "run", tables)
    assert run_here(run) == 0
    expected = end_state(run)
    damage(run, how)
    assert run_here(run) == 0
    (warned,) = [w for w in events(run, Warned, attempt=2) if w.code == "checkpoint-damaged"]
    words = {"truncated": "truncated", "altered": "altered", "pickled": "pickle", "incomplete": "truncated"}
    assert words[how] in str(warned.values["reason"])
    assert warned.values["step"] == 5
    assert events(run, RunStarted, attempt=2)[0].from_step == 4
    assert_same_bits(end_state(run), expected)


def test_when_every_checkpoint_is_damaged_the_last_says_what_to_do(tmp_path: Path) -> None:
    """One warning for each, and no restart from nothing."""
    run = make(tmp_path, {"run": {"max_samples": 48}, "data": {"num_workers": 0}})
    assert run_here(run) == 0
    paths = checkpoints_in(run.checkpoints_path)
    for path in paths.values():
        (path / checkpoint.MODEL).write_bytes(b"")
    assert run_here(run) == 1
    reason = events(run, RunFailed)[-1].reason
    assert "model.safetensors is not what was saved. Copy checkpoints/ again" in reason
    assert f"gradacc run {run.recipe_path}" in reason
    warned = [warned.values["step"] for warned in events(run, Warned) if warned.code == "checkpoint-damaged"]
    assert warned == list(reversed(paths))
    assert checkpoints_in(run.checkpoints_path) == paths  # none was set aside: nothing better was found


def test_a_checkpoint_that_does_not_fit_is_a_sentence_and_stays(tmp_path: Path) -> None:
    """No restart from nothing, and the directory as it was."""
    run = make(tmp_path, {"run": {"max_samples": 24}, "data": {"num_workers": 0}})
    assert run_here(run) == 0
    for path in checkpoints_in(run.checkpoints_path).values():
        saved = checkpoint.read(path)
        saved.model["0.weight"] = torch.zeros(3, 3)
        checkpoint.write(run.checkpoints_path, saved.state["step"], saved)
    before = sorted(path.name for path in run.checkpoints_path.iterdir())
    assert run_here(run) == 2
    failed = events(run, RunFailed)[-1]
    assert "0.weight has shape (3, 3) there and (16, 8) in the model" in failed.reason
    assert [warned for warned in events(run, Warned) if warned.code == "checkpoint-damaged"] == []
    assert sorted(path.name for path in run.checkpoints_path.iterdir()) == before


def test_every_attempt_ends_once_and_numbers_stay_dense(tmp_path: Path) -> None:
    """The whole journal over two attempts: no gap in seq, one end each, measurements in their windows."""
    run = make(tmp_path, {"run": {"max_samples": 48}, "data": {"num_workers": 0}})
    assert run_here(run) == 0
    assert run_here(run) == 0
    found = records(run)
    assert [record.seq for record in found] == list(range(1, len(found) + 1))
    assert [record.attempt for record in found if isinstance(record.event, RunFinished)] == [1, 2]
    assert [step.step for step in events(run, OptimizerStepMeasured)] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["adafactor", "muon", "adamw-8bit", "lion", "schedule-free", "lamb", "lars"])
def test_every_optimizer_goes_on_bit_for_bit_from_a_checkpoint(tmp_path: Path, name: str) -> None:
    """Also what it keeps in its groups, in 8 bits, or as an average of its own."""
    tables: dict[str, Any] = {
        "run": {"max_samples": 72},
        "data": {"num_workers": 0},
        "optimizer": {"name": name, "learning_rate": 1e-2},
        "schedule": {"kind": "constant", "warmup_samples": 0},
    }
    asked = merged(RECIPE, tables)
    del asked["optimizer"]["ema_decay"]
    whole, parted = (
        make_run(tmp_path / part, merged(asked, {"task": {"options": {"inbox": ""}}}), module=MODULE)
        for part in ("whole", "parted")
    )
    assert run_here(whole) == 0
    set_recipe(parted, **{"run.max_samples": 36})
    assert run_here(parted) == 0
    set_recipe(parted, **{"run.max_samples": 72})
    assert run_here(parted) == 0
    assert len(events(parted, RunStarted)) == 2
    assert_same_bits(end_state(whole), end_state(parted))


EXTRA_STATE = """
import torch
from trainer_backend.tasks import Datasets, LossTerm

class Counts(torch.nn.Linear):
    calls = 0
    def get_extra_state(self):
        return {"calls": self.calls, "names": ["a"]} if not OBJECT else object()
    def set_extra_state(self, state):
        self.calls = state["calls"]
    def forward(self, x):
        self.calls += self.training
        return super().forward(x)

class Task:
    def model(self):
        torch.manual_seed(0)
        return Counts(2, 1)
    def datasets(self):
        return Datasets(train=[torch.ones(2)] * 64)
    def loss(self, model, batch):
        return LossTerm(model(batch).sum(), len(batch))
"""


def test_a_models_extra_state_comes_back_at_resume(tmp_path: Path) -> None:
    """It was trained and saved, and could never be resumed; what JSON cannot hold is refused first."""
    path = tmp_path / "counts.py"
    path.write_text(EXTRA_STATE.replace("OBJECT", "False"), encoding="utf-8")
    recipe = {
        "run": {"max_samples": 8, "device": "cpu"},
        "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
    }
    run = make_run(tmp_path, recipe, module=path)
    assert run_here(run) == 0
    (first,) = checkpoints_in(run.checkpoints_path).values()
    assert checkpoint.read(first).state["model_extra"]["_extra_state"]["names"] == ["a"]
    set_recipe(run, **{"run.max_samples": 16})
    assert run_here(run) == 0
    path.write_text(EXTRA_STATE.replace("OBJECT", "True"), encoding="utf-8")
    refused = make_run(tmp_path, recipe, module=path)
    assert run_here(refused) == 1
    assert "get_extra_state gives object" in events(refused, RunFailed)[-1].reason
