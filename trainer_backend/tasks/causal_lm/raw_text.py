"""Readers of text forms: JSON lines and documents, CSV and TSV, plain text; each also compressed by gzip."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import msgspec

BOM: Final = b"\xef\xbb\xbf"
PART: Final = 1 << 18
"""Characters of a document or a text that are held at once; a longer record is held whole."""
LONGEST_CELL: Final = 1 << 28
"""Characters of a CSV's cell; the module's own limit of 131,072 refuses long texts."""
LISTS: Final = ("data", "rows", "examples", "train", "records", "instances")
"""Under which keys one JSON object holds a list of records."""


@dataclasses.dataclass(frozen=True, slots=True)
class DataRecord:
    """One line, row or text."""

    place: str
    """`file:line` or `file:row`, for people."""
    fields: dict[str, Any]
    continues: bool = False
    """The next record is the same text, gone on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
    """A line or row that is no record."""

    place: str
    reason: str


Item: TypeAlias = DataRecord | Broken


def opened(file: Path) -> io.BufferedReader:
    """A file's bytes, unpacked where it is compressed by gzip, whatever it is called. Raises OSError."""
    raw = file.open("rb")
    if raw.peek(2)[:2] != b"\x1f\x8b":
        return raw
    raw.close()
    return io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(file)), PART)


# ---------------------------------------------------------------------------------------- JSON


def read_json_lines(file: Path) -> Iterator[Item]:
    """One JSON object a line; blank lines are passed over."""
    decoder = msgspec.json.Decoder()
    with opened(file) as lines:
        for number, line in enumerate(lines, 1):
            text = line.removeprefix(BOM) if number == 1 else line
            if text.strip():
                yield _from_line(f"{file}:{number}", text, decoder)


def _from_line(place: str, line: bytes, decoder: msgspec.json.Decoder[Any]) -> Item:
    try:
        value = decoder.decode(line)
    except msgspec.DecodeError as error:
        # Python's own reader takes NaN and Infinity, which many programs write.
        try:
            value = json.loads(line.decode("utf-8"))
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeDecodeError as fault:
            return Broken(
                place,
                f"not text in UTF-8 (byte {fault.start + 1} of the line). Convert it; it may be in Latin-1",
            )
        except UnicodeEncodeError:
            return Broken(place, "holds half of a pair of surrogates, which is not a character")
        except (ValueError, RecursionError) as fault:
            ended = "" if line.endswith(b"\n") else "; the line is the last and may be cut off"
            reason = str(fault) if isinstance(fault, ValueError) else str(error)
            return Broken(place, f"not valid JSON ({reason}{ended})")
    return DataRecord(place, value) if isinstance(value, dict) else Broken(place, "not a JSON object")


_SPACE: Final = re.compile(r"[\s,]*")


class _Window:
    """A moving part of a document, read as far as the next value needs."""

    def __init__(self, text: io.TextIOBase) -> None:
        self._text = text
        self._decoder = json.JSONDecoder()
        self._part = ""
        self._at = 0
        self._line = 1
        self._ended = False

    def _more(self) -> bool:
        if self._ended:
            return False
        self._line += self._part.count("\n", 0, self._at)
        rest = self._part[self._at :]
        # Twice as much each time: a long value is not read again for every small part.
        read = self._text.read(max(PART, len(rest)))
        self._part, self._at, self._ended = rest + read, 0, not read
        return not self._ended

    def peek(self) -> str:
        """The next character that is no space and no comma; empty at the end."""
        while True:
            found = _SPACE.match(self._part, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._part) or not self._more():
                return self._part[self._at : self._at + 1]

    def skip(self) -> None:
        """Pass over the character that `peek` gave."""
        self._at += 1

    @property
    def line(self) -> int:
        """Where it stands, from 1."""
        return self._line + self._part.count("\n", 0, self._at)

    def value(self) -> Any:  # noqa: ANN401 - JSON
        """The next whole value. Raises ValueError."""
        while True:
            try:
                value, end = self._decoder.raw_decode(self._part, self._at)
            except json.JSONDecodeError as error:
                # A fault far from the end of what was read is a fault; near it, the rest may be missing.
                if not self._more():
                    line = self._line + self._part.count("\n", 0, error.pos)
                    raise ValueError(f"line {line}: {error.msg}") from error
                continue
            if end < len(self._part) or not self._more():
                self._at = end
                return value


def read_json_document(file: Path) -> Iterator[Item]:
    """An array of objects, objects one behind another, or one object that holds a list of them."""
    with opened(file) as raw:
        window = _Window(io.TextIOWrapper(raw, "utf-8-sig", newline="\n"))
        inside = window.peek() == "["
        if inside:
            window.skip()
        count = 0
        while (sign := window.peek()) and not (inside and sign == "]"):
            count += 1
            line = window.line
            try:
                value = window.value()
            except (ValueError, RecursionError) as error:
                yield Broken(f"{file}:{line}", f"not valid JSON ({error}); what follows cannot be read")
                return
            listed = _listed(value) if count == 1 and not inside and not window.peek() else None
            if listed is not None:
                yield from (_item(f"{file}:{row}", entry) for row, entry in enumerate(listed, 1))
                return
            yield _item(f"{file}:{line}", value)
        if inside and not sign:
            yield Broken(f"{file}:{window.line}", "the array has no end: the file may be cut off")


def _item(place: str, value: Any) -> Item:  # noqa: ANN401 - JSON
    if not isinstance(value, dict):
        return Broken(place, "not a JSON object")
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return Broken(place, "holds half of a pair of surrogates, which is not a character")
    return DataRecord(place, value)


def _listed(value: Any) -> list[Any] | None:  # noqa: ANN401 - JSON
    if not isinstance(value, dict):
        return None
    lists = [value[key] for key in LISTS if isinstance(value.get(key), list)]
    return lists[0] if len(lists) == 1 and all(isinstance(entry, dict) for entry in lists[0]) else None


# ------------------------------------------------------------------------- columns of text, text


def read_delimited(file: Path) -> Iterator[Item]:
    """CSV and TSV with a header line; the delimiter is found."""
    csv.field_size_limit(LONGEST_CELL)
    with opened(file) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as text:
        header_line = text.readline()
        delimiter = max("\t,;|", key=header_line.count) if header_line.strip() else ","
        header = next(csv.reader([header_line], delimiter=delimiter), [])
        names = [name.strip() for name in header]
        if not any(names) or len(set(names)) < len(names):
            yield Broken(f"{file}:1", "the first line must name the columns, each once")
            return
        rows = csv.reader(text, delimiter=delimiter, strict=True)
        while True:
            place = f"{file}:{rows.line_num + 2}"
            try:
                row = next(rows, None)
            except csv.Error as error:
                yield Broken(place, f"not a valid row ({error})")
                return
            except UnicodeDecodeError:
                yield Broken(place, "not text in UTF-8 here or below. Convert the file; it may be in Latin-1")
                return
            if row is None:
                return
            if len(row) == len(names):
                yield DataRecord(place, dict(zip(names, row, strict=True)))
            elif any(row):
                yield Broken(place, f"{len(row)} cells, where the first line names {len(names)} columns")


def read_text(file: Path) -> Iterator[Item]:
    """One text a file, in parts that end at a line's end; the last part does not continue."""
    with opened(file) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as text:
        line, held = 1, text.read(PART)
        while following := text.read(PART):
            cut = _break(held)
            yield DataRecord(f"{file}:{line}", {"text": held[:cut]}, continues=True)
            line += held.count("\n", 0, cut)
            held = held[cut:] + following
        yield DataRecord(f"{file}:{line}", {"text": held})


_LINE_END: Final = re.compile(r"\S\n(?=\S)")


def _break(part: str) -> int:
    """Behind the last line of a part; tokens do not reach over a single line break between words."""
    ends = [found.end() for found in _LINE_END.finditer(part, max(0, len(part) - PART // 4))]
    return ends[-1] if ends else len(part)
