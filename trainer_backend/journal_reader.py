"""The reading side of the journal: bounded slices, no cursor kept open, so the writer is never held up."""

# ruff: noqa: S608 - names of tables and columns come from our own types, values are bound
from __future__ import annotations

import functools
import hashlib
import math
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainer_backend.errors import RunDirectoryError
from trainer_backend.journal_mending import mend_unless_locked
from trainer_backend.journal_rows import columns, without_nan_text
from trainer_backend.journal_trust import (
    LARGEST_VALUE_BYTES,
    UntrustedError,
    check_head,
    check_numbers,
    check_tables,
    columns_of,
    facts_of,
    measurement_of,
)
from trainer_backend.protocol import FACTS, MEASUREMENTS, DeviceSampled, Event, Record
from trainer_backend.regular_files import check_regular

PATIENCE_S: Final = 0.02
"""How long a read waits for a lock (held only while a journal is opened, mended or sealed)."""
LONGEST_READ_S: Final = 30.0
"""A bounded read takes milliseconds; one of this length is not of a journal that we wrote."""
PAGE_FACTS: Final = 5_000
"""Facts of one statement."""
LARGEST_SEQ: Final = 2**63 - 1
LOOK_EVERY: Final = 100_000
"""Steps of SQLite's machine between two looks at the clock: about a millisecond."""
_BESIDE: Final = ("", "-wal", "-shm", "-journal")


class Slice:
    """What one read gives: all that happened after `after`, up to and including `last`."""

    __slots__ = ("after", "facts", "last", "path", "rows")

    def __init__(
        self,
        after: int,
        last: int,
        rows: dict[type[Event], list[tuple[Any, ...]]] | None = None,
        facts: list[Record] | None = None,
        *,
        path: Path = Path(),
    ) -> None:
        self.after = after
        self.last = last
        self.rows = {} if rows is None else rows
        self.facts = [] if facts is None else facts
        self.path = path
        """The journal that it was read from."""

    def __len__(self) -> int:
        return len(self.facts) + sum(map(len, self.rows.values()))

    def records(self) -> list[Record]:
        """Every event, typed, in the order of `seq`. Raises RunDirectoryError for a damaged journal."""
        records = list(self.facts)
        with damage_told(self.path):
            for kind, rows in self.rows.items():
                records += [measurement_of(kind, row) for row in rows]
        records.sort(key=lambda record: record.seq)
        return records


def _code_of(error: Exception) -> int:
    """SQLite's code; 0 where Python's own part of the library found the fault."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code


class damage_told:  # noqa: N801 - used as a statement; a generator costs a tenth of a whole list of runs
    """Make a RunDirectoryError of whatever shows that the journal at `path` cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        match error:
            case sqlite3.Error() if _code_of(error) == sqlite3.SQLITE_INTERRUPT:
                message = (
                    f"The journal {self._path} took too long to read."
                    " It is damaged, or its disk is very slow."
                )
            case sqlite3.Error() | UnicodeDecodeError():  # sqlite3 decodes names and texts in Python
                message = f"The journal {self._path} cannot be read: {error}. It is damaged or half copied."
            case UntrustedError():
                message = f"The journal {self._path} is damaged: {error}. Copy the run again, or delete it."
            case _:
                return
        raise RunDirectoryError(message) from error


class JournalReader:
    """Reads a journal while others write it. Every method raises RunDirectoryError for a damaged one.

    A journal that its trainer is just making is empty, not damaged; what a killed one left half done is
    undone first. `immutable` is only for a journal without a WAL in a place where nothing may be written
    (with a WAL it would hide rows, silently). `within_s`: longest time that all reads may take together.
    """

    def __init__(self, path: Path, *, immutable: bool = False, within_s: float = math.inf) -> None:
        if not path.is_file():
            message = f"There is no journal at {path}. The run directory is incomplete."
            raise RunDirectoryError(message)
        for suffix in _BESIDE:
            check_regular(f"{path}{suffix}")
        self.path = path
        self._told = damage_told(path)
        self._kinds: dict[type[Event], str] = {}
        self._columns: dict[type[Event], frozenset[str]] = {}
        self._wanted: dict[type[Event], tuple[str, ...]] = {}
        self._narrow: dict[type[Event], str] = {}
        self._ends_at = time.monotonic() + within_s
        self._deadline = self._ends_at
        if not immutable:
            mend_unless_locked(path)
        uri = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if immutable else "")
        with self._damage_told():
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=PATIENCE_S)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE_BYTES)
        self._connection.set_progress_handler(self._is_late, LOOK_EVERY)
        try:
            self._is_ready()
        except RunDirectoryError:
            self._connection.close()
            raise

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _damage_told(self) -> damage_told:
        self._deadline = min(self._ends_at, time.monotonic() + LONGEST_READ_S)
        return self._told

    def _is_ready(self) -> bool:
        """Whether the journal has its tables. They are made in one transaction, so all are there or none."""
        if self._kinds:
            return True
        with self._damage_told():
            try:
                self._kinds = self._known_kinds()
            except sqlite3.OperationalError as error:
                if not self._is_busy(error):
                    raise
        return bool(self._kinds)

    def _known_kinds(self) -> dict[type[Event], str]:
        """What to select of the tables this journal has, all seen in one state of it.

        They appear at once, but perhaps between two looks: who looks outside a transaction would find some
        of them missing, for as long as the reader lives.
        """
        connection = self._connection
        connection.execute("BEGIN")
        try:
            found = check_tables(connection)  # this holds the state
            self._columns = {
                kind: columns_of(connection, kind.__name__, found[kind.__name__])
                for kind in MEASUREMENTS
                if kind.__name__ in found
            }
        finally:
            connection.execute("COMMIT")
        return {kind: self._select(kind, columns(kind)) for kind in self._columns}

    def _select(self, kind: type[Event], wanted: tuple[str, ...]) -> str:
        return _select(kind.__name__, wanted, self._columns[kind])

    def read(self, after: int = 0, limit: int = 20_000) -> Slice:
        """At most about `limit` events after `after`, from one consistent state of the journal."""
        part = self._read(after, limit, self._kinds) if self._is_ready() else Slice(after, after)
        part.rows = {kind: without_nan_text(rows) for kind, rows in part.rows.items()}
        return part

    def read_numbers(self, after: int, limit: int, wanted: Mapping[type[Event], tuple[str, ...]]) -> Slice:
        """The same, with only the columns `wanted` of a measurement (`seq` the first), at half the time.

        For who takes many rows a second as numbers: NaN is the text 'NaN' still, which numpy and float()
        understand; `Slice.records` is not for these rows.
        """
        if not self._is_ready():
            return Slice(after, after)
        if self._wanted != wanted:
            self._wanted = dict(wanted)
            self._narrow = {
                kind: self._select(kind, names) for kind, names in wanted.items() if kind in self._kinds
            }
        return self._read(after, limit, self._narrow)

    def read_raw(
        self, after: int = 0, limit: int = 20_000
    ) -> tuple[dict[type[Event], list[tuple[Any, ...]]], list[tuple[Any, ...]], int]:
        """What `read` would give, as it lies in the tables: rows of measurements, rows of facts, last number.

        For who copies rows. Nothing of them is checked; NaN is the text 'NaN'.
        """
        found = self._found(after, limit, self._kinds) if self._is_ready() else None
        return ({}, [], after) if found is None else found

    def origin(self) -> str:
        """What tells this journal from any other: a digest of its first fact; empty while it has none."""
        first = self.select("SELECT seq, attempt, at, type, body FROM facts ORDER BY seq LIMIT 1")
        return hashlib.sha256(repr(first[0]).encode("utf-8", "replace")).hexdigest() if first else ""

    def _read(self, after: int, limit: int, selects: Mapping[type[Event], str]) -> Slice:
        found = self._found(after, limit, selects)
        if found is None:
            return Slice(after, after)
        rows, facts, last = found
        with self._damage_told():
            return Slice(after, last, rows, facts_of(facts), path=self.path)

    def _found(
        self, after: int, limit: int, selects: Mapping[type[Event], str]
    ) -> tuple[dict[type[Event], list[tuple[Any, ...]]], list[tuple[Any, ...]], int] | None:
        """What lies between `after` and `after + limit`, in one state of the journal; None: nothing new."""
        with self._damage_told():
            try:
                if self._newest_seq() <= after:
                    return None
                self._connection.execute("BEGIN")
                try:
                    return self._read_between(after, after + limit, selects)
                finally:
                    self._connection.execute("COMMIT")
            except sqlite3.OperationalError as error:
                if self._is_busy(error):  # being sealed or mended: nothing new now, the next look will tell
                    return None
                raise

    def _read_between(
        self, after: int, end: int, selects: Mapping[type[Event], str]
    ) -> tuple[dict[type[Event], list[tuple[Any, ...]]], list[tuple[Any, ...]], int]:
        rows: dict[type[Event], list[tuple[Any, ...]]] = {}
        last = after
        connection = self._connection
        for kind, select in selects.items():
            found = connection.execute(
                f"{select} WHERE seq>? AND seq<=? ORDER BY seq", (after, end)
            ).fetchall()
            if found:
                rows[kind] = found
                last = max(last, found[-1][0])
        facts = connection.execute(
            "SELECT seq, attempt, at, type, body FROM facts WHERE seq>? AND seq<=? ORDER BY seq", (after, end)
        ).fetchall()
        if facts:
            last = max(last, facts[-1][0])
        if last == after:  # a gap (lost measurements) wider than the limit: there is more behind it
            last = self._first_after(end) - 1
        return rows, facts, last

    def _first_after(self, seq: int) -> int:
        """The number of the first event behind `seq`; the caller knows that there is one."""
        tables = ("facts", *(kind.__name__ for kind in self._kinds))
        firsts = " UNION ALL ".join(f"SELECT min(seq) AS first FROM {table} WHERE seq>?" for table in tables)
        found = self._connection.execute(
            f"SELECT min(first) FROM ({firsts})", (seq,) * len(tables)
        ).fetchone()
        return check_head(found[0])

    def head(self) -> int:
        """The newest sequence number; 0 when there is none."""
        if not self._is_ready():
            return 0
        with self._damage_told():
            return self._newest_seq()

    def _newest_seq(self) -> int:
        return check_head(newest_seq(self._connection, self._kinds))

    def facts(self, *kinds: type[Event]) -> list[Record]:
        """All facts (of these kinds), in order; cheap, since facts are few."""
        return self._facts(kinds)

    def newest_fact(self, *kinds: type[Event]) -> Record | None:
        """The newest fact of these kinds."""
        found = self._facts(kinds, newest=True, one=True)
        return found[0] if found else None

    def first_fact(self, *kinds: type[Event]) -> Record | None:
        """The oldest fact of these kinds."""
        found = self._facts(kinds, one=True)
        return found[0] if found else None

    def _facts(
        self, kinds: Sequence[type[Event]], *, newest: bool = False, one: bool = False
    ) -> list[Record]:
        """Facts page by page, so that the time that they may take is looked at."""
        names = [kind.__name__ for kind in kinds] or list(FACTS)
        marks = ",".join("?" * len(names))
        beyond, order, place = ("<", "DESC", LARGEST_SEQ) if newest else (">", "ASC", 0)
        sql = (
            "SELECT seq, attempt, at, type, body FROM facts"
            f" WHERE (type IN ({marks}) OR typeof(type)!='text') AND seq{beyond}?"
            f" ORDER BY seq {order} LIMIT {1 if one else PAGE_FACTS}"
        )
        records: list[Record] = []
        while found := self._query(sql, (*names, place)):
            with self._damage_told():
                records += facts_of(found)
            place = found[-1][0]
            if one or len(found) < PAGE_FACTS:
                break
        return records

    def records_of(self, kind: type[Event], first: int, last: int) -> list[Record]:
        """Events of one measurement with first <= seq <= last, typed; the caller bounds the range."""
        return [self.typed(kind, row) for row in self.read_rows(kind, first, last)]

    def read_rows(self, kind: type[Event], first: int, last: int) -> list[tuple[Any, ...]]:
        """Rows of one measurement with first <= seq <= last; the caller bounds the range."""
        if not self._is_ready() or kind not in self._kinds:
            return []
        return self.select(f"{self._kinds[kind]} WHERE seq>=? AND seq<=? ORDER BY seq", (first, last))

    def holds(self, kind: type[Event]) -> bool:
        """Whether the journal has a table for this measurement: an older gradacc made none for newer ones."""
        return self._is_ready() and kind in self._kinds

    def newest(self, kind: type[Event], *, before: float = math.inf) -> tuple[Any, ...] | None:
        """The newest row of one measurement, among those before number `before`."""
        if not self._is_ready() or kind not in self._kinds:
            return None
        found = self.select(f"{self._kinds[kind]} WHERE seq<? ORDER BY seq DESC LIMIT 1", (before,))
        return found[0] if found else None

    def newest_record(self, kind: type[Event], *, before: float = math.inf) -> Record | None:
        """The newest event of one measurement, typed, among those before number `before`."""
        row = self.newest(kind, before=before)
        return None if row is None else self.typed(kind, row)

    def typed(self, kind: type[Event], row: tuple[Any, ...]) -> Record:
        """A row of one measurement, as `newest` and `read_rows` give it, as an event."""
        with self._damage_told():
            return measurement_of(kind, row)

    def measurements(self, kind: type[Event], newest: int | None = None) -> list[Record]:
        """Every row of a kind, or the `newest` so many, typed, oldest first."""
        if not self._is_ready() or kind not in self._kinds:
            return []
        rows = self._query(
            f"{self._kinds[kind]} ORDER BY seq DESC LIMIT ?", (-1 if newest is None else newest,)
        )
        with self._damage_told():
            return [measurement_of(kind, row) for row in reversed(without_nan_text(rows))]

    def energy_joules(self) -> float | None:
        """What all devices took in all attempts, by their own counters; None where none has one."""
        if not self._is_ready() or DeviceSampled not in self._kinds:
            return None
        rows = self.select(
            "SELECT sum(joules) FROM"
            " (SELECT max(energy_joules) AS joules FROM DeviceSampled GROUP BY attempt, device)"
        )
        return None if not rows or rows[0][0] is None else float(rows[0][0])

    def select(self, sql: str, parameters: Sequence[float] = ()) -> list[tuple[Any, ...]]:
        """Rows of one bounded SELECT over the tables, NaN real again.

        For readers that want a few columns of long stretches: all of a roll-up's take ten times as long.
        """
        return without_nan_text(self._query(sql, parameters))

    def select_numbers(self, sql: str, parameters: Sequence[float] = ()) -> list[tuple[Any, ...]]:
        """The same, of columns that place a row in the run: each value is a finite number."""
        rows = self._query(sql, parameters)
        with self._damage_told():
            check_numbers(rows)
        return rows

    def _query(self, sql: str, parameters: Sequence[float | str]) -> list[tuple[Any, ...]]:
        if not self._is_ready():
            return []
        with self._damage_told():
            return self._connection.execute(sql, parameters).fetchall()

    def _is_busy(self, error: sqlite3.Error) -> bool:
        """Whether the next look may find what this one could not."""
        if _code_of(error) == sqlite3.SQLITE_READONLY_ROLLBACK:
            mend_unless_locked(self.path)  # its writer was killed since this reader was opened
            return True
        return _code_of(error) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@functools.lru_cache(maxsize=64)
def _select(table: str, wanted: tuple[str, ...], have: frozenset[str]) -> str:
    """SQL for these columns of a table; those it lacks (an older writer) are NULL."""
    names = ", ".join(f'"{name}"' if name in have else f'NULL AS "{name}"' for name in wanted)
    return f"SELECT {names} FROM {table}"


def newest_seq(connection: sqlite3.Connection, kinds: Iterable[type[Event]] = MEASUREMENTS) -> int:
    """The largest sequence number in the journal; 0 when it is empty. About 10 us."""
    tables = ("facts", *(kind.__name__ for kind in kinds))
    newest = ", ".join(f"coalesce((SELECT max(seq) FROM {table}), 0)" for table in tables)
    found: int = connection.execute(f"SELECT max({newest})").fetchone()[0]
    return found
