"""Checkpoints of a run with several replicated ranks: rank 0 writes them, all stand where they were taken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainer_backend.config import CheckpointSection
from trainer_backend.run_directory import RunDirectory, checkpoints_in
from trainer_backend.trainer import checkpoint
from trainer_backend.trainer.assembly import Parts
from trainer_backend.trainer.checkpoints import Checkpoints, KeptFor
from trainer_backend.trainer.lifecycle import Lifecycle
from trainer_backend.trainer.ranked_steering import RankedSteering
from trainer_backend.trainer.saving import Standing
from trainer_backend.trainer.world import World


class RankedCheckpoints(Checkpoints):
    """As `Checkpoints`; every public method but `steps` is collective."""

    def __init__(
        self,
        run: RunDirectory,
        asked: CheckpointSection,
        life: Lifecycle,
        *,
        world: World,
        steering: RankedSteering,
    ) -> None:
        super().__init__(run, asked, life)
        self._world = world
        self._steering = steering
        steering.is_time_up = self.is_time_up

    def save_if_due(self, parts: Parts, samples: int) -> None:
        """See `Checkpoints`. The clock is rank 0's, as it was when the window began."""
        if self.is_due_by_samples(parts, samples) or self._steering.is_save_due:
            self.save(parts)

    def _is_among_best(self, parts: Parts, values: Mapping[str, float]) -> bool:
        mine = super()._is_among_best(parts, values) if self._world.leads else False
        is_best: bool = self._world.share(mine)  # the others may look while rank 0 tidies up
        return is_best

    def save(self, parts: Parts, *, command_id: str | None = None, kept: KeptFor | None = None) -> None:
        """See `Checkpoints`. Raises GradaccError where the ranks' weights have come apart."""
        self._world.compare(parts.accumulator.model, parts.accumulator.step)
        if self._world.leads:
            super().save(parts, command_id=command_id, kept=kept)

    def save_last(self, parts: Parts) -> None:
        """See `Checkpoints`."""
        self._world.compare(parts.accumulator.model, parts.accumulator.step)
        with self._world.together():
            if self._world.leads:
                super().save_last(parts)

    def save_after_failure(self, parts: Parts) -> None:
        """See `Checkpoints`; the ranks may have come apart, so nothing is compared."""
        if self._world.leads:
            super().save_after_failure(parts)

    def go_back(self, parts: Parts, step: int) -> Standing:
        """See `Checkpoints`."""
        with self._world.together():
            standing = super().go_back(parts, step) if self._world.leads else None
        standing = self._follow(parts, step, standing)
        assert standing is not None
        return standing

    def resume(self, parts: Parts) -> Standing | None:
        """See `Checkpoints`: rank 0 finds the newest good one, and the others take up the same."""
        standing: Standing | None = None
        with self._world.together():
            if self._world.leads:
                standing = super().resume(parts)
        step = self._world.share(None if standing is None else parts.accumulator.step)
        return None if step is None else self._follow(parts, step, standing)

    def roll_back(self, parts: Parts, step: int | None) -> bool:
        """See `Checkpoints`."""
        found = False
        with self._world.together():
            if self._world.leads:
                found = super().roll_back(parts, step)
        to_step = self._world.share(parts.accumulator.step if found else None)
        if to_step is None:
            return False
        self._follow(parts, to_step, None)
        return True

    def _follow(self, parts: Parts, step: int, standing: Standing | None) -> Standing | None:
        """The other ranks take up what rank 0 has."""
        with self._world.together():
            if not self._world.leads:
                standing = self._take_up(parts, step, checkpoint.read(self._path_of(step)))
        return standing

    def _path_of(self, step: int) -> Path:
        return checkpoints_in(self.run.checkpoints_path)[step]
