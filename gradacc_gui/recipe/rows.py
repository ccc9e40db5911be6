"""A few rows of cells in one line of text: "0: 4, 64000: 8". No Qt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

Row: TypeAlias = tuple[str, ...]


def rows_of(text: str, columns: int) -> list[Row]:
    """The cells of each row that is not empty. "1,000" is one cell: what separates ends in a blank."""
    rows = []
    for part in re.split(r",\s+", text):
        cells = [cell.strip() for cell in re.split(r":\s+", part, maxsplit=columns - 1)]
        if any(cells):
            rows.append(tuple([*cells, *[""] * columns][:columns]))
    return rows


def text_of_rows(rows: Sequence[Row]) -> str:
    """The same as text; what separates rows and cells there cannot stand inside a cell."""
    cells = [[re.sub(r"([,:])(\s+|$)", r"\1", cell.strip()) for cell in row] for row in rows]
    return ", ".join(": ".join(row) for row in cells if any(row))
