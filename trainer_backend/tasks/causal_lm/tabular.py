"""Readers of column files, Parquet and Arrow, by pyarrow where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from trainer_backend.errors import UsageError
from trainer_backend.tasks.causal_lm.raw_text import Broken, DataRecord, Item

ROWS_AT_ONCE: Final = 256


def _pyarrow(file: Path, part: str = "") -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(f"pyarrow{part}")  # an optional library
    except ImportError as error:
        message = f"{file} needs pyarrow, which this Python does not have. Run: pip install pyarrow"
        raise UsageError(message) from error


def read_parquet(file: Path) -> Iterator[Item]:
    """The rows of a Parquet file, a few at a time."""
    parquet, pa = _pyarrow(file, ".parquet"), _pyarrow(file)
    try:
        with parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as table:
            yield from _rows(file, table.iter_batches(batch_size=ROWS_AT_ONCE))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowException) as error:
        yield Broken(str(file), f"not a Parquet file that can be read ({error})")


def read_arrow(file: Path) -> Iterator[Item]:
    """The rows of an Arrow file (or Feather), or of an Arrow stream."""
    pa = _pyarrow(file)
    try:
        with pa.memory_map(str(file)) as source:
            is_file = source.read(6) == b"ARROW1"
            source.seek(0)
            if is_file:
                table = pa.ipc.open_file(source)
                batches: Iterable[Any] = map(table.get_batch, range(table.num_record_batches))
            else:
                batches = pa.ipc.open_stream(source)
            yield from _rows(file, batches)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowException) as error:
        yield Broken(str(file), f"not an Arrow file that can be read ({error})")


def _rows(file: Path, batches: Iterable[Any]) -> Iterator[Item]:
    row = 0
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            for fields in batch.slice(start, ROWS_AT_ONCE).to_pylist():
                row += 1
                yield DataRecord(f"{file}:{row}", fields)
