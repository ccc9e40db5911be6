"""The loop on several ranks: the same decisions everywhere; what only one may do, rank 0 does."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

from trainer_backend.engine import Collated, WindowResult
from trainer_backend.engine.window import NoBatchError
from trainer_backend.protocol import MicroBatchMeasured
from trainer_backend.trainer.loop import Loop, StopNow
from trainer_backend.trainer.ranked_rows import RankedRows
from trainer_backend.trainer.world import World


class RankedLoop(Loop):
    """As `Loop`; every window is all ranks'."""

    def __init__(self, *args: Any, world: World, rows: RankedRows, **options: Any) -> None:  # noqa: ANN401 - Loop's
        super().__init__(*args, **options)
        self._world = world
        self._rows = rows

    def on_micro_batch(self, row: MicroBatchMeasured) -> None:
        """One was run on this rank."""
        self._rows.add(row)
        self.stop_if_due(row.index + 1)

    def stop_if_due(self, done: int) -> None:
        """Only a stop that shall not wait for the border: a signal's grace is the launcher's."""
        del done
        if self._steering.asked == "stop-now":
            raise StopNow

    def _window(self) -> WindowResult | None:
        """One optimizer step over M micro-batches, of which this rank runs its own. Collective."""
        started = perf_counter()
        settings, engine = self.settings, self._engine
        self._rows.begin(settings.micro_batches)
        batches = self._stream.window(settings.micro_batches, settings.micro_batch_size)
        samples_before, tokens_before = engine.samples_seen, engine.tokens_seen
        try:
            result = engine.window(
                self._until_stopped(self._noted(batches)), before_step=self._set_learning_rate
            )
        except NoBatchError:
            return None
        result.duration_s = perf_counter() - started
        agreed = engine.agreed
        assert agreed is not None
        rows = self._rows.all_rows(agreed, result.step, samples_before, tokens_before)
        for row in rows:
            self._put(row)
        told = self._rows.of_ranks(agreed, result.step, result.samples_seen, result.tokens_seen)
        for measured in told:
            self._put(measured)
        self._known(result, settings.accumulation_steps, settings.micro_batch_size, self._learning_rate)
        return result

    def _noted(self, batches: Iterator[Collated]) -> Iterator[Collated]:
        """This rank's batches, each with its place in the window kept."""
        start = self._stream.position.consumed
        for batch in batches:
            assert batch.samples is not None
            self._rows.given(self._stream.position.consumed - batch.samples - start, batch.samples)
            yield batch

    def _show_artifacts(self) -> None:
        with self._world.together():
            if self._world.leads:
                super()._show_artifacts()

    def _export(self) -> None:
        with self._world.together():
            if self._world.leads:
                super()._export()
