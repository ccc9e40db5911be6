"""Records from the files that people have, each with its place, so that a fault can be named.

A file's form is told by its content, and by its suffix where the content would fit several (a text may
start with a bracket). Everything is streamed: memory does not grow with a file.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainer_backend.errors import UsageError
from trainer_backend.tasks.causal_lm.hub import (
    is_saved_folder,
    looks_like_hub_id,
    read_hub,
    read_saved_folder,
)
from trainer_backend.tasks.causal_lm.raw_text import (
    Broken,
    DataRecord,
    opened,
    read_delimited,
    read_json_document,
    read_json_lines,
    read_text,
)
from trainer_backend.tasks.causal_lm.tabular import read_arrow, read_parquet

__all__ = ["Broken", "DataRecord", "Found", "find_data", "sources_of"]

JSON: Final = {".json", ".jsonl", ".ndjson"}
DELIMITED: Final = {".csv", ".tsv"}
COLUMNS: Final = {".parquet", ".arrow", ".feather"}
TEXT: Final = {".txt", ".md", ".text"}
STRUCTURED: Final = JSON | DELIMITED | COLUMNS
KNOWN: Final = STRUCTURED | TEXT


@dataclasses.dataclass(frozen=True)
class Found:
    """What a data path leads to: files, or one data set of the datasets library."""

    files: tuple[Path, ...]
    saved: Path | None = None
    """A folder that `save_to_disk` wrote."""
    hub: str = ""
    texts_passed_over: int = 0
    """Text files beside structured ones in a folder: a README is no sample."""


def find_data(path: Path, text: str, key: str) -> Found:
    """What `path` (written `text` in the recipe) leads to, in a fixed order. Raises UsageError."""
    if path.is_file():
        return Found((path,))
    if path.is_dir():
        if is_saved_folder(path):
            return Found((), saved=path)
        return _chosen(_walk(path), path, key)
    if glob.has_magic(str(path)):
        found = sorted(Path(name) for name in glob.iglob(str(path), recursive=True))  # noqa: PTH207 - absolute
        return _chosen([file for file in found if file.is_file() and not _hidden(file.name)], path, key)
    if looks_like_hub_id(text):
        return Found((), hub=text)
    message = f"{key} = {path} does not exist. Check the path; it starts at the recipe's folder."
    raise UsageError(message)


def _chosen(files: list[Path], path: Path, key: str) -> Found:
    """Structured files where there are any, else texts."""
    structured = [file for file in files if kind_of(file) in STRUCTURED]
    texts = [file for file in files if kind_of(file) in TEXT]
    if not structured and not texts:
        message = (
            f"{key} = {path} holds no {', '.join(sorted(KNOWN))} file (each may be compressed as .gz)."
            " Choose another folder."
        )
        raise UsageError(message)
    return Found(tuple(structured or texts), texts_passed_over=len(texts) if structured else 0)


def _walk(root: Path) -> list[Path]:
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not _hidden(name))
        found += [Path(folder, name) for name in sorted(names) if not _hidden(name)]
    return found


def _hidden(name: str) -> bool:
    return name.startswith(".")


def kind_of(file: Path) -> str:
    """The suffix that says what a file holds, without the .gz behind it."""
    suffixes = file.suffixes
    last = suffixes[-1].lower() if suffixes else ""
    return (suffixes[-2].lower() if len(suffixes) > 1 else "") if last == ".gz" else last


def sources_of(found: Found, *, offline: bool) -> Iterator[tuple[str, Iterator[DataRecord | Broken]]]:
    """Each file's (or data set's) name and records. Raises UsageError where it cannot be read at all."""
    if found.saved is not None:
        yield str(found.saved), read_saved_folder(found.saved)
    elif found.hub:
        yield found.hub, read_hub(found.hub, offline=offline)
    for file in found.files:
        yield str(file), read_file(file)


def read_file(file: Path) -> Iterator[DataRecord | Broken]:
    """The records of one file. A fault that ends the reading is a `Broken` too, the last."""
    place = str(file)
    try:
        for item in _reader(file):
            place = item.place
            yield item
    except (EOFError, zlib.error) as error:
        yield Broken(place, f"the compressed file is damaged or cut off after this point ({error})")
    except UnicodeDecodeError as error:
        yield Broken(
            place, f"not text in UTF-8 after this point ({error.reason}, byte {error.start} of a part)"
        )
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror or error}. Check the file and its permissions."
        raise UsageError(message) from error


def _reader(file: Path) -> Iterator[DataRecord | Broken]:
    with opened(file) as stream:
        head: bytes = stream.peek(4096)[:4096]
    kind = kind_of(file)
    if head.startswith(b"PAR1"):
        yield from read_parquet(file)
    elif head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        yield from read_arrow(file)
    elif head.startswith((b"\xff\xfe", b"\xfe\xff")) or _is_wide(head):
        yield Broken(str(file), "this is text in UTF-16. Convert it to UTF-8, for example with iconv")
    elif kind in COLUMNS:
        names = {".parquet": "Parquet"}
        yield Broken(
            str(file), f"not a {names.get(kind, 'n Arrow').strip()} file (its first bytes are different)"
        )
    elif kind in DELIMITED:
        yield from read_delimited(file)
    elif kind in TEXT or not _looks_like_json(head):
        yield from _no_json(file, kind)
    elif _is_lines(head, kind):
        yield from read_json_lines(file)
    else:
        yield from read_json_document(file)


def _no_json(file: Path, kind: str) -> Iterator[DataRecord | Broken]:
    """Text; but a file that is named JSON and starts otherwise has a fault, on a line that is named."""
    if kind in JSON:
        yield from read_json_lines(file)
    else:
        yield from read_text(file)


def _is_wide(head: bytes) -> bool:
    """UTF-16 without a mark: every other byte of plain text is 0."""
    part = head[:256]
    return len(part) > 8 and (part[1::2].count(0) > len(part) // 3 or part[::2].count(0) > len(part) // 3)


def _looks_like_json(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def _is_lines(head: bytes, kind: str) -> bool:
    """One value a line, or one document over many lines."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    first, newline, rest = text.partition(b"\n")
    if kind in {".jsonl", ".ndjson"}:
        # An array in spite of its suffix: it does not end on its first line.
        return not (
            text.startswith(b"[") and (not first.strip().endswith(b"]") or not rest.strip()) and newline
        )
    if text.startswith(b"["):
        return False
    # One line alone may be a document that holds the records; the reader of documents takes lines too.
    return first.strip().endswith(b"}") and bool(rest.strip())
