"""A run's evaluations by step: what they measured and made, and how a table of theirs is tinted. No Qt."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gradacc_gui.store import RunStore
from trainer_backend.protocol import ArtifactSaved, EvaluationMeasured, Record


class StepResults(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be seen of one step."""

    step: int
    at: float
    """When the newest part of it was written, in seconds since the epoch."""
    measured: EvaluationMeasured | None
    artifacts: tuple[ArtifactSaved, ...]
    """In the order in which they were made."""


class Evaluations:
    """Follows a store; what a later attempt or a roll-back superseded is left out, as charts do."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._facts_taken = 0
        self._rows_until = 0
        self._stands = 0
        """How often an attempt began or the run went back, which supersedes what was made after it."""
        self._records: list[Record] = []

    def take(self) -> bool:
        """Take what the store has; tells whether `visible` may have changed."""
        new = self._store.facts[self._facts_taken :]
        self._facts_taken += len(new)
        last = self._store.last
        rows = self._store.evaluations(self._rows_until)
        self._rows_until = last
        made = [record for record in new if isinstance(record.event, ArtifactSaved)]
        self._records.extend(sorted([*rows, *made], key=lambda record: record.seq))
        before, self._stands = self._stands, len(self._store.so_now.stands)
        return bool(rows) or bool(made) or self._stands != before

    def visible(self) -> list[StepResults]:
        """Oldest first. A step that was evaluated again shows what is newest of each file."""
        measured: dict[int, EvaluationMeasured] = {}
        artifacts: dict[int, dict[str, ArtifactSaved]] = {}
        at: dict[int, float] = {}
        for record in self._records:
            if self._store.is_superseded(record.seq):
                continue
            match record.event:
                case EvaluationMeasured() as event:
                    measured[event.step] = event
                    at[event.step] = record.at
                case ArtifactSaved() as event:
                    artifacts.setdefault(event.step, {})[event.path] = event
                    at[event.step] = record.at
                case _:
                    pass
        return [
            StepResults(
                step=step,
                at=at[step],
                measured=measured.get(step),
                artifacts=tuple(artifacts.get(step, {}).values()),
            )
            for step in sorted(at)
        ]


def number(cell: str) -> float | None:
    """A cell's finite value; None for text."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def is_matrix(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether rows and columns bear the same names, as a confusion matrix's do."""
    return len(header) > 1 and tuple(row[0] for row in rows) == tuple(header[1:])


def shares(header: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[tuple[float | None, ...], ...]:
    """0 … 1 for each cell by its value, None for text. A matrix has one scale, other tables one a column."""
    if is_matrix(header, rows):  # the first column has the classes' names, be they numbers
        values = [[number(cell) for cell in row[1:]] for row in rows]
        low, span = _scale([0.0, *(value for row in values for value in row if value is not None)])
        return tuple((None, *(_share(value, low, span) for value in row)) for row in values)
    columns = []
    for column in zip(*rows, strict=True):
        found = [number(cell) for cell in column]
        low, span = _scale([value for value in found if value is not None])
        columns.append([_share(value, low, span) for value in found])
    return tuple(zip(*columns, strict=True))


def _scale(known: Sequence[float]) -> tuple[float, float]:
    """The least value, and how far the greatest lies above it."""
    return (min(known), max(known) - min(known)) if known else (0.0, 0.0)


def _share(value: float | None, low: float, span: float) -> float | None:
    if value is None:
        return None
    return (value - low) / span if 0 < span < math.inf else 0.0
