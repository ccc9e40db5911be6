"""Records from JSONL, Parquet and text files, each with its place, so that a fault can be named."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from trainer_backend.errors import UsageError
from trainer_backend.tasks.built_in import files_in

JSON_LINES: Final = {".jsonl", ".ndjson"}
PARQUET: Final = {".parquet"}
TEXT: Final = {".txt", ".md", ".text"}


@dataclasses.dataclass(frozen=True, slots=True)
class TextRecord:
    """One line, row or text file."""

    place: str
    """`file:line`, for people."""
    fields: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
    """A line that is no record."""

    place: str
    reason: str


def files_of(path: Path, key: str) -> list[Path]:
    """The data files that `path` names, in a fixed order. Raises UsageError."""
    known = JSON_LINES | PARQUET | TEXT
    if path.is_file():
        if path.suffix.lower() not in known:
            message = f"{key} = {path} is no {', '.join(sorted(known))} file. Convert it, or choose another."
            raise UsageError(message)
        return [path]
    if not path.exists():
        message = f"{key} = {path} does not exist. Check the path; it starts at the recipe's folder."
        raise UsageError(message)
    return files_in(path, known, key)


def read_records(files: list[Path], text_field: str) -> Iterator[TextRecord | Broken]:
    """Every record of the files. Raises UsageError when a whole file cannot be read."""
    for file in files:
        try:
            if file.suffix.lower() in JSON_LINES:
                yield from _json_lines(file)
            elif file.suffix.lower() in PARQUET:
                yield from _parquet(file)
            else:
                yield TextRecord(str(file), {text_field: file.read_text("utf-8")})
        except UnicodeDecodeError as error:
            yield Broken(str(file), f"not text in UTF-8 (byte {error.start})")
        except OSError as error:
            message = f"{file} cannot be read: {error.strerror}."
            raise UsageError(message) from error


def _json_lines(file: Path) -> Iterator[TextRecord | Broken]:
    decoder = msgspec.json.Decoder()
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            place = f"{file}:{number}"
            try:
                fields = decoder.decode(line)
            except msgspec.DecodeError as error:
                yield Broken(place, f"not valid JSON ({error})")
                continue
            if isinstance(fields, dict):
                yield TextRecord(place, fields)
            else:
                yield Broken(place, "not a JSON object")


def _parquet(file: Path) -> Iterator[TextRecord | Broken]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an optional library
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError as error:
        message = f"{file} needs pyarrow, which this interpreter lacks. Run: pip install pyarrow"
        raise UsageError(message) from error
    row = 0
    try:
        # In batches: a table of conversations need not fit in memory twice.
        for batch in pq.ParquetFile(file).iter_batches(batch_size=1024):
            for fields in batch.to_pylist():
                row += 1
                yield TextRecord(f"{file}:{row}", fields)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        yield Broken(str(file), f"not a Parquet file ({error})")
