"""The torch side of an attempt: assemble, take up where the run stood, say so, train."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any, Final

import torch

from trainer_backend.protocol import (
    AnyEvent,
    CommandAccepted,
    Event,
    MicroBatchMeasured,
    PhaseEntered,
    RolledBack,
    RunEnded,
    RunFinished,
    RunStarted,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    Warned,
)
from trainer_backend.readings import Sampler, TorchMemory
from trainer_backend.recipe import Recipe
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import REPLAY_DECLINED, RunFacts
from trainer_backend.settings import differences
from trainer_backend.trainer.assembly import Parts, assemble, loss_unit_of
from trainer_backend.trainer.checkpoints import Checkpoints, recipe_changes
from trainer_backend.trainer.gates import Gates, Goals, goals_of, watching
from trainer_backend.trainer.lifecycle import Lifecycle
from trainer_backend.trainer.loop import Loop
from trainer_backend.trainer.metric_history import MetricHistory
from trainer_backend.trainer.noise import NoiseWatch
from trainer_backend.trainer.provenance import Commit, versions
from trainer_backend.trainer.ranked_steering import RankedSteering
from trainer_backend.trainer.replay import RecordedChanges, ReplayedSetting
from trainer_backend.trainer.saving import Standing
from trainer_backend.trainer.steering import Steering
from trainer_backend.trainer.targets import judge, spent
from trainer_backend.trainer.watch import Watch

SetCommand: Final = SetAccumulation | SetMicroBatchSize | SetLearningRate | SetMaxGradNorm
"""Commands that change a setting."""


class Training:
    """Holds the live objects from `assemble` to `close`."""

    def __init__(
        self, run: RunDirectory, recipe: Recipe, life: Lifecycle, steering: Steering | RankedSteering
    ) -> None:
        self._run = run
        self._recipe = recipe
        self._life = life
        self._steering = steering
        self._checkpoints = self._checkpoints_of()
        if life.steering is not None:
            life.steering.checkpoints = self._checkpoints.steps
        self._parts: Parts | None = None
        self._facts = RunFacts()
        self._goals = goals_of(recipe.config, life.put)
        self._put: Callable[[AnyEvent], None] = life.put
        self._replay = RecordedChanges()
        self._owed: list[CommandAccepted] = []
        self._sampler: Sampler | None = None
        self._watch: Watch | None = None
        self._loop: Loop | None = None

    def _checkpoints_of(self) -> Checkpoints:
        return Checkpoints(self._run, self._recipe.config.checkpoint, self._life)

    def assemble(self) -> None:
        """Build the task, the model, the engine and the data."""
        self._parts = self._assembled()
        self._life.progress = self._parts.accumulator

    def _assembled(self) -> Parts:
        return assemble(
            self._recipe, self._life.put, on_micro_batch=self._on_micro_batch, on_fact=self._on_fact
        )

    def take_up(self, facts: RunFacts, *, replay: bool) -> None:
        """Stand where the run stood: the newest good checkpoint, and what was changed after it."""
        parts = self._built()
        self._facts = facts
        if not facts.attempt:
            return
        self._life.put(PhaseEntered(phase="restoring-checkpoint"))
        standing = self._checkpoints.resume(parts)
        step = parts.accumulator.step
        place = None if standing is None else standing.journal
        changes = [
            ReplayedSetting(fact.step, fact.key, fact.after, micro_batches=fact.micro_batches)
            for fact in facts.changes_ahead(step, place)
        ]
        wanted = [] if standing is None else asked_by_recipe(parts, standing)
        recorded_ones = {(change.step, change.key, change.after) for change in changes}
        again = all((change.step, change.key, change.after) in recorded_ones for change in wanted)
        if not replay or not again:
            if changes:
                self._life.put(
                    Warned(code=REPLAY_DECLINED, values={"step": step + 1, "changes": len(changes)})
                )
            changes = []
        self._replay = RecordedChanges(changes if again else wanted)
        self._take_up_commands(facts, obey=replay)

    def _take_up_commands(self, facts: RunFacts, *, obey: bool) -> None:
        """Commands that were accepted before a kill: settings apply as was answered, others are reported."""
        self._owed = []
        for fact in facts.owed.values():
            if obey and isinstance(fact.asked, SetCommand):
                self._owed.append(fact)
                continue
            self._life.put(
                Warned(
                    code="command-not-obeyed",
                    values={"command": fact.command, "command_id": fact.command_id},
                )
            )

    def go_back(self, step: int, facts: RunFacts, *, stood_at: int) -> None:
        """Stand at the checkpoint of `step`: what came after it, until `stood_at`, is superseded.

        What was changed after it is not repeated; what the recipe says otherwise since then holds.
        """
        parts = self._built()
        self._facts = facts
        self._life.put(PhaseEntered(phase="restoring-checkpoint"))
        standing = self._checkpoints.go_back(parts, step)
        engine = parts.accumulator
        self._life.put(
            RolledBack(
                command_id=None,
                from_step=max(stood_at, engine.step),
                to_step=engine.step,
                to_samples=engine.samples_seen,
                to_tokens=engine.tokens_seen,
                settings=parts.settings.by_key(),
            )
        )
        self._replay = RecordedChanges(asked_by_recipe(parts, standing))
        self._take_up_commands(facts, obey=False)

    def run(self, commit: Commit) -> RunEnded:
        """Train until the run's length is reached, it is stopped, or it fails."""
        parts, life = self._built(), self._life
        self._goals = Goals(self._make_gates(parts), self._evaluations_so_far(parts))
        if self._goals.gates:
            self._put = watching(life.put, self._goals.gates.see)
        self._sampler = self._sampler_of(parts)
        if self._sampler is not None:
            self._sampler.start()
        life.put(self._started(parts, commit))
        loop = self._loop = self._loop_of(parts)
        # A model is compiled in its first window; the loop says when that is over.
        life.put(PhaseEntered(phase="compiling" if self._recipe.config.run.compile else "training"))
        life.loading = False
        self._steering.begin(parts.accumulator.step + 1, parts.settings)
        ended = loop.run()
        if isinstance(ended, RunFinished):
            self._judge()
        return ended

    def _judge(self) -> None:
        """Hold what was reached against the recipe's targets."""
        assert self._life.writer is not None
        self._life.writer.flush()
        engine, gates = self._built().accumulator, self._goals.gates
        for verdict in judge(
            self._recipe.config, self._run.journal_path,
            step=engine.step, samples_seen=engine.samples_seen, overridden=gates.overridden,
        ):  # fmt: skip
            self._life.put(verdict)

    def _sampler_of(self, parts: Parts) -> Sampler | None:
        every_s = self._recipe.config.run.readings_every_s
        return Sampler(self._watched().sampled, parts.devices, every_s, torch_memory_of(parts.device))

    def _loop_of(self, parts: Parts) -> Loop:
        return Loop(parts, self._checkpoints, self._steering, self._put, **self._loop_options())

    def _loop_options(self) -> dict[str, Any]:
        return {
            "replay": self._replay,
            "owed": self._owed,
            "noise": self._noise_watch(),
            "watch": self._watched(),
            "goals": self._goals,
        }

    def _watched(self) -> Watch:
        """What looks for faults and drift; one an attempt."""
        if self._watch is None:
            parts = self._built()
            by_tokens = parts.config.accumulation.ends_by_tokens
            self._watch = Watch(parts.accumulator, self._put, by_tokens=by_tokens)
        return self._watch

    def _noise_watch(self) -> NoiseWatch:
        """What has been measured of the noise so far, in earlier attempts too."""
        noise, step = NoiseWatch(self._life.put), self._built().accumulator.step
        if step:
            noise.take_up(self._run, step)
        return noise

    def close(self) -> None:
        """End the sampler and the loader's workers."""
        if self._sampler is not None:
            self._sampler.stop()
        if self._parts is not None:
            self._parts.stream.close()

    def _built(self) -> Parts:
        assert self._parts is not None
        return self._parts

    def _evaluations_so_far(self, parts: Parts) -> MetricHistory:
        """What was measured before, in earlier attempts too."""
        found = MetricHistory(self._recipe.config.early_stopping)
        if self._facts.attempt:
            found.take_up(self._run, self._facts, parts.accumulator.step)
        return found

    def _make_gates(self, parts: Parts) -> Gates:
        journal = self._run.journal_path
        before = spent(journal) if self._facts.attempt and journal.is_file() else None
        return Gates(
            self._recipe.config,
            self._life.put,
            samples_per_epoch=parts.stream.samples_per_epoch,
            overridden=self._facts.overridden,
            spent=before,
        )

    def _on_micro_batch(self, event: MicroBatchMeasured) -> None:
        if self._loop is not None:
            self._loop.on_micro_batch(event)

    def _on_fact(self, event: Event) -> None:
        self._life.put(event)  # type: ignore[arg-type]  # the engine tells facts of the protocol

    def _started(self, parts: Parts, commit: Commit) -> RunStarted:
        config, engine = self._recipe.config, parts.accumulator
        packages = ("torch", *getattr(parts.task, "versions", ()))
        return RunStarted(
            name=config.run.name or self._run.id,
            pid=os.getpid(),
            host=platform.node(),
            versions=versions(*packages),
            commit=commit.value(),
            devices=parts.devices,
            precision=parts.precision,
            parameters=parts.parameters,
            micro_batch_size=parts.settings.micro_batch_size,
            accumulation_steps=parts.settings.accumulation_steps,
            world_size=parts.settings.ranks,
            micro_batches=parts.settings.micro_batches,
            horizon_samples=parts.schedule.horizon_samples,
            max_samples=config.run.max_samples,
            max_optimizer_steps=config.run.max_optimizer_steps,
            samples_per_epoch=parts.stream.samples_per_epoch,
            loss_unit=loss_unit_of(parts.task),
            gradient_norm_every=config.run.gradient_norm_every,
            from_step=engine.step,
            from_samples=engine.samples_seen,
            from_tokens=engine.tokens_seen,
            settings=parts.settings.by_key(),
        )


def asked_by_recipe(parts: Parts, standing: Standing) -> list[ReplayedSetting]:
    """What the recipe says otherwise than when the checkpoint was saved."""
    step = parts.accumulator.step + 1
    asked = recipe_changes(parts, standing)
    return [
        ReplayedSetting(step, key, after, asked_by="recipe")
        for key, (_, after) in differences(parts.settings, asked).items()
    ]


def torch_memory_of(device: torch.device) -> Callable[[int], TorchMemory] | None:
    """What tells torch's own memory counters; None on a CPU, where torch keeps none."""
    if device.type == "cuda":

        def cuda(index: int) -> TorchMemory:
            return TorchMemory(
                allocated_bytes=torch.cuda.memory_allocated(index),
                reserved_bytes=torch.cuda.memory_reserved(index),
                allocated_peak_bytes=torch.cuda.max_memory_allocated(index),
                reserved_peak_bytes=torch.cuda.max_memory_reserved(index),
            )

        return cuda
    if device.type == "mps":

        def mps(index: int) -> TorchMemory:
            del index
            return TorchMemory(
                allocated_bytes=torch.mps.current_allocated_memory(),
                reserved_bytes=torch.mps.driver_allocated_memory(),
            )

        return mps
    return None
