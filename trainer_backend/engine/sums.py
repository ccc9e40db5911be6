"""What a window's micro-batches have added up to, and each one's own numbers."""

from __future__ import annotations

import math

from trainer_backend.engine.batches import Piece
from trainer_backend.engine.denominators import Number


class Row:
    """One micro-batch that was run: numbers on the host, or 0-d tensors that come home later."""

    __slots__ = ("duration_s", "index", "norm", "piece", "samples_seen", "tokens_seen", "totals", "weights")

    def __init__(
        self,
        index: int,
        piece: Piece,
        weights: list[Number],
        totals: list[Number],
        norm: Number | None,
        duration_s: float,
        samples_seen: int,
        tokens_seen: int,
    ) -> None:
        self.index = index
        self.piece = piece
        self.weights = weights
        self.totals = totals
        self.norm = norm
        self.duration_s = duration_s
        self.samples_seen = samples_seen
        self.tokens_seen = tokens_seen

    def loss(self) -> float | None:
        """Mean over its own weights, all terms; None when it has no weight."""
        means = [
            float(total) / float(weight)
            for total, weight in zip(self.totals, self.weights, strict=True)
            if float(weight) > 0
        ]
        return sum(means) if means else None

    def is_finite(self) -> bool:
        """Whether every total that counts is a number (a total without weight does not count)."""
        return all(
            math.isfinite(float(total))
            for total, weight in zip(self.totals, self.weights, strict=True)
            if float(weight) > 0
        )


class Sums:
    """Sums over a window so far, one entry a term."""

    __slots__ = ("rows", "samples", "tokens", "totals", "weights")

    def __init__(self) -> None:
        self.weights: list[Number] = []
        self.totals: list[Number] = []
        self.samples = 0
        self.tokens = 0
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        """One micro-batch more. A term without weight adds nothing, whatever its total holds."""
        if not self.rows:
            self.weights = [0.0] * len(row.weights)
            self.totals = [0.0] * len(row.weights)
        for index, weight in enumerate(row.weights):
            if isinstance(weight, float) and weight == 0.0:
                continue
            self.weights[index] = self.weights[index] + weight
            self.totals[index] = self.totals[index] + row.totals[index]
        self.rows.append(row)

    def means(self) -> list[float | None]:
        """Each term's total over its denominator; None where that is 0."""
        return [
            float(total) / float(weight) if float(weight) > 0 else None
            for total, weight in zip(self.totals, self.weights, strict=True)
        ]

    def loss(self) -> float | None:
        """Sum of the means; None when no term has a weight."""
        means = [mean for mean in self.means() if mean is not None]
        return sum(means) if means else None
