"""The product's own loop as one of the trainers: everything that an attempt has but its signals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainer_backend.inbox import Inbox
from trainer_backend.journal import JournalWriter
from trainer_backend.protocol import Event, RunStopped
from trainer_backend.recipe import load_recipe
from trainer_backend.run_directory import RunDirectory
from trainer_backend.trainer.lifecycle import Lifecycle
from trainer_backend.trainer.provenance import Commit
from trainer_backend.trainer.settings import Settings
from trainer_backend.trainer.steering import Steering
from trainer_backend.trainer.training import Training


class TakingTurns(Steering):
    """Steering whose borders are also the benchmark's."""

    border: Callable[[], None]

    def start_window(self, step: int, settings: Settings) -> bool:
        """See `Steering`; the turn may end here."""
        self.border()
        return super().start_window(step, settings)


class JournalInTurns(JournalWriter):
    """A journal that is written in its run's turns only, batch for batch as in any run."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.turn = threading.Lock()
        super().__init__(path, **options)

    def _append(self, batch: list[tuple[float, Event]]) -> None:
        with self.turn:
            super()._append(batch)


class Product:
    """An attempt on a run directory, journal and readings included."""

    model: torch.nn.Module

    def __init__(self, run: Path) -> None:
        self._run = RunDirectory(run)
        self._life = Lifecycle()
        self._turn = False

    def train(self, border: Callable[[], None]) -> None:
        """See `Trainer`."""
        run, life = self._run, self._life
        steering = TakingTurns(Inbox(run.inbox_path), life.put, started_at=time.time())
        life.steering = steering
        self._writer = writer = JournalInTurns(run.journal_path, attempt=1, on_tick=self._tick)
        life.writer = writer
        recipe = load_recipe(run.recipe_path)
        training = Training(run, recipe, life)
        try:
            training.assemble()
            assert training._parts is not None
            self.model = training._parts.accumulator.model

            def crossed() -> None:
                try:
                    border()
                finally:
                    if not self._turn:  # it was another's, see `settle`
                        self._turn = True
                        writer.turn.release()

            steering.border = crossed
            training.run(Commit(recipe.folder))
        finally:
            training.close()
            life.end(RunStopped(step=0, samples_seen=0, reason="stop"))

    def _tick(self) -> None:
        """The inbox is looked at while the run has its turn; else it would cost the others."""
        if self._turn:
            assert self._life.steering is not None
            self._life.steering.tick()

    def settle(self) -> None:
        """See `Trainer`: a batch that is being written is waited for, the next ones come in the next turn."""
        self._turn = False
        self._writer.turn.acquire()
