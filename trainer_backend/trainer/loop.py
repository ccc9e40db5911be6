"""The loop: one optimizer step after the other, until the run ends. Read `Loop.run` downwards.

border      commands, the schedule of N, what is replayed; waits while paused
window      N micro-batches, one update; the learning rate is that of the samples at its end
after it    the measurement; evaluation and checkpoint where they are due
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain
from time import perf_counter
from typing import assert_never

import msgspec

from trainer_backend.engine import StepOutOfMemory, WindowResult, WindowTotals
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import (
    AccumulationChanged,
    AnyEvent,
    ArtifactSaved,
    OptimizerStepMeasured,
    Pause,
    Paused,
    PhaseEntered,
    Resume,
    Resumed,
    RollBack,
    RolledBack,
    RunFinished,
    RunStopped,
    SaveCheckpoint,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    SettingChanged,
    Stop,
    Warned,
)
from trainer_backend.tasks.making import method
from trainer_backend.trainer.assembly import Parts
from trainer_backend.trainer.checkpoints import Checkpoints
from trainer_backend.trainer.evaluation import undisturbed
from trainer_backend.trainer.replay import CEILING, ENDED, Replay
from trainer_backend.trainer.settings import (
    FIELDS,
    KEYS,
    Settings,
    differences,
    with_accumulation,
    with_value,
)
from trainer_backend.trainer.steering import Pending, Steering, with_pending


class StopNow(BaseException):
    """Asked for in the middle of a window, which will be replayed."""


class Author(msgspec.Struct, frozen=True):
    """Who or what changes a setting."""

    name: str
    asked_at: float
    command_id: str | None = None


class Loop:
    """One attempt's training, from where `parts` stand."""

    def __init__(
        self,
        parts: Parts,
        checkpoints: Checkpoints,
        steering: Steering,
        put: Callable[[AnyEvent], None],
        *,
        replay: Replay,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        self._parts = parts
        self._config = parts.config
        self._engine = parts.accumulator
        self._stream = parts.stream
        self._checkpoints = checkpoints
        self._steering = steering
        self._put = put
        self._replay = replay
        self._heard = heard
        self._evaluated_at = -1
        self._recovered = False
        self._first_step = parts.accumulator.step + 1
        self._updates_at_epoch = (parts.stream.position.epoch, parts.accumulator.updates)
        self._learning_rate = 0.0

    @property
    def settings(self) -> Settings:
        """Those of the coming window."""
        return self._parts.settings

    def run(self) -> RunFinished | RunStopped:
        """Train to the run's end, or until asked to stop."""
        while (reason := self._end()) is None:
            self._border()
            if self._steering.stopping:
                return self._stopped()
            border = self._stream.position
            try:
                result = self._window(self.settings.accumulation_steps, self.settings.micro_batch_size)
            except StopNow:
                self._stream.position = border
                return self._stopped()
            except StepOutOfMemory:
                if not self._recover_step():
                    raise
                continue
            if result is None:
                reason = self._data_is_over()
                break
            if result.step == self._first_step and self._config.run.compile:
                self._put(PhaseEntered(phase="training"))
            self._keep_ceiling(result)
            self._evaluate_if_due(result)
            self._checkpoints.save_if_due(self._parts, result.samples)
        return self._finished(reason)

    # -------------------------------------------------------------------------- the window

    def _window(self, steps: int, size: int) -> WindowResult | None:
        """One optimizer step over `steps` micro-batches of `size`; None when no sample is left."""
        started = perf_counter()
        batches = self._stream.window(steps, size)
        first = next(batches, None)
        if first is None:
            return None
        waited_s = perf_counter() - started
        result = self._engine.window(chain((first,), batches), before_step=self._set_learning_rate)
        result.data_wait_s += waited_s
        result.duration_s += waited_s
        self._put(self._measured(result, steps))
        return result

    def _set_learning_rate(self, totals: WindowTotals) -> None:
        """The learning rate of a window is that at its end, on the sample clock."""
        ratio = self._parts.schedule.ratio(totals.samples_seen)
        self._learning_rate = self.settings.learning_rate * ratio
        for group, share in zip(self._engine.optimizer.param_groups, self._parts.rate_ratios, strict=True):
            group["lr"] = self._learning_rate * share

    def _measured(self, result: WindowResult, steps: int) -> OptimizerStepMeasured:
        return OptimizerStepMeasured(
            step=result.step,
            updates=result.updates,
            accumulation_steps=steps,
            micro_batches=result.micro_batches,
            micro_batch_size=result.micro_batch_size,
            samples=result.samples,
            tokens=result.tokens,
            weight=result.weight,
            loss=result.loss,
            gradient_norm=result.gradient_norm,
            learning_rate=self._learning_rate,
            samples_seen=result.samples_seen,
            tokens_seen=result.tokens_seen,
            duration_s=result.duration_s,
            data_wait_s=result.data_wait_s,
            samples_per_s=result.samples / result.duration_s,
            tokens_per_s=result.tokens / result.duration_s,
            loss_scale=result.loss_scale,
            skipped=result.skipped,
        )

    def _end(self) -> str | None:
        """Why the run is over, if it is."""
        run, engine = self._config.run, self._engine
        if run.max_optimizer_steps is not None and engine.updates >= run.max_optimizer_steps:
            return "max_optimizer_steps"
        epoch, updates = self._stream.position.epoch, engine.updates
        if epoch > self._updates_at_epoch[0] + 1:
            if updates == self._updates_at_epoch[1] and run.max_optimizer_steps is not None:
                raise GradaccError(
                    "A whole epoch passed without one update: every window was empty or not finite."
                    " Look at the losses and their weights."
                )
            self._updates_at_epoch = (epoch, updates)
        return None

    def _data_is_over(self) -> str:
        return "epochs" if self._config.run.max_samples is None else "max_samples"

    # -------------------------------------------------------------------------- the border

    def _border(self) -> None:
        """Obey what was asked, and wait while paused; the next window's number is settled here."""
        step = self._engine.step + 1
        self._replay_changes(step)
        self._follow_schedule(step)
        while not self._steering.start_window(step, self.settings):
            for pending in self._steering.take(step, self.settings):
                self._obey(pending, step)
                step = self._engine.step + 1
            if self._steering.stopping:
                return

    def _obey(self, pending: Pending, step: int) -> None:
        command = pending.command
        author = Author(command.asked_by, command.asked_at, command.id)
        match command:
            case SetAccumulation():
                after = with_accumulation(self.settings, command)
                self._change(after, author, step, always=KEYS["accumulation_steps"])
            case SetMicroBatchSize():
                self._allow(command.size)
                after = with_pending(self.settings, pending)
                self._change(after, author, step, always=KEYS["micro_batch_size"])
            case SetLearningRate():
                after = msgspec.structs.replace(self.settings, learning_rate=command.value)
                self._change(after, author, step, always=KEYS["learning_rate"])
            case SetMaxGradNorm():
                after = msgspec.structs.replace(self.settings, max_grad_norm=command.value)
                self._change(after, author, step, always=KEYS["max_grad_norm"])
            case Pause():
                self._steering.set_paused(paused=True)
                self._put(
                    Paused(command_id=command.id, step=step - 1, samples_seen=self._engine.samples_seen)
                )
            case Resume():
                self._steering.set_paused(paused=False)
                self._put(
                    Resumed(command_id=command.id, step=step - 1, samples_seen=self._engine.samples_seen)
                )
            case SaveCheckpoint():
                self._checkpoints.save(self._parts, command_id=command.id)
            case RollBack():
                self._roll_back(command.step, author)
            case Stop():
                raise AssertionError("a stop is no setting")
            case _:
                assert_never(command)

    def _allow(self, size: int) -> None:
        """A person asks for larger micro-batches again after an out-of-memory: try them."""
        ceiling = self._engine.micro_batch_ceiling
        if ceiling is not None and size > ceiling:
            self._engine.micro_batch_ceiling = None

    def _change(self, after: Settings, author: Author, step: int, *, always: str = "") -> None:
        """Make `after` the settings from window `step` on, and say what changed; `always`, this key."""
        if author.command_id is not None:
            self._leave_replay(step)
        before = self.settings
        apply(self._parts, after)
        self._announce(before, after, author, step, always=always)

    def _announce(
        self, before: Settings, after: Settings, author: Author, step: int, *, always: str = ""
    ) -> None:
        changed = differences(before, after)
        if always:  # every command's effect is a fact, also where it changes nothing
            value = getattr(after, FIELDS[always])
            changed = {always: (value, value)} | changed
        for key, (old, new) in changed.items():
            if key == KEYS["accumulation_steps"]:
                assert isinstance(old, int)
                assert isinstance(new, int)
                self._put(
                    AccumulationChanged(
                        command_id=author.command_id, step=step, before=old, after=new,
                        asked_by=author.name, asked_at=author.asked_at,
                    )
                )  # fmt: skip
            else:
                self._put(
                    SettingChanged(
                        command_id=author.command_id, step=step, key=key, before=old, after=new,
                        asked_by=author.name, asked_at=author.asked_at,
                    )
                )  # fmt: skip

    def _follow_schedule(self, step: int) -> None:
        """The recipe's schedule of N, by samples consumed."""
        points = self._config.accumulation.schedule
        reached = self.settings.schedule_points
        while reached < len(points) and points[reached].from_sample <= self._engine.samples_seen:
            after = msgspec.structs.replace(
                self.settings, accumulation_steps=points[reached].steps, schedule_points=reached + 1
            )
            self._change(after, Author("schedule", time.time()), step)
            reached += 1

    def _replay_changes(self, step: int) -> None:
        """What was changed here before the run was interrupted."""
        for change in self._replay.take(step):
            if change.key == CEILING:
                assert isinstance(change.after, int)
                self._engine.micro_batch_ceiling = change.after
            else:
                after = with_value(self.settings, change.key, change.after)
                self._change(after, Author(change.asked_by, time.time()), step)

    def _leave_replay(self, step: int) -> None:
        """A new wish: from here on the windows are others than those that were recorded."""
        if self._replay:
            self._replay.clear()
            self._put(Warned(code=ENDED, values={"step": step}))

    def _roll_back(self, to_step: int | None, author: Author) -> bool:
        """Stand at an earlier checkpoint again, everything as it was there; False when none is good."""
        before, from_step = self.settings, self._engine.step
        self._replay.clear()
        if not self._checkpoints.roll_back(self._parts, to_step):
            return False
        engine = self._engine
        self._put(
            RolledBack(
                command_id=author.command_id,
                from_step=from_step,
                to_step=engine.step,
                to_samples=engine.samples_seen,
                to_tokens=engine.tokens_seen,
            )
        )
        self._announce(before, self.settings, author, engine.step + 1)
        return True

    def _recover_step(self) -> bool:
        """After an update that ran out of memory half-way: from the last good checkpoint, once.

        From then on the optimizer updates one tensor at a time, which needs no temporary of them all.
        """
        if self._recovered or not self._roll_back(None, Author("out-of-memory", time.time())):
            return False
        self._recovered = True
        for group in self._engine.optimizer.param_groups:
            if "foreach" in group:
                group["foreach"] = False
        return True

    def _keep_ceiling(self, result: WindowResult) -> None:
        """After an out-of-memory: smaller micro-batches from now on, N so that the batch is kept."""
        if not result.out_of_memory:
            return
        size, settings = result.out_of_memory[-1].micro_batch_size, self.settings
        if size < settings.micro_batch_size and settings.effective_batch % size == 0:
            after = msgspec.structs.replace(
                settings, micro_batch_size=size, accumulation_steps=settings.effective_batch // size
            )
            self._change(after, Author("out-of-memory", time.time()), result.step + 1)

    # ------------------------------------------------------------------- what else is due

    def _evaluate_if_due(self, result: WindowResult) -> None:
        every = self._config.evaluation.every_samples
        if every is not None and crossed(every, result.samples_seen - result.samples, result.samples_seen):
            self._evaluate()

    def _evaluate(self) -> None:
        """Measure, unless a stop is asked for meanwhile."""
        evaluation = self._parts.evaluation
        if evaluation is None or self._evaluated_at == self._engine.step:
            return
        self._put(PhaseEntered(phase="evaluating"))
        try:
            self._put(evaluation.measure(self.settings.micro_batch_size, between=self._stop_evaluation))
            self._evaluated_at = self._engine.step
            self._show_artifacts()
        except StopNow:
            pass
        self._put(PhaseEntered(phase="training"))

    def _show_artifacts(self) -> None:
        """Pictures and texts that the task makes at an evaluation."""
        make = method(self._parts.task, "artifacts")
        if make is None:
            return
        folder = self._checkpoints.run.path / "artifacts" / f"step-{self._engine.step:09d}"
        engine = self._engine
        with undisturbed(engine.model, engine.device), engine.averaged():
            engine.model.eval()
            for kind, path, caption in make(engine.model, folder):
                relative = path.relative_to(self._checkpoints.run.path).as_posix()
                self._put(ArtifactSaved(step=engine.step, kind=kind, path=relative, caption=caption))

    def _stop_evaluation(self) -> None:
        if self._steering.stopping:
            raise StopNow

    def _stopped(self) -> RunStopped:
        reason = self._steering.stopping
        self._heard()
        self._checkpoints.save(self._parts, unless_saved=True)
        return RunStopped(step=self._engine.step, samples_seen=self._engine.samples_seen, reason=reason)

    def _finished(self, reason: str) -> RunFinished:
        self._evaluate()
        self._checkpoints.save(self._parts, unless_saved=True)
        self._export()
        return RunFinished(step=self._engine.step, samples_seen=self._engine.samples_seen, reason=reason)

    def _export(self) -> None:
        """What the task leaves for other programs."""
        export = method(self._parts.task, "export")
        if export is not None:
            with self._engine.averaged():
                export(self._engine.model, self._checkpoints.run.path / "export")


def crossed(every: int, before: int, after: int) -> bool:
    """Whether a multiple of `every` lies in (before, after]."""
    return after // every > before // every


def apply(parts: Parts, after: Settings) -> None:
    """Bring settings to the engine and the optimizer."""
    before, engine = parts.settings, parts.accumulator
    parts.settings = after
    engine.max_grad_norm = after.max_grad_norm
    if after.ema_decay is not None and engine.ema_decay is not None:
        engine.ema_decay = after.ema_decay
    for group in engine.optimizer.param_groups:
        if after.beta2 is not None and "betas" in group:
            group["betas"] = (group["betas"][0], after.beta2)
        if before.weight_decay and after.weight_decay != before.weight_decay:
            group["weight_decay"] *= after.weight_decay / before.weight_decay
