"""Every rank's micro-batches, told to rank 0 within the vector that ends a window.

A rank's numbers stand in slots of a fixed length. What does not fit (micro-batches that were split) is
fetched after it, which all ranks see alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Final

from trainer_backend.engine.agreement import Agreement
from trainer_backend.engine.ranks import Ranks
from trainer_backend.protocol import MicroBatchMeasured, RankMeasured

ROW: Final = ("offset", "samples", "tokens", "weight", "loss", "gradient_norm", "duration_s")
HEAD: Final = 3
"""Numbers before the rows: how many rows, and the rank's memory in use and in all."""


@dataclasses.dataclass(slots=True)
class _Given:
    """A micro-batch as the stream gave it: where it begins in the window, over all ranks."""

    offset: int
    samples: int


class RankedRows:
    """Collects this rank's rows in a window, and puts all ranks' together. One for the attempt."""

    def __init__(self, ranks: Ranks, memory: Callable[[], tuple[int, int]]) -> None:
        self._ranks = ranks
        self._memory = memory
        self._rows: list[MicroBatchMeasured] = []
        self._given: list[_Given] = []
        self._room = 0
        ranks.bring = self._bring

    def begin(self, micro_batches: int) -> None:
        """A window of so many micro-batches over all ranks begins."""
        self._rows.clear()
        self._given.clear()
        self._room = -(-micro_batches // self._ranks.size)

    def given(self, offset: int, samples: int) -> None:
        """This rank runs the window's samples `offset` ... `offset + samples - 1`."""
        self._given.append(_Given(offset, samples))

    def add(self, row: MicroBatchMeasured) -> None:
        """A micro-batch has been run here."""
        self._rows.append(row)

    def _bring(self) -> Sequence[float]:
        numbers = [float(len(self._rows)), *map(float, self._memory())]
        for row in self._placed()[: self._room]:
            numbers += row
        return numbers + [0.0] * (HEAD + self._room * len(ROW) - len(numbers))

    def _placed(self) -> list[list[float]]:
        """This rank's rows as numbers, each with its place in the window."""
        placed, given, done = [], iter(self._given), 0
        now: _Given | None = None
        for row in self._rows:
            while now is None or done >= now.samples:
                done -= 0 if now is None else now.samples
                now = next(given)
            missing = math.nan
            placed.append(
                [
                    float(now.offset + done), float(row.samples), float(row.tokens), row.weight,
                    missing if row.loss is None else row.loss,
                    missing if row.gradient_norm is None else row.gradient_norm,
                    row.duration_s,
                ]
            )  # fmt: skip
            done += row.samples
        return placed

    def all_rows(
        self, agreed: Agreement, step: int, samples_before: int, tokens_before: int
    ) -> list[MicroBatchMeasured]:
        """The window's micro-batches over all ranks, in its order. Collective where some did not fit."""
        told = [(rank, row) for rank, numbers in enumerate(agreed.brought) for row in _rows_of(numbers)]
        if any(numbers[0] > self._room for numbers in agreed.brought):
            rest = self._ranks.gather(self._placed()[self._room :])
            told += [(rank, row) for rank, rows in enumerate(rest) for row in rows]
        told.sort(key=lambda entry: entry[1][0])
        rows, tokens_seen = [], tokens_before
        for index, (rank, row) in enumerate(told):
            offset, samples, tokens, weight, loss, norm, duration_s = row
            tokens_seen += int(tokens)
            rows.append(
                MicroBatchMeasured(
                    step=step,
                    index=index,
                    rank=rank,
                    samples=int(samples),
                    tokens=int(tokens),
                    weight=weight,
                    loss=None if weight <= 0 else loss,
                    gradient_norm=None if math.isnan(norm) else norm,
                    duration_s=duration_s,
                    samples_seen=samples_before + int(offset + samples),
                    tokens_seen=tokens_seen,
                )
            )
        return rows

    @staticmethod
    def of_ranks(agreed: Agreement, step: int, samples_seen: int, tokens_seen: int) -> list[RankMeasured]:
        """How each rank did in the window."""
        return [
            RankMeasured(
                step=step,
                rank=rank,
                samples_seen=samples_seen,
                tokens_seen=tokens_seen,
                micro_batches=report.micro_batches,
                computed_s=report.computed_s,
                waited_s=report.waited_s,
                memory_bytes=int(numbers[1]),
                memory_total_bytes=int(numbers[2]) or None,
            )
            for rank, (report, numbers) in enumerate(zip(agreed.reports, agreed.brought, strict=True))
        ]


def _rows_of(numbers: Sequence[float]) -> list[Sequence[float]]:
    rows = numbers[HEAD:]
    many = min(int(numbers[0]), len(rows) // len(ROW))
    return [rows[place * len(ROW) : (place + 1) * len(ROW)] for place in range(many)]
