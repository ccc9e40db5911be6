"""`gradacc export`: a run's measurements as files that other programs read, in bounded memory."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeAlias, get_args, get_origin, get_type_hints

from gradacc_gui.commands.published_lines import published_and_here
from gradacc_gui.session.following import slices
from gradacc_gui.session.runs import open_journal
from trainer_backend.errors import UsageError
from trainer_backend.journal import columns
from trainer_backend.protocol import Event, Record, plain
from trainer_backend.published import Difference
from trainer_backend.run_directory import RunDirectory, find_run
from trainer_backend.run_facts import RunFacts

FACT_COLUMNS = ("seq", "attempt", "at", "type", "body")
TableSource: TypeAlias = type[Event] | type[Difference] | None
"""What a table holds a row of; None: facts."""


class _Table(Protocol):
    def write(self, rows: list[Sequence[Any]]) -> None: ...
    def close(self) -> None: ...


def export(arguments: argparse.Namespace) -> int:
    """Write one file a kind of measurement, and one for the facts; never over what is there.

    Each measurement has a column `superseded`: 1 where a later attempt, or a roll-back, went back
    behind it, so that its step was trained again. A recipe that tells what was published gets a
    table of that beside what was run here.
    """
    run = find_run(arguments.run)
    run.check()
    folder = Path(arguments.output) if arguments.output else Path(f"{run.id}-{arguments.format}")
    try:
        names = _export(run, folder, arguments.format)
    except OSError as error:
        message = f"{folder} cannot be written: {error.strerror}. Give another folder with --output."
        raise UsageError(message) from error
    print(f"{folder}: {', '.join(sorted(names)) or 'nothing yet'}")
    return 0


def _export(run: RunDirectory, folder: Path, form: str) -> list[str]:
    """Write the tables; gives their names. Raises UsageError and OSError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder} already exists and is not empty. Give another folder with --output."
        raise UsageError(message)
    make = _Csv if form == "csv" else _parquet()
    with open_journal(run) as reader, ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        so_now = RunFacts().take_all(reader.facts())
        tables: dict[str, _Table] = {}

        def table(name: str, kind: TableSource) -> _Table:
            if name not in tables:
                tables[name] = make(folder / f"{name}.{form}", kind)
                stack.callback(tables[name].close)
            return tables[name]

        for found in slices(reader):
            for kind, rows in found.rows.items():
                table(kind.__name__, kind).write([(*row, _superseded(kind, row, so_now)) for row in rows])
            if found.facts:
                table("facts", None).write([_fact_row(fact) for fact in found.facts])
        _, differences = published_and_here(run, reader)
        if differences:
            table("published", Difference).write([_published(entry) for entry in differences])
    return list(tables)


def _fact_row(fact: Record) -> tuple[Any, ...]:
    return fact.seq, fact.attempt, fact.at, type(fact.event).__name__, json.dumps(plain(fact.event))


def _superseded(kind: type[Event], row: Sequence[Any], so_now: RunFacts) -> int:
    names = columns(kind)
    if "step" not in names:
        return 0
    return int(so_now.is_superseded(row[0], row[names.index("step")]))


def _published(entry: Difference) -> tuple[str | int, ...]:
    return (entry.path, entry.title, entry.published, entry.here, int(entry.same))


def header(kind: TableSource) -> tuple[str, ...]:
    """Columns of an exported table."""
    if kind is None:
        return FACT_COLUMNS
    return Difference.__struct_fields__ if kind is Difference else (*columns(kind), "superseded")


class _Csv:
    """Unknown is empty; non-finite numbers are NaN, Infinity, -Infinity."""

    def __init__(self, path: Path, kind: TableSource) -> None:
        self._file = path.open("x", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(header(kind))

    def write(self, rows: list[Sequence[Any]]) -> None:
        self._writer.writerows([[plain(value) for value in row] for row in rows])

    def close(self) -> None:
        self._file.close()


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else int(value)


def _parquet() -> Any:  # noqa: ANN401 - the class below, made with an optional library
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional
        import pyarrow.parquet as pq  # noqa: PLC0415 - optional
    except ImportError as error:
        message = "Parquet needs pyarrow: pip install pyarrow, or use --format csv."
        raise UsageError(message) from error

    def schema(kind: TableSource) -> Any:  # noqa: ANN401 - pyarrow's
        if kind is None:
            types = [pa.int64(), pa.int64(), pa.float64(), pa.string(), pa.string()]
            return pa.schema(list(zip(FACT_COLUMNS, types, strict=True)))
        if kind is Difference:
            texts = [(name, pa.string()) for name in Difference.__struct_fields__[:-1]]
            return pa.schema([*texts, ("same", pa.int8())])
        hints = get_type_hints(kind)
        fields = [("seq", pa.int64()), ("attempt", pa.int64()), ("at", pa.float64())]
        for name in kind.__struct_fields__:
            parts = (str,) if get_origin(hints[name]) is dict else (hints[name], *get_args(hints[name]))
            fields.append(
                (name, pa.float64() if float in parts else pa.int64() if int in parts else pa.string())
            )
        return pa.schema([*fields, ("superseded", pa.int8())])

    class Parquet:
        def __init__(self, path: Path, kind: TableSource) -> None:
            self._schema = schema(kind)
            self._writer = pq.ParquetWriter(path, self._schema)

        def write(self, rows: list[Sequence[Any]]) -> None:
            arrays = []
            for field, column in zip(self._schema, zip(*rows, strict=True), strict=True):
                values = map(_whole, column) if pa.types.is_integer(field.type) else column
                arrays.append(pa.array(list(values), type=field.type, from_pandas=False))
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

        def close(self) -> None:
            self._writer.close()

    return Parquet
