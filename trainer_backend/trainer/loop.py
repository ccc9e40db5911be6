"""The loop: one optimizer step after the other, until the run ends. Read `Loop.run` downwards.

border      commands, the schedule of N, what is replayed; waits while paused
window      N micro-batches, one update; the learning rate is that of the samples at its end
after it    the measurement; evaluation and checkpoint where they are due
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from time import perf_counter
from typing import Final

from trainer_backend.data.order import DataPosition
from trainer_backend.engine import (
    Collated,
    NonFiniteError,
    StepOutOfMemory,
    WindowResult,
    WindowTotals,
    graphs_compiled,
)
from trainer_backend.errors import GradaccError, UsageError, WindowLeft
from trainer_backend.protocol import (
    AnyEvent,
    ArtifactSaved,
    CommandAccepted,
    EvaluationMeasured,
    MicroBatchMeasured,
    PhaseEntered,
    RunFinished,
    RunStopped,
    Scalar,
    Warned,
)
from trainer_backend.settings import Settings
from trainer_backend.tasks.making import method
from trainer_backend.trainer.assembly import Parts
from trainer_backend.trainer.border import Border
from trainer_backend.trainer.checkpoints import Checkpoints
from trainer_backend.trainer.evaluation import undisturbed
from trainer_backend.trainer.gates import Goals, goals_of
from trainer_backend.trainer.noise import NoiseWatch
from trainer_backend.trainer.ranked_steering import RankedSteering
from trainer_backend.trainer.replay import RecordedChanges
from trainer_backend.trainer.steering import Steering
from trainer_backend.trainer.watch import Watch

FIRST_SAVE_S: Final = 2.0
"""What a save is taken to last before the attempt's first one."""


NO_TOKENS: Final = (
    "accumulation.tokens_per_step needs to know how many tokens a micro-batch has, and this task does not"
    " count them. Give the task a method count(batch) that returns (samples, tokens), or remove the key."
)


class StopNow(WindowLeft):
    """Asked for in the middle of a window, which will be replayed."""


class Loop:
    """One attempt's training, from where `parts` stand."""

    def __init__(  # noqa: PLR0913 - what looks on, each of which tests leave out
        self,
        parts: Parts,
        checkpoints: Checkpoints,
        steering: Steering | RankedSteering,
        put: Callable[[AnyEvent], None],
        *,
        replay: RecordedChanges,
        owed: Sequence[CommandAccepted] = (),
        noise: NoiseWatch | None = None,
        watch: Watch | None = None,
        goals: Goals | None = None,
    ) -> None:
        self._parts = parts
        self._config = parts.config
        self._engine = parts.accumulator
        self._stream = parts.stream
        self._checkpoints = checkpoints
        self._steering = steering
        self._put = put
        goals = goals or goals_of(parts.config, put)
        self._evaluations = goals.evaluations
        self._border = Border(parts, checkpoints, steering, put, replay=replay, owed=owed, goals=goals)
        self._noise = noise or NoiseWatch(put)
        self._watch = watch or Watch(
            parts.accumulator, put, by_tokens=parts.config.accumulation.ends_by_tokens
        )
        self._evaluated_at = -1
        self._unmeasured: set[str] = set()
        self._graphs = 0
        self._first_step = parts.accumulator.step + 1
        self._updates_at_epoch = (parts.stream.position.epoch, parts.accumulator.updates)
        self._learning_rate = 0.0
        self._micro_batch_s = 0.0
        """How long one took in the last window, with its share of the optimizer's step."""

    @property
    def settings(self) -> Settings:
        """The settings that the next window will use."""
        return self._parts.settings

    def on_micro_batch(self, row: MicroBatchMeasured) -> None:
        """One was run: the one place inside a window where a stop takes hold."""
        self._put(row)
        self.stop_if_due(row.index + 1)

    def run(self) -> RunFinished | RunStopped:
        """Train to the run's end, or until asked to stop."""
        while (reason := self._end()) is None:
            self._border.cross()
            if self._steering.stopping:
                return self._stopped()
            start = self._stream.position
            try:
                result = self._window()
            except WindowLeft:
                self._stream.position = start
                return self._stopped()
            except StepOutOfMemory:
                if not self._border.recover_step():
                    raise
                continue
            except NonFiniteError as error:
                if (
                    error.result is None
                ):  # the window was undone; else it is consumed, and the run has diverged
                    self._keep_border(start)
                raise
            except Exception:
                self._keep_border(start)
                raise
            if result is None:
                reason = self._data_is_over()
                break
            self._watch_compiler(result)
            self._border.keep_ceiling(result)
            self._evaluate_if_due(result)
            self._checkpoints.save_if_due(self._parts, result.samples)
        return self._finished(reason)

    def _keep_border(self, start: DataPosition) -> None:
        """The window that failed was undone: what was trained before it goes to the disk."""
        self._stream.position = start
        self._checkpoints.save_after_failure(self._parts)

    # -------------------------------------------------------------------------- the window

    def _window(self) -> WindowResult | None:
        """One optimizer step over N micro-batches of b; None when no sample is left."""
        started = perf_counter()
        steps, size = self.settings.accumulation_steps, self.settings.micro_batch_size
        batches = self._until_enough(self._stream.window(steps, size))
        first = next(batches, None)
        if first is None:
            return None
        waited_s = perf_counter() - started
        guarded = chain((first,), self._until_stopped(batches))
        result = self._engine.window(guarded, before_step=self._set_learning_rate)
        result.data_wait_s += waited_s
        result.duration_s += waited_s
        self._micro_batch_s = result.duration_s / max(1, result.micro_batches)
        rate = self._learning_rate
        result.when_known(lambda: self._known(result, steps, size, rate))
        return result

    def _known(self, result: WindowResult, steps: int, size: int, learning_rate: float) -> None:
        """A window's numbers are there: on a GPU one window later."""
        measured = result.measured(accumulation_steps=steps, learning_rate=learning_rate)
        self._put(measured)
        self._noise.take(result)
        self._watch.take_step(measured, size, self._noise.scale.estimate())

    def _until_enough(self, batches: Iterator[Collated]) -> Iterator[Collated]:
        """The window's batches; with `tokens_per_step` none behind the one that makes them enough."""
        wanted, have = self._config.accumulation.tokens_per_step, 0
        for batch in batches:
            yield batch
            if wanted is None:
                continue
            tokens = self._engine.tokens_in(batch)
            if tokens is None:
                raise UsageError(NO_TOKENS)
            have += tokens
            if have >= wanted:
                return

    def _until_stopped(self, batches: Iterator[Collated]) -> Iterator[Collated]:
        """The window's batches. Raises StopNow between two: on a GPU it is the only place."""
        for number, batch in enumerate(batches, 1):
            self.stop_if_due(number)
            yield batch

    def stop_if_due(self, done: int) -> None:
        """After `done` micro-batches of a window: raises StopNow where it may not, or cannot, be finished.

        A signal's sender waits for its grace and no longer: what is left of the window and the save that
        follows must fit, by what the last ones took. Else the window is dropped, and repeated on resume.
        """
        if self._steering.asked == "stop-now":
            raise StopNow
        if self._steering.due_at == math.inf:
            return
        left_s = (self.settings.accumulation_steps - done) * self._micro_batch_s
        save_s = self._checkpoints.duration_s or FIRST_SAVE_S
        if time.monotonic() + left_s + save_s > self._steering.due_at:
            raise StopNow

    def _set_learning_rate(self, totals: WindowTotals) -> None:
        """The learning rate of a window is that at its end, on the sample clock."""
        ratio = self._parts.schedule.ratio(totals.samples_seen, totals.tokens_seen)
        peak = self.settings.learning_rate
        assert peak is not None  # unknown only where a loop is not ours
        self._learning_rate = peak * ratio
        for group, share in zip(self._engine.optimizer.param_groups, self._parts.rate_ratios, strict=True):
            group["lr"] = self._learning_rate * share

    def _end(self) -> str | None:
        """Why the run is over, if it is."""
        run, engine = self._config.run, self._engine
        if self._evaluated_at == engine.step and self._evaluations.have_stopped_improving():
            return "early-stopping"
        if run.max_optimizer_steps is not None and engine.updates >= run.max_optimizer_steps:
            engine.flush()  # deferred numbers may show that the last window was no update
            if engine.updates >= run.max_optimizer_steps:
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

    # ------------------------------------------------------------------- what else is due

    def _watch_compiler(self, result: WindowResult) -> None:
        """The first window compiles the model; a later graph means that a shape was new."""
        if not self._config.run.compile:
            return
        graphs = graphs_compiled()
        if result.step == self._first_step:
            self._put(PhaseEntered(phase="training"))
        elif graphs > self._graphs:
            self._put(Warned(code="recompiled", values={"step": result.step, "graphs": graphs}))
        self._graphs = graphs

    def _evaluate_if_due(self, result: WindowResult) -> None:
        every = self._config.evaluation.every_samples
        if every is not None and crossed(every, result.samples_seen - result.samples, result.samples_seen):
            self._evaluate()

    def _evaluate(self) -> None:
        """Measure, unless a stop is asked for meanwhile."""
        evaluation = self._parts.evaluation
        if evaluation is None:
            return
        self._put(PhaseEntered(phase="evaluating"))
        try:
            measured = evaluation.measure(self.settings.micro_batch_size, between=self._stop_evaluation)
            self._put(measured)
            self._evaluated_at = self._engine.step
            self._take_evaluation(measured)
            self._show_artifacts()
        except WindowLeft:
            pass
        self._put(PhaseEntered(phase="training"))

    def _take_evaluation(self, measured: EvaluationMeasured) -> None:
        """Keep the state where it is among the best; say once which metric nobody measures."""
        values = self._evaluations.add(measured)
        self._checkpoints.save_if_best(self._parts, values)
        wanted = {
            "checkpoint.metric": (self._config.checkpoint.keep_best, self._config.checkpoint.metric),
            "early_stopping.metric": (
                self._config.early_stopping.patience, self._config.early_stopping.metric,
            ),
        }  # fmt: skip
        for key, (is_asked, metric) in wanted.items():
            if is_asked and metric not in values and key not in self._unmeasured:
                self._unmeasured.add(key)
                known = ", ".join(sorted(values)) or "nothing"
                named: dict[str, Scalar] = {"key": key, "name": metric, "known": known}
                self._put(Warned(code="metric-not-measured", values=named))

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
        if self._steering.asked:
            raise StopNow

    def _stopped(self) -> RunStopped:
        reason = self._steering.asked
        with suppress(WindowLeft):  # the last micro-batches may be reported only now, and stop it again
            self._engine.flush()
        self._checkpoints.save_last(self._parts)
        return RunStopped(step=self._engine.step, samples_seen=self._engine.samples_seen, reason=reason)

    def _finished(self, reason: str) -> RunFinished:
        with suppress(WindowLeft):
            self._engine.flush()
        if self._evaluated_at != self._engine.step:
            self._evaluate()
        self._checkpoints.save_last(self._parts)
        ended = RunFinished(step=self._engine.step, samples_seen=self._engine.samples_seen, reason=reason)
        self._export()
        return ended

    def _export(self) -> None:
        """What the task leaves for other programs."""
        export = method(self._parts.task, "export")
        if export is not None:
            if self._config.checkpoint.export_best:
                step = self._checkpoints.load_best(self._parts)
                self._put(Warned(code="best-exported", values={"step": step or self._engine.step}))
            with self._engine.averaged():
                export(self._engine.model, self._checkpoints.run.path / "export")


def crossed(every: int, before: int, after: int) -> bool:
    """Whether a multiple of `every` lies in (before, after]."""
    return after // every > before // every
