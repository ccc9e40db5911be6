"""Non-finite windows: who caused them, and whether training may go on."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from trainer_backend.engine.batches import Piece
from trainer_backend.engine.passes import NonFiniteMicroBatch
from trainer_backend.engine.sums import Sums
from trainer_backend.engine.window import Feed, NonFiniteError, WindowResult
from trainer_backend.protocol import NonFiniteSeen

Policy: TypeAlias = Literal["skip", "drop", "halt"]


class Judge:
    """Counts windows with a non-finite value in a row; loss-scale back-offs are not counted."""

    def __init__(self, *, limit: int) -> None:
        self.in_a_row = 0
        self._limit = limit

    @staticmethod
    def culprits_in_losses(sums: Sums) -> list[NonFiniteMicroBatch]:
        """Micro-batches whose own loss shows it, without running anything again."""
        return [
            (row.index, "loss", loss if (loss := row.loss()) is not None else math.nan)
            for row in sums.rows
            if not row.is_finite()
        ]

    def facts(
        self, feed: Feed, culprits: list[NonFiniteMicroBatch], *, step: int, policy: Policy, norm: float
    ) -> tuple[NonFiniteSeen, ...]:
        """One fact a culprit, with its samples; one without a micro-batch when none was found."""
        return self._facts(feed.pieces, culprits, step=step, policy=policy, norm=norm)

    def _facts(
        self,
        pieces: list[Piece],
        culprits: list[NonFiniteMicroBatch],
        *,
        step: int,
        policy: Policy,
        norm: float,
    ) -> tuple[NonFiniteSeen, ...]:
        self.in_a_row += 1
        if not culprits:
            return (
                NonFiniteSeen(
                    step=step, index=None, quantity="gradient", value=norm, policy=policy,
                    sample_indices=(), in_a_row=self.in_a_row,
                ),
            )  # fmt: skip
        return tuple(
            NonFiniteSeen(
                step=step, index=index, quantity=quantity, value=value, policy=policy,
                sample_indices=pieces[index].indices, in_a_row=self.in_a_row,
            )
            for index, quantity, value in culprits
        )  # fmt: skip

    def facts_of(self, sums: Sums, *, step: int, norm: float) -> tuple[NonFiniteSeen, ...]:
        """The same for a window whose numbers were deferred: from its losses, else from its sampled norms."""
        culprits = self.culprits_in_losses(sums) or [
            (row.index, "gradient", row.norm)
            for row in sums.rows
            if row.norm is not None and not math.isfinite(row.norm)
        ]
        pieces = [row.piece for row in sums.rows]
        return self._facts(pieces, culprits, step=step, policy="skip", norm=norm)

    @staticmethod
    def sentence(seen: tuple[NonFiniteSeen, ...]) -> str:
        """The start of a sentence that names the first culprit."""
        first = seen[0]
        where = "" if first.index is None else f" of micro-batch {first.index + 1}"
        samples = ", ".join(map(str, first.sample_indices[:8]))
        return f"The {first.quantity}{where} is {first.value}{f' (samples {samples})' if samples else ''}"

    def passed(self, result: WindowResult) -> WindowResult:
        """`result`, or `NonFiniteError` when too many windows in a row had a non-finite value."""
        if not result.non_finite:
            if not result.skipped:
                self.in_a_row = 0
            return result
        if self.in_a_row < self._limit:
            return result
        message = (
            f"{self.sentence(result.non_finite)} at step {result.step}, and {self.in_a_row} steps in a "
            "row had such a value: the model has probably diverged. Go back to the last good checkpoint, "
            "with a lower learning rate."
        )
        raise NonFiniteError(
            message,
            code="non-finite-in-a-row",
            seen=result.non_finite,
            result=result,
        )
