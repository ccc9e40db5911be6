"""A measurement's newest rows as float64 columns, in chunks, with summaries of 64 rows each.

A chunk is never copied or moved, so that appending costs the same at any length, and the oldest is
dropped whole. NaN and *unknown* (None in the journal) are told apart by the NaN's payload: NaN is
marked on a chart, unknown is a gap.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradacc_gui.series import Floats, Groups, concatenate
from trainer_backend.errors import RunDirectoryError
from trainer_backend.journal_trust import LARGEST_NUMBER

MISSING_BITS: Final = 0x7FF8_0000_0000_0ACC
MISSING: Final[float] = struct.unpack("<d", MISSING_BITS.to_bytes(8, "little"))[0]
"""What stands for None. A quiet NaN with a payload of its own; copies keep it, arithmetic may not."""

BLOCK: Final = 64
"""Rows a summary covers."""
CHUNK_ROWS: Final = 16_384
"""Under 4 MB a chunk, the widest track's too: beyond it numpy asks for huge pages, whose first touch takes
up to 20 ms."""
LARGEST_CHUNKS: Final = 32
"""Newest rows kept one by one: 32 chunks are half a million."""
SINGLE_ROWS: Final = 65_536
"""Most rows that are decimated one by one."""

LO, HI, TOTAL, COUNT, NAN, POSINF, NEGINF = range(7)
"""Rows of a summary: least and greatest finite value, sum and number of the finite, numbers of the others."""
SUMMARY_ROWS: Final = 7


def is_missing(values: Floats) -> npt.NDArray[np.bool_]:
    """Where a column holds *unknown*."""
    missing: npt.NDArray[np.bool_] = np.ascontiguousarray(values).view(np.uint64) == np.uint64(MISSING_BITS)
    return missing


def column(values: Sequence[Any]) -> Floats:
    """A column of numbers and None as float64. Raises RunDirectoryError: a journal of something else."""
    try:
        result = np.array(values, dtype=np.float64)  # None becomes a common NaN here
    except (TypeError, ValueError, OverflowError) as error:
        message = f"The journal is damaged: it holds a column that is not of numbers ({error})."
        raise RunDirectoryError(message) from error
    if np.isnan(result).any():
        result[[value is None for value in values]] = MISSING
    return result


def check_places(columns: Floats) -> None:
    """Raise RunDirectoryError unless columns (columns x rows) that place rows in the run are numbers."""
    if not (np.abs(columns) < LARGEST_NUMBER).all():
        message = "The journal is damaged: an event in it lacks its number, time, step or samples."
        raise RunDirectoryError(message)


def summarize(values: Floats) -> Floats:
    """Summaries of groups: values of shape (groups, rows) give (7, groups)."""
    result = np.zeros((SUMMARY_ROWS, values.shape[0]))
    finite = np.isfinite(values)
    if finite.all():
        result[LO], result[HI] = values.min(axis=1), values.max(axis=1)
        result[TOTAL], result[COUNT] = values.sum(axis=1), values.shape[1]
        return result
    count = finite.sum(axis=1)
    result[COUNT] = count
    result[LO] = np.where(count, np.where(finite, values, np.inf).min(axis=1), np.nan)
    result[HI] = np.where(count, np.where(finite, values, -np.inf).max(axis=1), np.nan)
    result[TOTAL] = np.where(finite, values, 0.0).sum(axis=1)
    result[NAN] = (np.isnan(values) & ~is_missing(values)).sum(axis=1)
    result[POSINF] = (values == np.inf).sum(axis=1)
    result[NEGINF] = (values == -np.inf).sum(axis=1)
    return result


def merge_summaries(summary: Floats, by: int) -> Floats:
    """Summaries of `by` neighbours each; shape (7, n) with n a multiple of `by`."""
    grouped = summary.reshape(SUMMARY_ROWS, -1, by)
    result: Floats = grouped.sum(axis=2)
    empty = result[COUNT] == 0
    result[LO] = np.where(empty, np.nan, np.fmin.reduce(grouped[LO], axis=1))
    result[HI] = np.where(empty, np.nan, np.fmax.reduce(grouped[HI], axis=1))
    return result


def items_from_rows(x: Floats, y: Floats) -> Groups:
    """Single rows, as what charts decimate."""
    finite = np.isfinite(y)
    if finite.all():
        nothing = np.zeros(len(y), dtype=np.bool_)
        return Groups(x, y, y, y, np.ones(len(y)), nothing, nothing, nothing)
    known = np.where(finite, y, np.nan)
    nan = np.isnan(y) & ~is_missing(y)
    return Groups(
        x, known, known, np.where(finite, y, 0.0), finite.astype(np.float64), nan, y == np.inf, y == -np.inf
    )


def items_from_summary(x: Floats, summary: Floats) -> Groups:
    """Summaries (7, n), as what charts decimate."""
    return Groups(
        x, summary[LO], summary[HI], summary[TOTAL], summary[COUNT],
        summary[NAN] > 0, summary[POSINF] > 0, summary[NEGINF] > 0,
    )  # fmt: skip


class Chunk:
    """Up to `CHUNK_ROWS` rows; summaries of whole blocks are made when first asked for."""

    def __init__(self, columns: int) -> None:
        self.data = np.empty((columns, CHUNK_ROWS))
        self.rows = 0
        self._summaries: dict[int, tuple[Floats, int]] = {}

    def append(self, block: Floats) -> int:
        """Take what fits of `block` (columns, rows); gives how many rows that was."""
        taken: int = min(block.shape[1], CHUNK_ROWS - self.rows)
        self.data[:, self.rows : self.rows + taken] = block[:, :taken]
        self.rows += taken
        return taken

    def truncate(self, rows: int) -> None:
        """Forget all but the first `rows` rows."""
        self.rows = rows
        whole = rows // BLOCK
        self._summaries = {
            index: (summary, min(done, whole)) for index, (summary, done) in self._summaries.items()
        }

    def summary(self, index: int) -> Floats:
        """Summaries of a column's whole blocks, shape (7, rows // 64)."""
        summary, done = self._summaries.get(index, (None, 0))
        if summary is None:
            summary = np.empty((SUMMARY_ROWS, CHUNK_ROWS // BLOCK))
        whole = self.rows // BLOCK
        if whole > done:
            rows = self.data[index, done * BLOCK : whole * BLOCK].reshape(-1, BLOCK)
            summary[:, done:whole] = summarize(rows)
        self._summaries[index] = (summary, whole)
        return summary[:, :whole]


class Track:
    """The newest rows of one measurement. Column names are given once; `seq` is the first."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.index = {name: place for place, name in enumerate(self.names)}
        self.chunks: list[Chunk] = []
        self.revision = 0
        """Rises with every change."""

    def __len__(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    def append(self, block: Floats) -> list[Chunk]:
        """Add rows, shape (columns, rows); gives chunks that had to be dropped, oldest first."""
        if not block.shape[1]:
            return []
        self.revision += 1
        while block.shape[1]:
            if not self.chunks or self.chunks[-1].rows == CHUNK_ROWS:
                self.chunks.append(Chunk(len(self.names)))
            block = block[:, self.chunks[-1].append(block) :]
        dropped = self.chunks[:-LARGEST_CHUNKS]
        del self.chunks[:-LARGEST_CHUNKS]
        return dropped

    def truncate(self, seq: int) -> None:
        """Forget rows numbered `seq` and later."""
        self.revision += 1
        while self.chunks:
            chunk = self.chunks[-1]
            rows = int(np.searchsorted(chunk.data[0, : chunk.rows], seq))
            chunk.truncate(rows)
            if rows:
                return
            self.chunks.pop()

    def tail(self, name: str, rows: int) -> Floats:
        """The newest `rows` values of a column, fewer when there are fewer."""
        index = self.index[name]
        parts: list[Floats] = []
        for chunk in reversed(self.chunks):
            parts.append(chunk.data[index, max(0, chunk.rows - rows) : chunk.rows])
            rows -= parts[-1].shape[0]
            if rows <= 0:
                break
        return np.concatenate(parts[::-1]) if parts else np.empty(0)

    def last(self, name: str) -> float:
        """The newest value of a column; MISSING when there is none."""
        if not self.chunks:
            return MISSING
        chunk = self.chunks[-1]
        return float(chunk.data[self.index[name], chunk.rows - 1])

    def first(self, name: str) -> float:
        """The oldest value still held one by one; MISSING when there is none."""
        return float(self.chunks[0].data[self.index[name], 0]) if self.chunks else MISSING

    def x_before(self, x_name: str, x: float, rows: int) -> float:
        """Where the row stands that lies `rows` rows before the first one at or after `x`."""
        index = self.index[x_name]
        place = sum(int(np.searchsorted(chunk.data[index, : chunk.rows], x)) for chunk in self.chunks)
        place = max(0, place - rows)
        for chunk in self.chunks:
            if place < chunk.rows:
                return float(chunk.data[index, place])
            place -= chunk.rows
        return x

    def items(self, x_name: str, name: str, x0: float, x1: float, limit: int) -> Groups:
        """Rows with x0 ≤ x ≤ x1 and one neighbour on each side; blocks of 64 when there are over `limit`."""
        x_index, index = self.index[x_name], self.index[name]
        bounds = [self._bounds(place, x_index, x0, x1) for place in range(len(self.chunks))]
        by_row = sum(end - begin for begin, end in bounds) <= limit
        parts = []
        for chunk, (begin, end) in zip(self.chunks, bounds, strict=True):
            if by_row:
                parts.append(items_from_rows(chunk.data[x_index, begin:end], chunk.data[index, begin:end]))
            elif begin < end:
                parts.extend(_blocks(chunk, x_index, index, begin, end))
        return concatenate(parts)

    def _bounds(self, place: int, x_index: int, x0: float, x1: float) -> tuple[int, int]:
        chunk = self.chunks[place]
        x = chunk.data[x_index, : chunk.rows]
        if (
            x[0] > x1
            and place > 0
            and self.chunks[place - 1].data[x_index, self.chunks[place - 1].rows - 1] > x1
        ):
            return 0, 0
        if x[-1] < x0 and place + 1 < len(self.chunks) and self.chunks[place + 1].data[x_index, 0] < x0:
            return 0, 0
        begin = int(np.searchsorted(x, x0, side="left"))
        end = int(np.searchsorted(x, x1, side="right"))
        return max(0, begin - 1), min(chunk.rows, end + 1)


def _blocks(chunk: Chunk, x_index: int, index: int, begin: int, end: int) -> list[Groups]:
    """Rows begin … end: single ones up to the first whole block, blocks, single ones after the last."""
    first, last = -(-begin // BLOCK), end // BLOCK
    if first >= last:
        return [items_from_rows(chunk.data[x_index, begin:end], chunk.data[index, begin:end])]
    head, tail = slice(begin, first * BLOCK), slice(last * BLOCK, end)
    x = chunk.data[x_index]
    middles = (
        x[first * BLOCK : last * BLOCK : BLOCK] + x[first * BLOCK + BLOCK - 1 : last * BLOCK : BLOCK]
    ) / 2
    return [
        items_from_rows(x[head], chunk.data[index, head]),
        items_from_summary(middles, chunk.summary(index)[:, first:last]),
        items_from_rows(x[tail], chunk.data[index, tail]),
    ]
