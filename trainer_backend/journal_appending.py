"""Rows into a journal's tables, with the roll-ups that they complete, a transaction at a time. No torch.

The trainer's writer appends the events of its run; a mirror appends the rows that another machine's journal
has. Both leave the same file.
"""

from __future__ import annotations

import bisect
import operator
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from trainer_backend.journal_reader import newest_seq
from trainer_backend.journal_rows import (
    FACTOR,
    LEVELS,
    insert,
    insert_rollup,
    rollup_from_level,
    rollup_of,
    rows_from,
)
from trainer_backend.protocol import MEASUREMENTS, Event

Rows: TypeAlias = dict[type[Event], list[tuple[Any, ...]]]
_NO_ROWS: Final[tuple[tuple[Any, ...], ...]] = ()


class RowAppender:
    """Appends rows to the journal behind `connection`, whose schema is in place; knows what is rolled up."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.last = newest_seq(connection)
        """Number of the newest event in the journal."""
        # Buckets without a row leave no trace, so what is complete follows from the newest seq.
        self._rolled = {level: (self.last + 1) // FACTOR**level for level in range(1, LEVELS + 1)}
        begun = (self.last + 1) // FACTOR * FACTOR
        self._unrolled: Rows = {
            kind: connection.execute(rows_from(kind), (begun,)).fetchall() for kind in MEASUREMENTS
        }

    def append(
        self,
        rows: Mapping[type[Event], list[tuple[Any, ...]]],
        facts: Sequence[tuple[Any, ...]],
        last: int,
    ) -> None:
        """Add rows of measurements and of facts, in the order of seq, up to number `last`: all or none.

        Raises sqlite3.Error, or what SQLite says of a value that it cannot take.
        """
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            for kind, entries in rows.items():
                if entries:
                    insert(connection, kind, entries)
            if facts:
                connection.executemany("INSERT INTO facts VALUES (?,?,?,?,?)", facts)
            rolled, unrolled = self._roll_up(rows, last)
            connection.execute("COMMIT")
        except BaseException:  # undone, whatever it was, and raised again
            with suppress(sqlite3.Error):  # SQLite has rolled back by itself already, on a full disk
                connection.execute("ROLLBACK")
            raise
        self._rolled, self._unrolled, self.last = rolled, unrolled, last

    def _roll_up(
        self, rows: Mapping[type[Event], list[tuple[Any, ...]]], seq: int
    ) -> tuple[dict[int, int], Rows]:
        """Roll up every bucket that is complete at `seq`.

        Gives the first bucket not yet rolled, by level, and the rows of the one that is not complete.
        """
        unrolled = {kind: [*self._unrolled[kind], *rows.get(kind, _NO_ROWS)] for kind in MEASUREMENTS}
        complete = (seq + 1) // FACTOR
        if complete == self._rolled[1]:
            return self._rolled, unrolled
        rolled = self._rolled | {1: complete}
        for kind, found in unrolled.items():
            end = bisect.bisect_left(found, complete * FACTOR, key=operator.itemgetter(0))
            self._connection.executemany(insert_rollup(kind), rollup_of(kind, found[:end]))
            unrolled[kind] = found[end:]
        for level in range(2, LEVELS + 1):
            complete //= FACTOR
            first, end = rolled[level], complete
            if end <= first:
                break
            bounds = {"first": first * FACTOR, "end": end * FACTOR, "level": level}
            for kind in MEASUREMENTS:
                self._connection.execute(rollup_from_level(kind), bounds)
            rolled[level] = end
        return rolled, unrolled
