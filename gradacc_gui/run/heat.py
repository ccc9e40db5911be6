"""How strongly a table's cells are tinted, by their values. No Qt."""

from __future__ import annotations

import math
from collections.abc import Sequence

Row = Sequence[str]


def number(cell: str) -> float | None:
    """A cell's finite value; None for text."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def is_matrix(header: Row, rows: Sequence[Row]) -> bool:
    """Whether rows and columns bear the same names, as a confusion matrix's do."""
    return len(header) > 1 and tuple(row[0] for row in rows) == tuple(header[1:])


def shares(header: Row, rows: Sequence[Row]) -> tuple[tuple[float | None, ...], ...]:
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
