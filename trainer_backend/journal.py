"""The journal: a run's event queue, kept in one SQLite file that any number of readers may follow.

The training and sampler threads `put` events and never wait. One writer thread appends them in
batches, at most 25 ms apart while events come, facts at once. Readers ask for what lies after the
last sequence number they saw; live, re-attached and finished runs are one code path.

Each measurement type has a table named as its class, whose columns are `seq`, `attempt`, `at` and
the struct's fields in order; facts share one table, as JSON. `seq` is dense over all tables, so a
range of sequence numbers bounds a slice. SQLite stores NaN as NULL, so NaN is kept as the text 'NaN'.
"""

from __future__ import annotations

import functools
import json
import math
import queue
import sqlite3
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from trainer_backend.errors import RunDirectoryError
from trainer_backend.protocol import (
    FACTS,
    MEASUREMENTS,
    AnyEvent,
    Event,
    MeasurementsLost,
    MicroBatchMeasured,
    Record,
    plain,
)

BATCH_INTERVAL_S: Final = 0.025
"""Longest time an event waits for its batch while events come."""
TICK_INTERVAL_S: Final = 0.05
"""How often `on_tick` (the inbox) is called."""
HELD_MEASUREMENTS: Final = 100_000
"""Measurements kept in memory while the disk refuses them."""
FACTOR: Final = 64
"""A roll-up's bucket covers this many of the level below."""
LEVELS: Final = 3
SCHEMA_VERSION: Final = 1
NAN: Final = "NaN"


@functools.cache
def columns(kind: type[Event]) -> tuple[str, ...]:
    """Columns of a measurement's table, in order."""
    return ("seq", "attempt", "at", *kind.__struct_fields__)


@functools.cache
def numeric_fields(kind: type[Event]) -> tuple[str, ...]:
    """Fields of a measurement that roll-ups cover."""
    hints = get_type_hints(kind)

    def is_number(hint: Any) -> bool:  # noqa: ANN401 - any annotation
        parts = get_args(hint) if get_origin(hint) is types.UnionType else (hint,)
        return any(part in (int, float) for part in parts)

    return tuple(name for name in kind.__struct_fields__ if is_number(hints[name]))


@functools.cache
def rollup_columns(kind: type[Event]) -> tuple[str, ...]:
    """Columns of a measurement's roll-up table, in order."""
    parts = ("min", "max", "sum", "count", "nan", "posinf", "neginf", "first", "last")
    fields = (f"{name}_{part}" for name in numeric_fields(kind) for part in parts)
    return ("level", "bucket", "first_seq", "last_seq", "count", *fields)


def _quoted(names: Iterable[str]) -> str:
    """Column names for SQL (`index` is one of its words)."""
    return ", ".join(f'"{name}"' for name in names)


def _schema() -> str:
    lines = [
        "CREATE TABLE IF NOT EXISTS facts (seq INTEGER PRIMARY KEY, attempt, at REAL, type TEXT, body TEXT)"
    ]
    for kind in MEASUREMENTS:
        names = _quoted(kind.__struct_fields__)
        lines.append(
            f"CREATE TABLE IF NOT EXISTS {kind.__name__} (seq INTEGER PRIMARY KEY, attempt, at REAL, {names})"
        )
        lines.append(
            f"CREATE TABLE IF NOT EXISTS {kind.__name__}_rollup ({_quoted(rollup_columns(kind))},"
            " PRIMARY KEY (level, bucket)) WITHOUT ROWID"
        )
    return ";\n".join(lines)


def _rollup_from_rows(kind: type[Event]) -> str:
    """SQL that rolls rows (level 0) with :first <= seq < :end up into level 1."""
    sums, edges = [], []
    for name in numeric_fields(kind):
        field = f't."{name}"'
        finite = f"CASE WHEN typeof({field})!='text' AND abs({field})<9e999 THEN {field} END"
        sums.append(
            f"min({finite}) AS {name}_min, max({finite}) AS {name}_max, total({finite}) AS {name}_sum,"
            f" count({finite}) AS {name}_count, total(typeof({field})='text') AS {name}_nan,"
            f" total({field}=9e999 AND typeof({field})!='text') AS {name}_posinf,"
            f" total({field}=-9e999) AS {name}_neginf"
        )
        parts = [f"g.{name}_{part}" for part in ("min", "max", "sum", "count", "nan", "posinf", "neginf")]
        edges.append(", ".join([*parts, f'a."{name}"', f'z."{name}"']))
    table = kind.__name__
    return (
        f"INSERT OR REPLACE INTO {table}_rollup SELECT 1, g.bucket, g.first_seq, g.last_seq, g.n,"
        f" {', '.join(edges)} FROM (SELECT seq/{FACTOR} AS bucket, min(seq) AS first_seq,"
        f" max(seq) AS last_seq, count(*) AS n, {', '.join(sums)} FROM {table} t"
        f" WHERE seq>=:first AND seq<:end GROUP BY seq/{FACTOR}) g"
        f" JOIN {table} a ON a.seq=g.first_seq JOIN {table} z ON z.seq=g.last_seq"
    )


def _rollup_from_level(kind: type[Event]) -> str:
    """SQL that rolls buckets :first <= bucket < :end of the level below up into :level."""
    table = f"{kind.__name__}_rollup"
    sums, edges = [], []
    for name in numeric_fields(kind):
        added = ", ".join(
            f"total({name}_{part}) AS {name}_{part}" for part in ("sum", "count", "nan", "posinf", "neginf")
        )
        sums.append(f"min({name}_min) AS {name}_min, max({name}_max) AS {name}_max, {added}")
        parts = [f"g.{name}_{part}" for part in ("min", "max", "sum", "count", "nan", "posinf", "neginf")]
        edges.append(", ".join([*parts, f"a.{name}_first", f"z.{name}_last"]))
    return (
        f"INSERT OR REPLACE INTO {table} SELECT :level, g.parent, g.first_seq, g.last_seq, g.n,"
        f" {', '.join(edges)} FROM (SELECT bucket/{FACTOR} AS parent, min(bucket) AS first_bucket,"
        f" max(bucket) AS last_bucket, min(first_seq) AS first_seq, max(last_seq) AS last_seq,"
        f' total("count") AS n, {", ".join(sums)} FROM {table}'
        f" WHERE level=:level-1 AND bucket>=:first AND bucket<:end GROUP BY bucket/{FACTOR}) g"
        f" JOIN {table} a ON a.level=:level-1 AND a.bucket=g.first_bucket"
        f" JOIN {table} z ON z.level=:level-1 AND z.bucket=g.last_bucket"
    )


def _stored(value: Any) -> Any:  # noqa: ANN401 - any field's value
    if value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return NAN if math.isnan(value) else value
    return json.dumps(plain(value))


def _row(seq: int, attempt: int, at: float, event: Event) -> tuple[Any, ...]:
    values = msgspec.structs.astuple(event)
    # A value that differs from itself is NaN; dicts are the only non-scalars of measurements.
    if any(value != value or value.__class__ is dict for value in values):  # noqa: PLR0124
        values = tuple(_stored(value) for value in values)
    return (seq, attempt, at, *values)


class JournalWriter:
    """Appends events to a journal from one thread of its own, named gradacc-journal.

    `on_tick` is called in that thread about 20 times a second, between batches.
    """

    def __init__(self, path: Path, *, attempt: int, on_tick: Callable[[], None] | None = None) -> None:
        self._path = path
        self._attempt = attempt
        self._on_tick = on_tick
        self._queue: queue.SimpleQueue[tuple[float, Event] | threading.Event | None] = queue.SimpleQueue()
        self._held_facts: deque[tuple[int, float, Event]] = deque()
        self._held: deque[tuple[int, float, Event]] = deque()
        self._held_count = 0
        self._lost: tuple[int, int] | None = None
        self.disk_error: str = ""
        """Why the last write failed; empty while the disk takes writes."""
        connection = open_for_writing(path)
        self._seq = newest_seq(connection)
        self._rolled = {level: self._rolled_until(connection, level) for level in range(1, LEVELS + 1)}
        connection.close()
        self._thread = threading.Thread(target=self._run, name="gradacc-journal", daemon=True)
        self._thread.start()

    def put(self, event: AnyEvent) -> None:
        """Queue an event; any thread, never waits."""
        self._queue.put((time.time(), event))

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all events put so far were offered to the disk; False when that took too long."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def close(self) -> None:
        """Write what is left, roll up, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    # ------------------------------------------------------------------ the writer thread

    def _run(self) -> None:
        connection = open_for_writing(self._path)
        next_tick = 0.0
        open_ = True
        while open_:
            batch, waiters, open_ = self._collect(next_tick)
            if batch or self._held or self._held_facts:
                self._append(connection, batch)
            for waiter in waiters:
                waiter.set()
            if self._on_tick is not None and open_ and time.monotonic() >= next_tick:
                self._on_tick()
                next_tick = time.monotonic() + TICK_INTERVAL_S
        self._finish(connection)

    def _collect(self, next_tick: float) -> tuple[list[tuple[float, Event]], list[threading.Event], bool]:
        """Events until the batch is due: 25 ms after its first, at once after a fact or a waiter."""
        batch: list[tuple[float, Event]] = []
        waiters: list[threading.Event] = []
        due = next_tick if self._on_tick is not None else math.inf
        if self._held or self._held_facts:
            due = min(due, time.monotonic() + 0.5)
        while True:
            wait_s = due - time.monotonic()
            try:
                entry = self._queue.get(timeout=max(0.0, wait_s) if math.isfinite(wait_s) else None)
            except queue.Empty:
                return batch, waiters, True
            if entry is None:
                return batch, waiters, False
            if isinstance(entry, threading.Event):
                waiters.append(entry)
                due = 0.0
                continue
            batch.append(entry)
            if not isinstance(entry[1], MEASUREMENTS):
                due = 0.0
            elif len(batch) == 1:
                # Sleep instead of waking for each event: the training thread needs the interpreter more.
                due = min(due, time.monotonic() + BATCH_INTERVAL_S)
                self._sleep_through(due, batch, waiters)
                if waiters:
                    due = 0.0

    def _sleep_through(
        self, due: float, batch: list[tuple[float, Event]], waiters: list[threading.Event]
    ) -> None:
        """Let measurements gather until `due`, looking every few milliseconds for a fact."""
        while (left_s := due - time.monotonic()) > 0:
            time.sleep(min(0.005, left_s))
            urgent = False
            while not self._queue.empty():
                entry = self._queue.get()
                if entry is None:
                    self._queue.put(None)
                    return
                if isinstance(entry, threading.Event):
                    waiters.append(entry)
                    urgent = True
                else:
                    batch.append(entry)
                    urgent = urgent or not isinstance(entry[1], MEASUREMENTS)
            if urgent:
                return

    def _append(self, connection: sqlite3.Connection, batch: list[tuple[float, Event]]) -> None:
        for at, event in batch:
            self._seq += 1
            held = self._held if isinstance(event, MEASUREMENTS) else self._held_facts
            held.append((self._seq, at, event))
        try:
            self._write(connection)
        except sqlite3.Error as error:
            # A full or failing disk must not stop the training: keep facts, shed old measurements.
            with suppress(sqlite3.Error):
                connection.rollback()
            self.disk_error = str(error)
            self._shed()
        else:
            self.disk_error = ""

    def _shed(self) -> None:
        while len(self._held) > HELD_MEASUREMENTS:
            seq, _, _ = self._held.popleft()
            first = self._lost[0] if self._lost else seq
            self._lost = (first, seq)

    def _write(self, connection: sqlite3.Connection) -> None:
        attempt = self._attempt
        rows: dict[type[Event], list[tuple[Any, ...]]] = {}
        for seq, at, event in self._held:
            rows.setdefault(type(event), []).append(_row(seq, attempt, at, event))
        facts = [
            (seq, attempt, at, type(event).__name__, json.dumps(plain(event)))
            for seq, at, event in self._held_facts
        ]
        lost_seq = self._seq
        if self._lost is not None:
            lost_seq += 1
            lost = MeasurementsLost(first=self._lost[0], last=self._lost[1])
            facts.append((lost_seq, attempt, time.time(), type(lost).__name__, json.dumps(plain(lost))))
        connection.execute("BEGIN IMMEDIATE")
        for kind, entries in rows.items():
            marks = ",".join("?" * len(entries[0]))
            connection.executemany(f"INSERT INTO {kind.__name__} VALUES ({marks})", entries)
        connection.executemany("INSERT INTO facts VALUES (?,?,?,?,?)", facts)
        rolled = self._roll_up(connection, lost_seq)
        connection.commit()
        self._rolled = rolled
        self._seq = lost_seq
        self._lost = None
        self._held.clear()
        self._held_facts.clear()

    def _roll_up(self, connection: sqlite3.Connection, seq: int) -> dict[int, int]:
        """Roll up every bucket that is complete now; gives the first bucket not yet rolled, by level."""
        rolled = dict(self._rolled)
        complete = (seq + 1) // FACTOR
        for level in range(1, LEVELS + 1):
            first, end = rolled[level], complete
            if end <= first:
                break
            for kind in MEASUREMENTS:
                if level == 1:
                    bounds = {"first": first * FACTOR, "end": end * FACTOR}
                    connection.execute(_sql(_rollup_from_rows, kind), bounds)
                else:
                    bounds = {"first": first * FACTOR, "end": end * FACTOR, "level": level}
                    connection.execute(_sql(_rollup_from_level, kind), bounds)
            rolled[level] = end
            complete = end // FACTOR
        return rolled

    def _rolled_until(self, connection: sqlite3.Connection, level: int) -> int:
        # Buckets without a row leave no trace, so what is complete follows from the newest seq.
        del connection
        return (self._seq + 1) // FACTOR**level

    def _finish(self, connection: sqlite3.Connection) -> None:
        if self._held or self._held_facts:
            self._append(connection, [])
        with suppress(sqlite3.Error):  # a reader may hold the WAL; `seal` tries again later
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()


@functools.cache
def _sql(make: Callable[[type[Event]], str], kind: type[Event]) -> str:
    return make(kind)


def open_for_writing(path: Path) -> sqlite3.Connection:
    """A connection that may write, with the schema in place. Raises RunDirectoryError."""
    try:
        connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.executescript(_schema())
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    except sqlite3.Error as error:
        message = f"The journal {path} cannot be written: {error}. Check the folder's rights and free space."
        raise RunDirectoryError(message) from error
    return connection


def newest_seq(connection: sqlite3.Connection) -> int:
    """The largest sequence number in the journal; 0 when it is empty."""
    return max(
        connection.execute(f"SELECT coalesce(max(seq), 0) FROM {table}").fetchone()[0]
        for table in ("facts", *(kind.__name__ for kind in MEASUREMENTS))
    )


def seal(path: Path) -> bool:
    """Fold the WAL into the file, so that an ended run can be copied; False when someone reads it."""
    try:
        connection = sqlite3.connect(path, timeout=0.0, isolation_level=None)
        try:
            return bool(connection.execute("PRAGMA journal_mode=DELETE").fetchone()[0] == "delete")
        finally:
            connection.close()
    except sqlite3.Error:
        return False


# ----------------------------------------------------------------------------------- reading


class Slice:
    """What one read gives: all that happened after `after`, up to and including `last`."""

    __slots__ = ("after", "facts", "last", "rows")

    def __init__(
        self, after: int, last: int, rows: dict[type[Event], list[tuple[Any, ...]]], facts: list[Record]
    ) -> None:
        self.after = after
        self.last = last
        self.rows = rows
        self.facts = facts

    def __len__(self) -> int:
        return len(self.facts) + sum(map(len, self.rows.values()))

    def records(self) -> list[Record]:
        """Every event, typed, in the order of `seq`."""
        records = list(self.facts)
        for kind, rows in self.rows.items():
            records += (Record(row[0], row[1], row[2], event_of(kind, row)) for row in rows)
        records.sort(key=lambda record: record.seq)
        return records


def event_of(kind: type[Event], row: tuple[Any, ...]) -> AnyEvent:
    """The measurement that a row holds."""
    fields = dict(zip(kind.__struct_fields__, row[3:], strict=False))
    if isinstance(fields.get("metrics"), str):
        fields["metrics"] = _real(json.loads(fields["metrics"]))
    return kind(**fields)  # type: ignore[return-value]  # a member of the union, by its table


def _real(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Undo `protocol.plain`'s words for non-finite numbers."""
    if isinstance(value, dict):
        return {key: _real(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_real(entry) for entry in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _fact_of(name: str, body: str) -> AnyEvent | None:
    kind = FACTS.get(name)
    if kind is None:  # written by a newer gradacc
        return None
    fields = _real(json.loads(body))
    return msgspec.convert(fields, kind, strict=False)  # type: ignore[return-value]


def _without_nan_text(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    nan = math.nan
    return [
        tuple(nan if value == NAN else value for value in row) if NAN in row else row  # rare
        for row in rows
    ]


class JournalReader:
    """Reads a journal while others write it. Keeps no cursor open, so it never blocks the writer."""

    def __init__(self, path: Path, *, immutable: bool = False) -> None:
        if not path.is_file():
            message = f"There is no journal at {path}. The run directory is incomplete."
            raise RunDirectoryError(message)
        self._path = path
        uri = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if immutable else "")
        try:
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=1.0)
            self._kinds = self._known_kinds()
        except sqlite3.Error as error:
            message = f"The journal {path} cannot be read: {error}. It is damaged or half copied."
            raise RunDirectoryError(message) from error

    def _known_kinds(self) -> dict[type[Event], str]:
        """SELECTs for the tables this journal has, with columns it lacks (an older writer) as NULL."""
        kinds = {}
        for kind in MEASUREMENTS:
            have = {row[1] for row in self._connection.execute(f"PRAGMA table_info({kind.__name__})")}
            if have:
                wanted = ", ".join(
                    f'"{name}"' if name in have else f'NULL AS "{name}"' for name in columns(kind)
                )
                kinds[kind] = f"SELECT {wanted} FROM {kind.__name__} WHERE seq>? AND seq<=? ORDER BY seq"
        return kinds

    def read(self, after: int = 0, limit: int = 20_000) -> Slice:
        """At most about `limit` events after `after`, from one consistent state of the journal."""
        end = after + limit
        rows: dict[type[Event], list[tuple[Any, ...]]] = {}
        facts: list[Record] = []
        last = after
        connection = self._connection
        try:
            connection.execute("BEGIN")
            try:
                for kind, select in self._kinds.items():
                    found = connection.execute(select, (after, end)).fetchall()
                    if found:
                        rows[kind] = _without_nan_text(found)
                        last = max(last, found[-1][0])
                found = connection.execute(
                    "SELECT seq, attempt, at, type, body FROM facts WHERE seq>? AND seq<=? ORDER BY seq",
                    (after, end),
                ).fetchall()
                if last == after and not found and self._head() > end:
                    last = end  # a gap (lost measurements) wider than the limit
            finally:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            message = f"The journal {self._path} cannot be read: {error}. It is damaged or half copied."
            raise RunDirectoryError(message) from error
        for seq, attempt, at, name, body in found:
            last = max(last, seq)
            event = _fact_of(name, body)
            if event is not None:
                facts.append(Record(seq, attempt, at, event))
        return Slice(after, last, rows, facts)

    def head(self) -> int:
        """The newest sequence number; 0 when there is none."""
        try:
            return self._head()
        except sqlite3.Error as error:
            message = f"The journal {self._path} cannot be read: {error}. It is damaged or half copied."
            raise RunDirectoryError(message) from error

    def _head(self) -> int:
        return newest_seq(self._connection)

    def facts(self, *kinds: type[Event]) -> list[Record]:
        """All facts (of these kinds), in order; cheap, since facts are few."""
        names = [kind.__name__ for kind in kinds] or list(FACTS)
        marks = ",".join("?" * len(names))
        found = self._connection.execute(
            f"SELECT seq, attempt, at, type, body FROM facts WHERE type IN ({marks}) ORDER BY seq", names
        ).fetchall()
        events = ((row, _fact_of(row[3], row[4])) for row in found)
        return [Record(row[0], row[1], row[2], event) for row, event in events if event is not None]

    def read_rows(self, kind: type[Event], first: int, last: int) -> list[tuple[Any, ...]]:
        """Rows of one measurement with first <= seq <= last; the caller bounds the range."""
        if kind not in self._kinds:
            return []
        return _without_nan_text(self._connection.execute(self._kinds[kind], (first - 1, last)).fetchall())

    def newest(self, kind: type[Event]) -> tuple[Any, ...] | None:
        """The newest row of one measurement."""
        found = self._connection.execute(
            f"SELECT {_quoted(columns(kind))} FROM {kind.__name__} ORDER BY seq DESC LIMIT 1"
        ).fetchall()
        return _without_nan_text(found)[0] if found else None

    def read_rollup(
        self, kind: type[Event], level: int, first_seq: int, last_seq: int
    ) -> list[tuple[Any, ...]]:
        """Roll-up rows (see `rollup_columns`) of `level` that overlap a range of sequence numbers."""
        width = FACTOR**level
        found = self._connection.execute(
            f"SELECT {_quoted(rollup_columns(kind))} FROM {kind.__name__}_rollup"
            " WHERE level=? AND bucket>=? AND bucket<=? ORDER BY bucket",
            (level, first_seq // width, last_seq // width),
        ).fetchall()
        return _without_nan_text(found)

    def select(self, sql: str, parameters: Sequence[float] = ()) -> list[tuple[Any, ...]]:
        """Rows of one bounded SELECT over the tables, NaN real again. Raises RunDirectoryError.

        For readers that want a few columns of long stretches: all of a roll-up's take ten times as long.
        """
        try:
            return _without_nan_text(self._connection.execute(sql, parameters).fetchall())
        except sqlite3.Error as error:
            message = f"The journal {self._path} cannot be read: {error}. It is damaged or half copied."
            raise RunDirectoryError(message) from error

    def close(self) -> None:
        """Give the file back."""
        self._connection.close()


__all__ = [
    "FACTOR",
    "LEVELS",
    "JournalReader",
    "JournalWriter",
    "MicroBatchMeasured",
    "Slice",
    "columns",
    "numeric_fields",
    "rollup_columns",
    "seal",
]
