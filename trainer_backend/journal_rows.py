"""How events lie in the journal's tables: schema, rows, roll-ups. Pure; `journal` writes and reads them.

Each measurement type has a table named as its class, whose columns are `seq`, `attempt`, `at` and
the struct's fields in order; facts share one table, as JSON (with Python's NaN and Infinity).
SQLite stores NaN as NULL, so a measurement's NaN is kept as the text 'NaN'.
"""

# ruff: noqa: S608 - names of tables and columns come from our own types, values are bound
from __future__ import annotations

import bisect
import functools
import itertools
import json
import math
import operator
import sqlite3
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from trainer_backend.protocol import FACTS, MEASUREMENTS, AnyEvent, Event

FACTOR: Final = 64
"""A roll-up's bucket covers this many of the level below."""
LEVELS: Final = 3
SCHEMA_VERSION: Final = 1
MOST_PARAMETERS: Final = 900
"""Of one statement; older builds of SQLite take 999."""
NAN: Final = "NaN"
_LARGEST_INTEGER: Final = 2**63 - 1


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


# ----------------------------------------------------------------------------------- schema


def quoted(names: Iterable[str]) -> str:
    """Column names for SQL (`index` is one of its words)."""
    return ", ".join(f'"{name}"' for name in names)


def tables() -> dict[str, tuple[str, ...]]:
    """Every table of measurements, and the columns it must have."""
    found: dict[str, tuple[str, ...]] = {}
    for kind in MEASUREMENTS:
        found[kind.__name__] = columns(kind)
        found[f"{kind.__name__}_rollup"] = rollup_columns(kind)
    return found


def make_schema(connection: sqlite3.Connection) -> None:
    """Make what a journal lacks, in one transaction: a reader sees all tables or none.

    A journal of an older version gets the columns that came since; its rows have NULL there.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS facts"
            " (seq INTEGER PRIMARY KEY, attempt, at REAL, type TEXT, body TEXT)"
        )
        for kind in MEASUREMENTS:
            fields = quoted(kind.__struct_fields__)
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {kind.__name__}"
                f" (seq INTEGER PRIMARY KEY, attempt, at REAL, {fields})"
            )
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {kind.__name__}_rollup ({quoted(rollup_columns(kind))},"
                " PRIMARY KEY (level, bucket)) WITHOUT ROWID"
            )
        for table, wanted in tables().items():
            have = columns_in(connection, table)
            for name in wanted:
                if name not in have:
                    connection.execute(f'ALTER TABLE {table} ADD COLUMN "{name}"')
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:  # undone, whatever it was, and raised again
        connection.execute("ROLLBACK")
        raise


def columns_in(connection: sqlite3.Connection, table: str) -> set[str]:
    """Columns that a table has; none when there is no such table."""
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})").fetchall()}


@functools.cache
def _insert(kind: type[Event], rows: int) -> str:
    """SQL that inserts `rows` rows of a measurement."""
    names = columns(kind)
    row = f"({','.join('?' * len(names))})"
    return f"INSERT INTO {kind.__name__} ({quoted(names)}) VALUES {','.join([row] * rows)}"


def insert(connection: sqlite3.Connection, kind: type[Event], rows: list[tuple[Any, ...]]) -> None:
    """Insert rows of one measurement, many with each statement.

    Each statement lets go of the interpreter's lock, and a busy training thread gives it back after
    5 ms only: statements are what counts.
    """
    many = MOST_PARAMETERS // len(columns(kind))
    whole = len(rows) // many * many
    for begin in range(0, whole, many):
        values = itertools.chain.from_iterable(rows[begin : begin + many])
        connection.execute(_insert(kind, many), tuple(values))
    if whole < len(rows):
        connection.executemany(_insert(kind, 1), rows[whole:])


@functools.cache
def rows_from(kind: type[Event]) -> str:
    """SQL that gives a measurement's rows from a sequence number on."""
    return f"SELECT {quoted(columns(kind))} FROM {kind.__name__} WHERE seq>=? ORDER BY seq"


# ----------------------------------------------------------------------------------- roll-ups


@functools.cache
def insert_rollup(kind: type[Event]) -> str:
    """SQL that inserts one bucket of a measurement's roll-up."""
    names = rollup_columns(kind)
    marks = ",".join("?" * len(names))
    return f"INSERT OR REPLACE INTO {kind.__name__}_rollup ({quoted(names)}) VALUES ({marks})"


def rollup_of(kind: type[Event], rows: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Level 1 of whole buckets' rows (as `row_of` made them, in the order of seq); a quarter of SQL's."""
    places = _numeric_places(kind)
    begin = 0
    while begin < len(rows):
        bucket = rows[begin][0] // FACTOR
        end = bisect.bisect_left(rows, (bucket + 1) * FACTOR, begin, key=operator.itemgetter(0))
        values = list(zip(*rows[begin:end], strict=True))
        begin, numbers = end, values[0]
        stats = itertools.chain.from_iterable(_stats(values[place]) for place in places)
        yield (1, bucket, numbers[0], numbers[-1], len(numbers), *stats)


@functools.cache
def _numeric_places(kind: type[Event]) -> tuple[int, ...]:
    return tuple(columns(kind).index(name) for name in numeric_fields(kind))


_ALIKE: Final = {type(None), int}
"""Of a whole bucket of equal values the sum is known; of floats it is not what adding them gives."""


def _stats(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """min, max, sum and count of what is finite, numbers of NaN and infinities, first, last."""
    first, many = values[0], len(values)
    if first.__class__ in _ALIKE and first == values[-1] and values.count(first) == many:
        if first is None:
            return (None, None, 0.0, 0, 0, 0, 0, None, None)
        return (first, first, float(first) * many, many, 0, 0, 0, first, first)  # type: ignore[arg-type]  # an int
    try:
        total = sum(values, 0.0)
        if -math.inf < total < math.inf:
            return (min(values), max(values), total, many, 0, 0, 0, first, values[-1])
    except TypeError:  # None, or NaN as text
        pass
    known = [value for value in values if isinstance(value, int | float)]
    finite = [value for value in known if -math.inf < value < math.inf]
    nan = sum(isinstance(value, str) for value in values)
    return (
        min(finite, default=None), max(finite, default=None), sum(finite, 0.0), len(finite),
        nan, known.count(math.inf), known.count(-math.inf), first, values[-1],
    )  # fmt: skip


@functools.cache
def rollup_from_level(kind: type[Event]) -> str:
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
        f"INSERT OR REPLACE INTO {table} ({quoted(rollup_columns(kind))})"
        f" SELECT :level, g.parent, g.first_seq, g.last_seq, g.n,"
        f" {', '.join(edges)} FROM (SELECT bucket/{FACTOR} AS parent, min(bucket) AS first_bucket,"
        f" max(bucket) AS last_bucket, min(first_seq) AS first_seq, max(last_seq) AS last_seq,"
        f' total("count") AS n, {", ".join(sums)} FROM {table}'
        f" WHERE level=:level-1 AND bucket>=:first AND bucket<:end GROUP BY bucket/{FACTOR}) g"
        f" JOIN {table} a ON a.level=:level-1 AND a.bucket=g.first_bucket"
        f" JOIN {table} z ON z.level=:level-1 AND z.bucket=g.last_bucket"
    )


# --------------------------------------------------------------------------------------- rows


def row_of(seq: int, attempt: int, at: float, event: Event) -> tuple[Any, ...]:
    """A measurement's row."""
    values = _values_of(event)
    places, has_dicts = _strange_places(event.__class__)
    if has_dicts:
        return (seq, attempt, at, *map(storable, values))
    for place in places:
        value = values[place]
        if value != value:  # noqa: PLR0124 - NaN
            return (seq, attempt, at, *map(storable, values))
    return (seq, attempt, at, *values)


_values_of = msgspec.structs.astuple


@functools.cache
def _strange_places(kind: type[Event]) -> tuple[tuple[int, ...], bool]:
    """Places of fields that may hold a NaN, and whether any field holds a dict (few events have one)."""
    hints = get_type_hints(kind)
    plain = (int, int | None, str, bool)
    places = tuple(place for place, name in enumerate(kind.__struct_fields__) if hints[name] not in plain)
    return places, any(get_origin(hints[name]) is dict for name in kind.__struct_fields__)


def storable(value: Any) -> Any:  # noqa: ANN401 - any field's value
    """What SQLite takes, whatever a field was given: no event may keep the others from the disk."""
    match value:
        case None:
            return None
        case int():
            return int(value) if -_LARGEST_INTEGER <= value <= _LARGEST_INTEGER else float(value)
        case float():
            return NAN if math.isnan(value) else float(value)
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return json.dumps(value, default=storable)
        case _:
            try:
                return storable(float(value))  # a number of another library
            except (TypeError, ValueError):
                return str(value)


def body_of(event: Event) -> str:
    """A fact as JSON."""
    return json.dumps(msgspec.to_builtins(event, enc_hook=storable))


def fact_of(name: str, body: str) -> AnyEvent | None:
    """The fact that a row holds; None when a newer (or much older) gradacc wrote it.

    Raises ValueError and RecursionError for a body that no gradacc wrote.
    """
    kind = FACTS.get(name)
    if kind is None:
        return None
    fields = json.loads(body)
    if not isinstance(fields, dict):
        message = f"{body[:20]!r} is not a JSON object"
        raise ValueError(message)  # noqa: TRY004 - of the text, like json's own
    try:
        return msgspec.convert(fields, kind)  # type: ignore[return-value]  # a member of the union
    except msgspec.ValidationError:
        return None


def without_nan_text(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows with their NaNs real again."""
    nan = math.nan
    return [
        tuple(nan if value == NAN else value for value in row) if NAN in row else row  # rare
        for row in rows
    ]
