"""What a window's micro-batches have added up to, and each one's own numbers."""

from __future__ import annotations

import math

from trainer_backend.engine.batches import Piece
from trainer_backend.noise_scale import NoiseSums, sums_of
from trainer_backend.protocol import MicroBatchMeasured


class MicroBatchNumbers:
    """One micro-batch that was run: its weights and totals by term."""

    __slots__ = ("index", "norm", "piece", "samples_seen", "tokens_seen", "totals", "weights")

    def __init__(  # noqa: PLR0917 - made once a micro-batch, so by place
        self,
        index: int,
        piece: Piece,
        weights: list[float],
        totals: list[float],
        norm: float | None,
        samples_seen: int,
        tokens_seen: int,
    ) -> None:
        self.index = index
        self.piece = piece
        self.weights = weights
        self.totals = totals
        self.norm = norm
        self.samples_seen = samples_seen
        self.tokens_seen = tokens_seen

    def loss(self) -> float | None:
        """Mean over its own weights, all terms; None when it has no weight."""
        if len(self.weights) == 1:
            return self.totals[0] / self.weights[0] if self.weights[0] > 0 else None
        means = [
            total / weight for total, weight in zip(self.totals, self.weights, strict=True) if weight > 0
        ]
        return sum(means) if means else None

    def measured(self, step: int, duration_s: float) -> MicroBatchMeasured:
        """As the journal holds it."""
        piece = self.piece
        return MicroBatchMeasured(
            step=step,
            index=self.index,
            samples=piece.samples,
            tokens=piece.tokens or 0,
            weight=self.weights[0],
            loss=self.loss(),
            gradient_norm=self.norm,
            duration_s=duration_s,
            samples_seen=self.samples_seen,
            tokens_seen=self.tokens_seen,
        )

    def is_finite(self) -> bool:
        """Whether every total that counts is a number (a total without weight does not count)."""
        return all(
            math.isfinite(total)
            for total, weight in zip(self.totals, self.weights, strict=True)
            if weight > 0
        )


class Sums:
    """Sums over a window so far, one entry a term."""

    __slots__ = ("joined", "rows", "samples", "tokens", "totals", "weights")

    def __init__(self, terms: int) -> None:
        self.weights = [0.0] * terms
        self.totals = [0.0] * terms
        self.samples = 0
        self.tokens = 0
        self.rows: list[MicroBatchNumbers] = []
        """This process's own."""
        self.joined: tuple[int, int] | None = None
        """Micro-batches over all ranks, and samples of the largest; None: there are no other ranks."""

    @property
    def micro_batches(self) -> int:
        """How many were run, over all ranks."""
        return len(self.rows) if self.joined is None else self.joined[0]

    @property
    def largest(self) -> int:
        """Samples of the largest micro-batch."""
        if self.joined is not None:
            return self.joined[1]
        return max((row.piece.samples for row in self.rows), default=0)

    def add(self, weights: list[float], totals: list[float]) -> None:
        """One micro-batch more. A term without weight adds nothing, whatever its total holds."""
        self.widen(len(weights))
        for index, weight in enumerate(weights):
            if weight > 0.0:
                self.weights[index] += weight
                self.totals[index] += totals[index]

    def widen(self, terms: int) -> None:
        """Room for terms that were not known when the window began."""
        missing = [0.0] * (terms - len(self.weights))
        self.weights += missing
        self.totals += missing

    def noise(self) -> NoiseSums:
        """What the micro-batches' own norms add up to; NaN in it where one was not measured."""
        return sums_of([row.weights[0] for row in self.rows], [row.norm for row in self.rows])

    def means(self) -> list[float | None]:
        """Each term's total over its denominator; None where that is 0."""
        return [
            total / weight if weight > 0 else None
            for total, weight in zip(self.totals, self.weights, strict=True)
        ]

    def loss(self) -> float | None:
        """Sum of the means; None when no term has a weight."""
        means = [mean for mean in self.means() if mean is not None]
        return sum(means) if means else None
