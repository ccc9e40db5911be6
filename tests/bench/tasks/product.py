"""The product's own loop as one of the trainers: everything that an attempt has but its signals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from trainer_backend.inbox import Inbox
from trainer_backend.journal import JournalWriter
from trainer_backend.protocol import RunStopped
from trainer_backend.recipe import load_recipe
from trainer_backend.run_directory import RunDirectory
from trainer_backend.settings import Settings
from trainer_backend.trainer.lifecycle import Lifecycle
from trainer_backend.trainer.provenance import Commit
from trainer_backend.trainer.steering import Steering
from trainer_backend.trainer.training import Training


class TakingTurns(Steering):
    """Steering whose borders are also the benchmark's."""

    border: Callable[[], None]

    def start_window(self, step: int, settings: Settings) -> bool:
        """See `Steering`; the turn may end here."""
        self.border()
        return super().start_window(step, settings)


class Product:
    """An attempt on a run directory, journal and readings included."""

    model: torch.nn.Module

    def __init__(self, run: Path) -> None:
        self._run = RunDirectory(run)

    def train(self, border: Callable[[], None]) -> None:
        """See `Trainer`."""
        run, life = self._run, Lifecycle()
        steering = TakingTurns(Inbox(run.inbox_path), life.put)
        steering.border = border
        life.steering = steering
        life.writer = JournalWriter(run.journal_path, attempt=1, on_tick=steering.tick)
        recipe = load_recipe(run.recipe_path)
        training = Training(run, recipe, life, steering)
        try:
            training.assemble()
            assert training._parts is not None
            self.model = training._parts.accumulator.model
            training.run(Commit(recipe.folder))
        finally:
            training.close()
            life.end(RunStopped(step=0, samples_seen=0, reason="stop"))
