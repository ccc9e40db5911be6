"""What a journal must hold to be one of ours: tables that are tables, numbers where numbers belong. Pure.

A journal may be half copied, be another program's database, or have been written by somebody who means
harm. Whatever is not as our own writer leaves it is told in a sentence, before anything is made of it.
"""

from __future__ import annotations

import functools
import json
import sqlite3
import types
from collections.abc import Iterable, Sequence
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from trainer_backend.journal_rows import columns, columns_in, fact_of, tables
from trainer_backend.protocol import FACTS, MEASUREMENTS, AnyEvent, Event, Record

LARGEST_NUMBER: Final = 2**53
"""Whole numbers up to it are exact on a chart too; no run counts so far."""
LATEST_AT: Final = 253_402_300_799.0
"""The last second of the year 9999, the last that a calendar takes."""
LARGEST_VALUE_BYTES: Final = 16 * 1024 * 1024
"""Of one text or row; a traceback has a few thousand."""
TOLD_CHARACTERS: Final = 40
REMEMBERED: Final = 256
"""Texts of SQL whose columns are known; one version of gradacc makes six of them."""
_columns_by_sql: Final[dict[str, frozenset[str]]] = {}
_OF_A_FACT: Final = frozenset(("seq", "attempt", "at", "type", "body"))
_PLACES: Final = frozenset(("step", "index", "samples_seen"))
"""Fields that no measurement goes without; others an older version may have left out, or a driver may
have filled with nonsense.
"""
_FROM_ONE: Final = frozenset(
    (("RunStarted", "accumulation_steps"), ("RunStarted", "world_size"), ("AccumulationChanged", "after"))
)
"""What no run has none of."""


class UntrustedError(Exception):
    """What is not as our writer leaves it; the text goes behind "The journal … is damaged: "."""


def check_tables(connection: sqlite3.Connection) -> dict[str, str]:
    """The tables of a journal, each with the SQL that made it; none while it is being made.

    Raises UntrustedError for a database of another kind. A view of one of our names, say, may never end.
    """
    found = connection.execute("SELECT type, name, rootpage, sql FROM sqlite_master").fetchall()
    ours = {"facts", *tables()}
    for kind, name, root, _ in found:
        if name in ours and (kind != "table" or not root):  # a virtual table has no page of its own
            what = "a view" if kind == "view" else "no plain table"
            raise UntrustedError(f"{name} is {what}")
    made = {name: str(sql) for _, name, _, sql in found if name in ours}
    if found and not (
        not made.keys().isdisjoint(kind.__name__ for kind in MEASUREMENTS)
        and columns_of(connection, "facts", made.get("facts", "")) >= _OF_A_FACT
    ):
        raise UntrustedError("it is a database of something else")
    return made


def columns_of(connection: sqlite3.Connection, table: str, sql: str) -> frozenset[str]:
    """The columns of a table that `sql` made; asked of each such text once, for thousands of journals."""
    if sql not in _columns_by_sql:
        if len(_columns_by_sql) >= REMEMBERED:
            _columns_by_sql.clear()
        _columns_by_sql[sql] = frozenset(columns_in(connection, table))
    return _columns_by_sql[sql]


def check_head(seq: Any) -> int:  # noqa: ANN401 - whatever a file holds
    """The newest sequence number, when a run can have got there."""
    if type(seq) is not int or seq >= LARGEST_NUMBER:
        raise UntrustedError(f"its last event has the number {told(seq)}, which no run reaches")
    return seq


def facts_of(found: Iterable[tuple[Any, ...]]) -> list[Record]:
    """Rows of the table of facts, typed; kinds and fields of other versions are passed over."""
    records = []
    for seq, attempt, at, name, body in found:
        _check_place(seq, attempt, at)
        if type(name) is not str or type(body) is not str:
            raise UntrustedError(f"event {seq} has no text where its kind and its content belong")
        if name not in FACTS:
            continue
        try:
            event = fact_of(name, body)
        except (ValueError, RecursionError) as error:
            raise UntrustedError(f"event {seq} ({name}) is not readable: {_short(error)}") from error
        if event is not None:
            _check_numbers(seq, event)
            records.append(Record(seq, attempt, at, event))
    return records


def measurement_of(kind: type[Event], row: Sequence[Any]) -> Record:
    """One row of a measurement's table, typed."""
    seq, attempt, at = row[:3]
    _check_place(seq, attempt, at)
    fields = dict(zip(kind.__struct_fields__, row[3:], strict=True))
    for name, allowed in _allowed(kind):
        value, is_place = fields[name], name in _PLACES
        if value is None and not is_place:
            continue
        if type(value) not in allowed or (is_place and not 0 <= value < LARGEST_NUMBER):
            raise UntrustedError(f"event {seq} ({kind.__name__}) has {told(value)} as {name}")
    if "metrics" in fields:
        fields["metrics"] = _metrics(seq, fields["metrics"])
    return Record(seq, attempt, at, kind(**fields))  # type: ignore[arg-type]  # a member of the union


def check_numbers(rows: Iterable[Sequence[Any]]) -> None:
    """Raise UntrustedError unless every value is a number that a place in a run can be."""
    for row in rows:
        for value in row:
            if type(value) not in (int, float) or not -LARGEST_NUMBER < value < LARGEST_NUMBER:
                raise UntrustedError(f"it holds {told(value)} where a number belongs")


def told(value: Any) -> str:  # noqa: ANN401 - whatever a file holds
    """A value for a sentence, in few characters."""
    if value is None:
        return "nothing"
    if isinstance(value, int) and value.bit_length() > TOLD_CHARACTERS * 3:
        return "a number of very many digits"
    text = repr(value[:TOLD_CHARACTERS] if isinstance(value, str | bytes) else value)
    return text[:TOLD_CHARACTERS]


def _check_place(seq: Any, attempt: Any, at: Any) -> None:  # noqa: ANN401 - whatever a file holds
    if type(seq) is not int or not 0 < seq < LARGEST_NUMBER:
        raise UntrustedError(f"an event has the number {told(seq)}")
    if type(attempt) is not int or not 0 < attempt < LARGEST_NUMBER:
        raise UntrustedError(f"event {seq} belongs to attempt {told(attempt)}")
    if type(at) not in (int, float) or not 0 <= at <= LATEST_AT:
        raise UntrustedError(f"event {seq} has {told(at)} as its time")


def _check_numbers(seq: int, event: AnyEvent) -> None:
    """A fact's own counts are not negative, and none in it is beyond what a run can count."""
    kind = type(event).__name__
    for field in event.__struct_fields__:
        value = getattr(event, field)
        least = (1 if (kind, field) in _FROM_ONE else 0) if type(value) is int else -LARGEST_NUMBER
        for number in _whole_numbers(value):
            if not least <= number < LARGEST_NUMBER:
                raise UntrustedError(f"event {seq} ({kind}) has {told(number)} as {field}")


def _whole_numbers(value: Any) -> Iterable[int]:  # noqa: ANN401 - a field's value
    match value:
        case str() | float() | bool() | None:
            return ()
        case int():
            return (value,)
        case dict():
            return (number for entry in value.values() for number in _whole_numbers(entry))
        case tuple():
            return (number for entry in value for number in _whole_numbers(entry))
        case msgspec.Struct():
            return _whole_numbers(msgspec.structs.astuple(value))
        case _:
            return ()


def _metrics(seq: int, text: Any) -> dict[str, float]:  # noqa: ANN401 - whatever a file holds
    try:
        return msgspec.convert({} if text is None else json.loads(text), dict[str, float])
    except (ValueError, TypeError, RecursionError) as error:
        raise UntrustedError(f"event {seq} has metrics that are not readable: {_short(error)}") from error


@functools.cache
def _allowed(kind: type[Event]) -> tuple[tuple[str, frozenset[type]], ...]:
    """Each field of a measurement, and the types that its column may hold."""
    hints = get_type_hints(kind)
    return tuple((name, _types(hints[name])) for name in columns(kind)[3:])


def _types(hint: Any) -> frozenset[type]:  # noqa: ANN401 - any annotation
    parts = get_args(hint) if get_origin(hint) is types.UnionType else (hint,)
    if float in parts or int in parts:
        return frozenset((int, float))  # whole numbers that SQLite cannot take are stored as floats
    return frozenset((str,))


def _short(error: Exception) -> str:
    text = "too deeply nested" if isinstance(error, RecursionError) else str(error)
    return text if len(text) <= 2 * TOLD_CHARACTERS else f"{text[: 2 * TOLD_CHARACTERS]}…"
