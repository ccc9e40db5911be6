"""The noise scale of a live run: each measured window's sample, smoothed, into the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trainer_backend.engine import WindowResult
from trainer_backend.journal_reader import JournalReader
from trainer_backend.noise_scale import HALF_LIFE_WINDOWS, NoiseSample, NoiseScale
from trainer_backend.protocol import AnyEvent, NoiseScaleMeasured
from trainer_backend.run_directory import RunDirectory

REMEMBERED: Final = int(4 * HALF_LIFE_WINDOWS)
"""Rows of earlier attempts that a resumed run takes up; older ones would hardly count."""


class NoiseWatch:
    """Puts a `NoiseScaleMeasured` for each window whose micro-batches' norms were all measured."""

    def __init__(self, put: Callable[[AnyEvent], None]) -> None:
        self._put = put
        self.scale = NoiseScale()

    def take_up(self, run: RunDirectory, until_step: int) -> None:
        """Go on from what earlier attempts measured, until the checkpoint at `until_step`."""
        reader = JournalReader(run.journal_path)
        try:
            rows = reader.select(
                "SELECT step, seq, micro_batches, trace, squared_gradient FROM NoiseScaleMeasured"
                " WHERE step<=? ORDER BY seq DESC LIMIT ?",
                (until_step, REMEMBERED),
            )
        finally:
            reader.close()
        newest: dict[int, NoiseSample] = {}
        for step, _, micro_batches, trace, squared in rows:  # the newest row of a step is the one that counts
            newest.setdefault(
                step, NoiseSample(micro_batches=micro_batches, trace=trace, squared_gradient=squared)
            )
        for step in sorted(newest):
            self.scale.add(newest[step])

    def take(self, result: WindowResult) -> None:
        """A window is over and its numbers are known."""
        if result.noise is None:
            return
        self.scale.add(result.noise)
        estimate = self.scale.estimate()
        assert estimate is not None
        self._put(
            NoiseScaleMeasured(
                step=result.step,
                samples_seen=result.samples_seen,
                tokens_seen=result.tokens_seen,
                micro_batches=result.noise.micro_batches,
                effective_batch=result.samples,
                trace=result.noise.trace,
                squared_gradient=result.noise.squared_gradient,
                windows=estimate.windows,
                noise_scale=estimate.value,
                noise_scale_low=estimate.low,
                noise_scale_high=estimate.high,
            )
        )
