"""A run's checkpoints: when one is saved, which is taken up, and what is said about it."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from trainer_backend.config import CheckpointSection
from trainer_backend.protocol import AnyEvent, CheckpointSaved, PhaseEntered, Scalar, Warned
from trainer_backend.run_directory import RunDirectory, checkpoints_in
from trainer_backend.schedule import schedule_of
from trainer_backend.settings import KEYS, Settings, settings_of
from trainer_backend.trainer import checkpoint
from trainer_backend.trainer.assembly import Parts
from trainer_backend.trainer.checkpoint import CheckpointError, CheckpointMisfitError
from trainer_backend.trainer.saving import Standing, put_back, take_out


class Checkpoints:
    """Saves on window borders, and finds the newest good one."""

    def __init__(
        self,
        run: RunDirectory,
        asked: CheckpointSection,
        put: Callable[[AnyEvent], None],
        place: Callable[[], tuple[int, int] | None],
    ) -> None:
        """`place()` gives the attempt and the journal's sequence number at this moment."""
        self.run = run
        self._place = place
        self._asked = asked
        self._put = put
        self._saved_at_s = time.monotonic()
        self._saved: tuple[int, Settings] | None = None
        self._told: CheckpointSaved | None = None
        """What was said of the newest one; None before this attempt wrote any."""

    def steps(self) -> list[int]:
        """Steps that lie on disk, the newest last; any thread."""
        return list(checkpoints_in(self.run.checkpoints_path))

    # -------------------------------------------------------------------------------- saving

    def save_if_due(self, parts: Parts, samples: int) -> None:
        """After a window of `samples`: save where the recipe asks for it."""
        every_samples, every_minutes = self._asked.every_samples, self._asked.every_minutes
        seen = parts.accumulator.samples_seen
        due = every_samples is not None and seen // every_samples > (seen - samples) // every_samples
        if every_minutes is not None:
            due = due or time.monotonic() - self._saved_at_s >= every_minutes * 60
        if due:
            self.save(parts)

    def save(self, parts: Parts, *, command_id: str | None = None, unless_saved: bool = False) -> None:
        """Save now, unless this very state lies on disk. A disk that refuses is said, and ends no run.

        Who asked for one is answered with the one that lies there; `unless_saved` says nothing then.
        """
        engine = parts.accumulator
        standing_now = (engine.step, parts.settings)
        if self._saved == standing_now:
            if unless_saved:
                return
            if self._told is not None and (self.run.path / self._told.path).exists():
                self._put(msgspec.structs.replace(self._told, command_id=command_id))  # one file, two answers
                return
        self._put(PhaseEntered(phase="saving"))
        started_s = time.monotonic()
        standing = Standing(
            settings=parts.settings,
            position=parts.stream.saved_position(),
            horizon_samples=parts.schedule.horizon_samples,
            recipe=msgspec.to_builtins(settings_of(parts.config)),
            journal=self._place(),
        )
        folder = self.run.checkpoints_path
        saved = take_out(engine, standing)
        saved.state["config"] = msgspec.to_builtins(parts.config)
        try:
            path, size_bytes = checkpoint.write(folder, engine.step, saved)
        except CheckpointError as error:
            values: dict[str, Scalar] = {"step": engine.step, "reason": str(error), "command_id": command_id}
            self._put(Warned(code="checkpoint-not-saved", values=values))
        else:
            checkpoint.keep_newest(folder, self._asked.keep)
            self._saved = standing_now
            self._told = CheckpointSaved(
                command_id=command_id,
                step=engine.step,
                samples_seen=engine.samples_seen,
                path=path.relative_to(self.run.path).as_posix(),
                size_bytes=size_bytes,
                duration_s=time.monotonic() - started_s,
            )
            self._put(self._told)
        self._saved_at_s = time.monotonic()
        self._put(PhaseEntered(phase="training"))

    # ------------------------------------------------------------------------------ taking up

    def go_back(self, parts: Parts, step: int) -> Standing:
        """Take up the checkpoint of `step`, and set later ones aside. Raises GradaccError."""
        self.run.check_checkpoint(step)
        path = checkpoints_in(self.run.checkpoints_path)[step]
        standing = self._take_up(parts, step, checkpoint.read(path))
        checkpoint.supersede_after(self.run.checkpoints_path, step)
        return standing

    def resume(self, parts: Parts) -> Standing | None:
        """Take the newest good checkpoint up; None when none was ever saved. Raises CheckpointError."""
        paths = list(reversed(checkpoints_in(self.run.checkpoints_path).items()))
        for step, path in paths:
            try:
                return self._take_up(parts, step, checkpoint.read(path))
            except CheckpointMisfitError:
                raise
            except CheckpointError as error:
                if path == paths[-1][1]:
                    message = (
                        f"No checkpoint of this run can be used. The last tried: {error} Copy checkpoints/"
                        f" again from where it is whole, or begin anew: gradacc run {self.run.recipe_path}."
                    )
                    raise CheckpointError(message) from error
                values: dict[str, Scalar] = {"step": step, "reason": str(error)}
                self._put(Warned(code="checkpoint-damaged", values=values))
        return None

    def roll_back(self, parts: Parts, step: int | None) -> bool:
        """Go back to the checkpoint of `step`, or to the newest good one; False when none can be read."""
        for found, path in reversed(checkpoints_in(self.run.checkpoints_path).items()):
            if step is not None and found != step:
                continue
            try:
                saved = checkpoint.read(path)
                self._take_up(parts, found, saved)
            except CheckpointError as error:
                self._put(Warned(code="checkpoint-damaged", values={"step": found, "reason": str(error)}))
                continue
            checkpoint.supersede_after(self.run.checkpoints_path, found)
            return True
        return False

    def _take_up(self, parts: Parts, step: int, saved: checkpoint.Saved) -> Standing:
        standing = put_back(parts.accumulator, saved)
        parts.stream.position = standing.position
        parts.schedule = schedule_of(parts.config, standing.horizon_samples)
        parts.settings = standing.settings
        engine = parts.accumulator
        engine.max_grad_norm = standing.settings.max_grad_norm
        if standing.settings.ema_decay is not None and engine.ema_decay is not None:
            engine.ema_decay = standing.settings.ema_decay
        self._saved, self._told = (step, standing.settings), None
        return standing


def recipe_changes(parts: Parts, standing: Standing) -> Settings:
    """The settings to go on with: the checkpoint's, but for what the recipe says otherwise than then."""
    asked = settings_of(parts.config)
    changed = {
        field: getattr(asked, field) for field in KEYS if getattr(asked, field) != standing.recipe.get(field)
    }
    return msgspec.structs.replace(standing.settings, **changed)
