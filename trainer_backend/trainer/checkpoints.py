"""A run's checkpoints: when one is saved, which is taken up, and what is said about it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from trainer_backend.best_checkpoint import EVALUATION, ranked
from trainer_backend.config import CheckpointSection
from trainer_backend.errors import GradaccError
from trainer_backend.goals import is_better
from trainer_backend.protocol import CheckpointSaved, PhaseEntered, Scalar, Warned
from trainer_backend.run_directory import RunDirectory, checkpoints_in
from trainer_backend.schedule import schedule_of
from trainer_backend.settings import KEYS, Settings, on_ranks, settings_of
from trainer_backend.trainer import checkpoint
from trainer_backend.trainer.assembly import Parts
from trainer_backend.trainer.checkpoint import CheckpointError, CheckpointMisfitError
from trainer_backend.trainer.lifecycle import Lifecycle
from trainer_backend.trainer.resume_check import check_recipe, check_surroundings, environment
from trainer_backend.trainer.saving import Standing, put_back, take_out

LAST_PATIENCE_S: Final = 60.0
"""How long a disk may refuse the last checkpoint before the run has failed."""
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 10.0


class RunMovedError(GradaccError):
    """The run's directory or its journal does not lie any more where the run was started."""

    code = "run-moved"


class LastCheckpointError(CheckpointError):
    """The checkpoint of a stop or of the run's end could not be saved, though it was tried for long."""

    code = "last-checkpoint-not-saved"


class KeptFor(NamedTuple):
    """Why a checkpoint is saved that does not fall due."""

    why: Literal["best", "before-change"]
    value: float | None = None


class Checkpoints:
    """Saves on window borders, and finds the newest good one."""

    def __init__(self, run: RunDirectory, asked: CheckpointSection, life: Lifecycle) -> None:
        assert life.writer is not None
        self.run = run
        self._life = life
        self._journal = life.writer
        self._asked = asked
        self._put = life.put
        self._saved_at_s = time.monotonic()
        self._saved: tuple[int, Settings] | None = None
        self._told: CheckpointSaved | None = None
        """What was said of the newest one; None before this attempt wrote any."""
        self._evaluation: tuple[int, dict[str, float]] = (-1, {})
        """The step of the last evaluation, and its numbers."""
        self._compares = True
        """Whether the checkpoint that is taken up was saved by another attempt: only the first can be."""
        self.duration_s: float | None = None
        """How long the last save took; None before this attempt's first."""

    def steps(self) -> list[int]:
        """Steps that lie on disk, the newest last; any thread."""
        return list(checkpoints_in(self.run.checkpoints_path))

    # -------------------------------------------------------------------------------- saving

    def save_if_due(self, parts: Parts, samples: int) -> None:
        """After a window of `samples`: save where the recipe asks for it."""
        if self.is_due_by_samples(parts, samples) or self.is_time_up():
            self.save(parts)

    def is_due_by_samples(self, parts: Parts, samples: int) -> bool:
        """Whether the recipe asks for one at this sample, in the window of `samples` that ended."""
        every, seen = self._asked.every_samples, parts.accumulator.samples_seen
        return every is not None and seen // every > (seen - samples) // every

    def is_time_up(self) -> bool:
        """Whether the recipe asks for one, so long after the last."""
        every_minutes = self._asked.minutes
        return every_minutes is not None and time.monotonic() - self._saved_at_s >= every_minutes * 60

    def save_if_best(self, parts: Parts, values: Mapping[str, float]) -> None:
        """After an evaluation: save and keep the state where it is among the best by the recipe's metric."""
        self._evaluation = parts.accumulator.step, dict(values)
        if self._is_among_best(parts, values):
            self._saved = None  # one that lies there already does not tell the evaluation
            self.save(parts, kept=KeptFor("best", values[self._asked.metric]))

    def _is_among_best(self, parts: Parts, values: Mapping[str, float]) -> bool:
        keep, value = self._asked.keep_best, values.get(self._asked.metric)
        if not keep or value is None or math.isnan(value):
            return False
        best = [one for one in self._ranked() if one[0] != parts.accumulator.step]
        return len(best) < keep or is_better(value, best[keep - 1][1], self._asked.mode)

    def save_before_change(self, parts: Parts) -> None:
        """Before a setting is changed by command: the way back, where the recipe wants it."""
        if self._asked.before_changes and parts.accumulator.step:
            self.save(parts, kept=KeptFor("before-change"))

    def _ranked(self) -> list[tuple[int, float]]:
        return ranked(self.run.checkpoints_path, self._asked.metric, self._asked.mode)

    def best_step(self) -> int | None:
        """The best checkpoint by the recipe's metric; None when none was measured."""
        return next((step for step, _ in self._ranked()), None)

    def save(self, parts: Parts, *, command_id: str | None = None, kept: KeptFor | None = None) -> None:
        """Save now, unless this very state lies on disk. A disk that refuses is said, and ends no run.

        Who asked for one is answered with the one that lies there. Raises RunMovedError.
        """
        if self._is_saved(parts) and self._told is not None and (self.run.path / self._told.path).exists():
            if command_id is not None:
                self._put(msgspec.structs.replace(self._told, command_id=command_id))  # one file, two answers
            return
        try:
            self._save(parts, command_id, kept=kept)
        except RunMovedError:
            raise
        except CheckpointError as error:
            values: dict[str, Scalar] = {
                "step": parts.accumulator.step, "reason": str(error), "command_id": command_id,
            }  # fmt: skip
            self._put(Warned(code="checkpoint-not-saved", values=values))

    def save_last(self, parts: Parts) -> None:
        """Save at a stop or at the end, unless this very state lies on disk.

        A disk that refuses is tried again for a while: all since the checkpoint before is at stake. Nothing
        that happens by itself cuts it short. Raises LastCheckpointError after that, and RunMovedError.
        """
        self._life.give_time()
        give_up_at = time.monotonic() + LAST_PATIENCE_S
        wait_s = FIRST_WAIT_S
        while not self._is_saved(parts) or not self._life.is_in_place():
            try:
                self._save(parts)
            except CheckpointError as error:
                step = parts.accumulator.step
                if time.monotonic() + wait_s > give_up_at:
                    message = (
                        f"The last checkpoint (of step {step}) could not be saved: {error} Free some disk"
                        " space and resume the run; it repeats what came after its newest checkpoint."
                    )
                    raise LastCheckpointError(message) from error
                if wait_s == FIRST_WAIT_S:
                    values: dict[str, Scalar] = {"step": step, "reason": str(error)}
                    self._put(Warned(code="last-checkpoint-waits", values=values))
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def save_after_failure(self, parts: Parts) -> None:
        """Leave the border that a failed window was undone to on the disk, beside all that lie there.

        What failed may have taken the device with it: then it is said that the border is lost. Never raises.
        """
        step = parts.accumulator.step
        if self._is_saved(parts) or step == 0:
            return
        try:
            self._save(parts, evicts=False)
        except Exception as error:  # noqa: BLE001 - the failure itself is what is reported
            values: dict[str, Scalar] = {"step": step, "reason": str(error) or type(error).__name__}
            self._put(Warned(code="border-not-saved", values=values))

    def _is_saved(self, parts: Parts) -> bool:
        return self._saved == (parts.accumulator.step, parts.settings)

    def _save(
        self,
        parts: Parts,
        command_id: str | None = None,
        *,
        evicts: bool = True,
        kept: KeptFor | None = None,
    ) -> None:
        """Raises CheckpointError and RunMovedError. Without `evicts` older ones stay, and NaN is refused."""
        run = self._run_now(parts)
        started_s = time.monotonic()
        self._put(PhaseEntered(phase="saving"))
        try:
            self._journal.sync()  # a checkpoint that a power cut leaves without its history is refused
            saved = self._take_out(parts)
            if not evicts:
                _refuse_non_finite(saved)
            step = parts.accumulator.step
            folder = run.checkpoints_path
            with self._life.saving(checkpoint.unfinished(folder, step), size_bytes_of(saved)):
                path, size_bytes = checkpoint.write(folder, step, saved)
            if evicts:
                best = [found for found, _ in self._ranked()[: self._asked.keep_best]]
                checkpoint.keep_newest(folder, self._asked.keep, besides=best)
            self._saved = (step, parts.settings)
            self.duration_s = time.monotonic() - started_s
            self._told = CheckpointSaved(
                command_id=command_id,
                step=step,
                samples_seen=parts.accumulator.samples_seen,
                path=path.relative_to(run.path).as_posix(),
                size_bytes=size_bytes,
                duration_s=self.duration_s,
                kept_as="" if kept is None else kept.why,
                value=None if kept is None else kept.value,
            )
            self._put(self._told)
            self._journal.sync()
        finally:
            self._saved_at_s = time.monotonic()
            self._put(PhaseEntered(phase="training"))
        if run != self.run:
            message = (
                f"The run's folder was moved from {self.run.path} to {run.path} while it trained. The"
                f" checkpoint of step {step} was saved there. Continue with: gradacc resume {run.path}"
            )
            raise RunMovedError(message)
        if not self._journal.is_in_place():
            message = (
                f"{run.journal_path.name} was removed from {run.path} while the run trained. Its history is"
                f" written there again. Continue with: gradacc resume {run.typed}"
            )
            raise RunMovedError(message)

    def _run_now(self, parts: Parts) -> RunDirectory:
        """The run where it lies now; its old path is never made again. Raises RunMovedError: nowhere."""
        lock = self._life.lock
        if lock is None or lock.is_in_place():
            return self.run
        now = lock.place_now()
        if now is None:
            message = (
                f"The run's folder {self.run.path} was deleted or replaced while it trained, so nothing can"
                f" be saved there. Training ended after step {parts.accumulator.step}."
            )
            raise RunMovedError(message)
        return RunDirectory(now)

    def _take_out(self, parts: Parts) -> checkpoint.Saved:
        standing = Standing(
            settings=parts.settings,
            position=parts.stream.saved_position(),
            horizon_samples=parts.schedule.horizon_samples,
            recipe=msgspec.to_builtins(settings_of(parts.config)),
            journal=self._journal.place(),
        )
        saved = take_out(parts.accumulator, standing)
        saved.state["config"] = msgspec.to_builtins(parts.config)
        saved.state["data"] = msgspec.to_builtins(parts.data)
        saved.state["environment"] = environment()
        measured_at, values = self._evaluation
        if measured_at == parts.accumulator.step:
            saved.state[EVALUATION] = {name: v for name, v in values.items() if math.isfinite(v)}
        return saved

    # ------------------------------------------------------------------------------ taking up

    def go_back(self, parts: Parts, step: int) -> Standing:
        """Take up the checkpoint of `step`, and set later ones aside. Raises GradaccError."""
        self.run.check_checkpoint(step)
        path = checkpoints_in(self.run.checkpoints_path)[step]
        standing = self._take_up(parts, step, checkpoint.read(path))
        checkpoint.supersede_after(self.run.checkpoints_path, step)
        return standing

    def resume(self, parts: Parts) -> Standing | None:
        """Take the newest good checkpoint up; None when none was ever saved. Raises CheckpointError.

        Those that cannot be read are set aside: taken by a later attempt, one would bring back another
        course of the run.
        """
        unreadable: list[Path] = []
        last: CheckpointError | None = None
        for step, path in reversed(checkpoints_in(self.run.checkpoints_path).items()):
            try:
                standing = self._take_up(parts, step, checkpoint.read(path))
            except CheckpointMisfitError:
                raise
            except CheckpointError as error:
                self._warn_unreadable(step, error)
                unreadable.append(path)
                last = error
                continue
            for damaged in unreadable:
                checkpoint.set_aside(damaged)
            return standing
        if last is None:
            return None
        message = (
            f"No checkpoint of this run can be used. The last tried: {last} Copy checkpoints/ again from"
            f" an intact copy, or start again: gradacc run {self.run.recipe_path}."
        )
        raise CheckpointError(message) from last

    def _warn_unreadable(self, step: int, error: CheckpointError) -> None:
        self._put(Warned(code="checkpoint-damaged", values={"step": step, "reason": str(error)}))

    def roll_back(self, parts: Parts, step: int | None) -> bool:
        """Go back to the checkpoint of `step`, or to the newest; to an older one where it is damaged.

        False when none can be read.
        """
        unreadable: list[Path] = []
        for found, path in reversed(checkpoints_in(self.run.checkpoints_path).items()):
            if step is not None and found > step:
                continue
            try:
                saved = checkpoint.read(path)
                self._take_up(parts, found, saved)
            except CheckpointError as error:
                self._warn_unreadable(found, error)
                unreadable.append(path)
                continue
            for damaged in unreadable:
                checkpoint.set_aside(damaged)
            checkpoint.supersede_after(self.run.checkpoints_path, found)
            return True
        return False

    def load_best(self, parts: Parts) -> int | None:
        """Put the best checkpoint's state into the live objects, to be exported; gives its step.

        None when there is none that can be read, which is said; nothing is set aside.
        """
        for step, _ in self._ranked():
            try:
                put_back(parts.accumulator, checkpoint.read(checkpoints_in(self.run.checkpoints_path)[step]))
            except CheckpointError as error:
                self._warn_unreadable(step, error)
                continue
            return step
        return None

    def flush_journal(self) -> None:
        """Have all that was put so far where readers see it."""
        self._journal.flush()

    def forget_saved(self) -> None:
        """What lies on disk for this step is not what the run does now: the next save writes it anew."""
        self._saved = None

    def _take_up(self, parts: Parts, step: int, saved: checkpoint.Saved) -> Standing:
        standing = put_back(parts.accumulator, saved)
        if self._compares:
            for said in (
                *check_recipe(parts.config, saved.state.get("config", {}), parts.accumulator.optimizer),
                *check_surroundings(saved.state, parts.data),
            ):
                self._put(said)
            self._compares = False
        parts.stream.position = standing.position
        parts.schedule = schedule_of(parts.config, standing.horizon_samples)
        parts.settings = on_ranks(standing.settings, parts.settings.ranks)
        engine = parts.accumulator
        engine.max_grad_norm = standing.settings.max_grad_norm
        if standing.settings.ema_decay is not None and engine.ema_decay is not None:
            engine.ema_decay = standing.settings.ema_decay
        self._saved, self._told = (step, parts.settings), None
        return standing


def size_bytes_of(saved: checkpoint.Saved) -> int:
    """About what a checkpoint will have on disk: its tensors."""
    tensors = (*saved.model.values(), *saved.training.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def recipe_changes(parts: Parts, standing: Standing) -> Settings:
    """The settings to go on with: the checkpoint's, but for what the recipe says otherwise than then."""
    asked = settings_of(parts.config)
    changed = {
        field: getattr(asked, field) for field in KEYS if getattr(asked, field) != standing.recipe.get(field)
    }
    return msgspec.structs.replace(parts.settings, **changed)


def _refuse_non_finite(saved: checkpoint.Saved) -> None:
    """Raises CheckpointError where a number of the state is none: nobody could go on from there."""
    for name, tensor in (saved.model | saved.training).items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            message = f"{name} has values that are not finite."
            raise CheckpointError(message)
