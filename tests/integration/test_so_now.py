"""What is so now, held against a real trainer: commands, kills, roll-backs, resumes and changed recipes.

The trainer pauses in each window, so it stands still when it is compared with what its journal tells.
"""

from __future__ import annotations

import contextlib
import csv
import io
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gradacc_gui.cli import main
from gradacc_gui.run.attachment import Attachment
from gradacc_gui.session.runs import summarise
from tests.support.trainers import Trainer, make_run, records, set_recipe
from trainer_backend.protocol import (
    AccumulationChanged,
    AnyCommand,
    AnyEvent,
    CheckpointSaved,
    CommandAccepted,
    OptimizerStepMeasured,
    Pause,
    Paused,
    Record,
    Resume,
    RollBack,
    RolledBack,
    RunStarted,
    SaveCheckpoint,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    SettingChanged,
    Stop,
)
from trainer_backend.recipe import load_recipe
from trainer_backend.run_directory import RunDirectory, checkpoints_in
from trainer_backend.run_facts import RunFacts, RunState
from trainer_backend.settings import Settings, settings_of
from trainer_backend.trainer import checkpoint

MODULE = Path(__file__).parent.parent / "support" / "pausing_task.py"
RECIPE: dict[str, Any] = {
    "run": {"device": "cpu", "precision": "fp32", "max_samples": 10**6, "readings_every_s": 60.0},
    "schedule": {"kind": "constant", "warmup_samples": 0},
    "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
    "optimizer": {"name": "adamw", "learning_rate": 0.5, "weight_decay": 0.1, "ema_decay": 0.9},
    "checkpoint": {"keep": 3},
}
COUNTS = st.integers(1, 4)
RATES = st.sampled_from([0.25, 0.5, 1.0, 7.0])


class SoNow(RuleBasedStateMachine):
    """One run's life. Between two rules its trainer is paused, or there is none."""

    @initialize()
    def begin(self) -> None:
        """A run whose first window is over."""
        self.folder = Path(tempfile.mkdtemp(prefix="gradacc-so-now-"))
        self.run: RunDirectory = make_run(self.folder, RECIPE, module=MODULE)
        set_recipe(self.run, **{"task.options.inbox": str(self.run.inbox_path)})
        self.asked = settings_of(load_recipe(self.run.recipe_path).config)
        self.window = Attachment(self.run)
        self.ended: RunState | None = None
        self.start()

    def start(self, *arguments: str) -> None:
        """A trainer, until its first pause."""
        self.trainer = Trainer(self.run, *arguments)
        self.ended = None
        self.trainer.wait_for_kind(Paused)

    @property
    def live(self) -> bool:
        """Whether there is a trainer."""
        return self.ended is None

    def facts(self) -> RunFacts:
        """The fold of the journal."""
        return RunFacts(self.asked).take_all(self.told())

    def told(self) -> list[Record]:
        """Every event in the journal."""
        return records(self.run)

    def tell(self, command: AnyCommand) -> bool:
        """Send a command to the paused trainer; whether it was accepted and has taken effect."""
        answer = self.trainer.ask(command)
        if not isinstance(answer, CommandAccepted):
            return False
        effects = AccumulationChanged | SettingChanged | CheckpointSaved | RolledBack
        self.trainer.wait_for(lambda event: isinstance(event, effects) and event.command_id == command.id)
        self.settle()
        return True

    def settle(self) -> None:
        """Until the journal has all that was told: the answer of a further command comes after it."""
        self.trainer.ask(Pause())

    # ------------------------------------------------------------------------------- rules

    @precondition(lambda self: self.live)
    @rule(steps=COUNTS, rate=st.sampled_from(["none", "sqrt", "linear"]), also=st.booleans())
    def change_n(self, steps: int, rate: Any, also: bool) -> None:
        """N, with and without what may go with it."""
        command = SetAccumulation(
            steps=steps, learning_rate_rule=rate, scale_beta2=also, scale_weight_decay=also, scale_ema=also
        )
        self.tell(command)

    @precondition(lambda self: self.live)
    @rule(size=COUNTS, keep=st.booleans())
    def change_micro_batch(self, size: int, keep: bool) -> None:
        """b, and N with it or not."""
        self.tell(SetMicroBatchSize(size=size, keep_effective_batch=keep))

    @precondition(lambda self: self.live)
    @rule(rate=RATES, clip=st.sampled_from([None, 0.5, 2.0]))
    def change_others(self, rate: float, clip: float | None) -> None:
        """The learning rate and the clipping bound."""
        self.tell(SetLearningRate(value=rate))
        self.tell(SetMaxGradNorm(value=clip))

    @precondition(lambda self: self.live)
    @rule(steps=COUNTS)
    def set_effective_batch(self, steps: int) -> None:
        """`gradacc set` counts in the micro-batches that are in force, after a tail and while paused too."""
        now = self.facts().settings
        assert now is not None
        batch = str(now.samples_a_round * steps)
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["set", self.run.id, "effective_batch_size", batch]) == 0
        self.trainer.wait_for(
            lambda _: (now := self.facts().settings) is not None and (now.accumulation_steps == steps)
        )
        after = self.facts().settings
        assert after == msgspec.structs.replace(now, accumulation_steps=steps)

    @precondition(lambda self: self.live)
    @rule()
    def save(self) -> None:
        """A checkpoint of where it stands."""
        assert self.tell(SaveCheckpoint())

    def _paused_since(self, seen: int, _event: AnyEvent) -> bool:
        """Whether a pause came after the first `seen` events."""
        return any(isinstance(event, Paused) for event in self.trainer.seen[seen:])

    @precondition(lambda self: self.live)
    @rule(windows=st.integers(1, 3))
    def train(self, windows: int) -> None:
        """Some windows; each is measured as what was in force says."""
        for _ in range(windows):
            seen = len(self.trainer.seen)
            self.trainer.ask(Resume())
            self.trainer.wait_for(partial(self._paused_since, seen))
            now = self.facts().settings
            assert now is not None
            steps = [event for event in self.trainer.seen if isinstance(event, OptimizerStepMeasured)]
            assert (steps[-1].accumulation_steps, steps[-1].learning_rate) == (
                now.accumulation_steps, now.learning_rate,
            )  # fmt: skip
            if steps[-1].samples == now.effective_batch:
                assert steps[-1].micro_batch_size == now.micro_batch_size

    @precondition(lambda self: self.live and self.facts().checkpoints(3))
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """To a checkpoint that is kept, by command."""
        step = data.draw(st.sampled_from(self.facts().checkpoints(3)))
        command = RollBack(step=step)
        self.trainer.ask(command)
        self.trainer.wait_for_kind(RolledBack, lambda fact: fact.command_id == command.id)
        self.settle()

    @precondition(lambda self: self.live)
    @rule(somewhere=st.booleans())
    def kill(self, somewhere: bool) -> None:
        """Between two windows, or wherever it is."""
        if somewhere:
            self.trainer.send(Resume())
        self.trainer.kill()
        self.ended = RunState.INTERRUPTED

    @precondition(lambda self: self.live)
    @rule()
    def stop(self) -> None:
        """As asked."""
        self.trainer.ask(Stop())
        self.trainer.end()
        self.ended = RunState.STOPPED

    @precondition(lambda self: not self.live)
    @rule(data=st.data(), rate=st.none() | RATES, steps=st.none() | COUNTS)
    def resume(self, data: st.DataObject, rate: float | None, steps: int | None) -> None:
        """From the newest checkpoint, or an earlier one; perhaps with another recipe."""
        there = list(checkpoints_in(self.run.checkpoints_path))
        step = data.draw(st.none() | st.sampled_from(there)) if there else None
        if there and rate is not None:
            set_recipe(self.run, **{"optimizer.learning_rate": rate})
        if there and steps is not None:
            set_recipe(self.run, **{"accumulation.gradient_accumulation_steps": steps})
        self.start(*([] if step is None else ["--from-step", str(step)]))

    # -------------------------------------------------------------------------- what must hold

    @invariant()
    def all_tell_the_same(self) -> None:
        """The trainer's own checkpoint, the fold, the window, the list and `show`."""
        told = self.told()
        facts = RunFacts(self.asked).take_all(told)
        state = RunState.PAUSED if self.live else self.ended
        if self.ended is RunState.STOPPED or (self.live and _is_last(told)):
            held = checkpoint.read_state(list(checkpoints_in(self.run.checkpoints_path).values())[-1])
            assert msgspec.convert(held["standing"]["settings"], Settings).by_key() == _now(facts)
        assert _now(RunFacts(self.asked).take_all(map(_as_older, told))) == _now(facts)

        steps = [record for record in told if isinstance(record.event, OptimizerStepMeasured)]
        reached = facts.progress(steps[-1] if steps else None)
        measured = [
            (record.seq, record.event.step)
            for record in steps
            if isinstance(record.event, OptimizerStepMeasured)
        ]
        kept = [step for seq, step in measured if not facts.is_superseded(seq, step)]
        assert reached is not None
        assert kept == list(range(1, reached.step + 1))

        self.window.store._lock_due = 0.0
        while self.window.tick() or self.window.store.is_behind:
            pass
        self.window.store._lock_due = 0.0
        self.window.tick()
        assert self.window.settings == facts.settings
        assert self.window.checkpoints == facts.checkpoints(3)
        assert self.window.store.accumulation_steps == facts.settings.accumulation_steps  # type: ignore[union-attr]
        listed = summarise(self.run)
        assert (listed.state, listed.step, listed.attempt) == (state, reached.step, facts.attempt)
        assert self.window.state is state
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            assert main(["show", self.run.id]) == 0
        assert f"{state:11}  step {reached.step:,}" in shown.getvalue().splitlines()[0]

    def teardown(self) -> None:
        """What is exported tells the same steps; the trainer goes."""
        if not hasattr(self, "trainer"):
            return
        self.trainer.__exit__(None, None, None)
        self.window.close()
        reached = summarise(self.run).step
        out = self.folder / "exported"
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["export", self.run.id, "--format", "csv", "--output", str(out)]) == 0
        with (out / "OptimizerStepMeasured.csv").open() as file:
            kept = [int(row["step"]) for row in csv.DictReader(file) if row["superseded"] == "0"]
        assert kept == list(range(1, reached + 1))
        shutil.rmtree(self.folder)


def _now(facts: RunFacts) -> dict[str, Any]:
    assert facts.settings is not None
    return facts.settings.by_key()


def _is_last(told: list[Record]) -> bool:
    """Whether the newest checkpoint was saved after everything that changes what is in force."""
    changes = (AccumulationChanged, SettingChanged, RolledBack, RunStarted, OptimizerStepMeasured)
    newest = next((r for r in reversed(told) if isinstance(r.event, (CheckpointSaved, *changes))), None)
    return newest is not None and isinstance(newest.event, CheckpointSaved)


def _as_older(record: Record) -> Record:
    """The record as a trainer wrote it that did not say what is in force."""
    if isinstance(record.event, RunStarted | RolledBack):
        older = msgspec.structs.replace(record.event, settings=None)
        return msgspec.structs.replace(record, event=older)
    return record


TestSoNow = SoNow.TestCase
TestSoNow.settings = settings(
    max_examples=8, stateful_step_count=14, deadline=None, suppress_health_check=list(HealthCheck)
)
