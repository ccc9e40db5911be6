"""Reads what an evaluation left on disk, within bounds; whatever is wrong with a file is a sentence.

For a worker thread: a large picture takes a second to decode. QImage and QImageReader may be used there.
"""

from __future__ import annotations

import csv
import io
import re
import stat
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QImage, QImageReader

from gradacc_gui.run.evaluations import shares
from gradacc_gui.run.log_tail import clean
from gradacc_gui.run.numbers import gibibytes
from gradacc_gui.words import tr
from trainer_backend.protocol import ArtifactSaved

TEXT_BYTES: Final = 200_000
"""What is read of a text or a table; the rest stays in its file."""
PICTURE_BYTES: Final = 256 * 1024**2
PICTURE_PIXELS: Final = 64_000_000
"""Decoded, these are 256 MB; Qt refuses more by itself."""
LONGEST_LINE: Final = 4_000
"""Characters; an editor needs seconds to lay out a line of 200,000."""
MOST_ROWS: Final = 1_000
MOST_COLUMNS: Final = 200


class LoadedPicture(msgspec.Struct, frozen=True, kw_only=True):
    """An image, perhaps smaller than in its file."""

    image: QImage
    width: int
    """Of the file's picture, in pixels."""
    height: int


class TextExcerpt(msgspec.Struct, frozen=True, kw_only=True):
    """A text, perhaps only its beginning."""

    text: str
    note: str
    """What is not shown as it is in the file; empty: nothing."""


class TableExcerpt(msgspec.Struct, frozen=True, kw_only=True):
    """A table: every row has as many cells as the header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    heat: tuple[tuple[float | None, ...], ...]
    """How much of the tint each cell gets, 0 … 1; None for text."""
    note: str


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing to show, and why."""

    sentence: str


Loaded: TypeAlias = LoadedPicture | TextExcerpt | TableExcerpt | Unreadable


def load(folder: Path, artifact: ArtifactSaved, largest: QSize) -> Loaded:
    """What `artifact` of the run in `folder` shows; a picture is scaled down to fit `largest` pixels."""
    found = _find(folder, artifact.path)
    if isinstance(found, Unreadable):
        return found
    try:
        match artifact.kind:
            case "image":
                return _picture(found, largest)
            case "text":
                return _words(found)
            case "table":
                return _grid(found)
    except OSError as error:
        return _unreadable(found.name, error.strerror or str(error))


def _unreadable(name: str, why: str) -> Unreadable:
    text = tr("{name} cannot be shown: {why}.").format(name=name, why=why.strip().rstrip("."))
    return Unreadable(sentence=text)


def _find(folder: Path, path: str) -> Path | Unreadable:
    """A regular file inside the run's directory (a pipe would be waited for without end)."""
    name = path.rpartition("/")[2] or path
    try:
        home = folder.resolve()
        found = (home / path).resolve()
        if not found.is_relative_to(home):
            return _unreadable(name, tr("it is outside the run's directory"))
        mode = found.stat().st_mode
    except FileNotFoundError:
        return _unreadable(name, tr("the file no longer exists"))
    except (OSError, RuntimeError, ValueError) as error:  # links in a ring, a name that no file may have
        return _unreadable(name, getattr(error, "strerror", None) or str(error))
    if not stat.S_ISREG(mode):
        return _unreadable(name, tr("it is not a file"))
    return found


def load_picture(path: Path, largest: QSize) -> LoadedPicture | Unreadable:
    """A picture of a person's own, scaled down to fit `largest` pixels."""
    try:
        return _picture(path, largest)
    except OSError as error:
        return _unreadable(path.name, error.strerror or str(error))


def _picture(path: Path, largest: QSize) -> LoadedPicture | Unreadable:
    size_bytes = path.stat().st_size
    if size_bytes > PICTURE_BYTES:
        return _unreadable(path.name, tr("it has {size}").format(size=gibibytes(size_bytes)))
    reader = QImageReader(str(path))
    reader.setDecideFormatFromContent(True)
    reader.setAutoTransform(True)
    size = reader.size()
    if size.isValid():
        if size.width() * size.height() > PICTURE_PIXELS:
            pixels = f"{size.width():,} × {size.height():,}"
            return _unreadable(path.name, tr("it has {pixels} pixels").format(pixels=pixels))
        if size.width() > largest.width() or size.height() > largest.height():
            shown = size.scaled(largest, Qt.AspectRatioMode.KeepAspectRatio).expandedTo(QSize(1, 1))
            reader.setScaledSize(shown)
    image = reader.read()
    if image.isNull():
        return _unreadable(path.name, reader.errorString())
    whole = size if size.isValid() else image.size()
    if image.width() > largest.width() or image.height() > largest.height():
        mode = Qt.TransformationMode.SmoothTransformation
        image = image.scaled(largest, Qt.AspectRatioMode.KeepAspectRatio, mode)
    return LoadedPicture(image=image, width=whole.width(), height=whole.height())


def _beginning(path: Path) -> tuple[str, str]:
    """The file's first `TEXT_BYTES` as text, and what that leaves out."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        data = file.read(TEXT_BYTES)
    text = data.decode("utf-8-sig", "replace")
    if size_bytes <= len(data):
        return text, ""
    note = tr("The first {shown} of {size}; the rest is in the file.")
    return text.removesuffix("\ufffd"), note.format(shown="200 kB", size=gibibytes(size_bytes))


def _words(path: Path) -> TextExcerpt:
    text, note = _beginning(path)
    text = clean(text)
    if any(len(line) > LONGEST_LINE for line in text.split("\n")):
        text = re.sub(f"([^\n]{{{LONGEST_LINE}}})(?=[^\n])", "\\1\n", text)
        note = f"{note} {tr('Very long lines are broken.')}".strip()
    return TextExcerpt(text=text, note=note)


def _grid(path: Path) -> TableExcerpt | Unreadable:
    text, note = _beginning(path)
    if note:
        text = text.rpartition("\n")[0]  # the last line was cut
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            if row:
                rows.append([cell.strip() for cell in row])
            if len(rows) > MOST_ROWS:
                break
    except csv.Error as error:
        return _unreadable(path.name, tr("it is not a table: {why}").format(why=error))
    if not rows:
        return _unreadable(path.name, tr("it is empty"))
    width = max(map(len, rows))
    if len(rows) > MOST_ROWS or width > MOST_COLUMNS:
        note = tr("The first {rows} rows and {columns} columns; the rest is in the file.").format(
            rows=f"{min(len(rows) - 1, MOST_ROWS - 1):,}", columns=min(width, MOST_COLUMNS)
        )
    width = min(width, MOST_COLUMNS)
    header, *body = (tuple((row + [""] * width)[:width]) for row in rows[:MOST_ROWS])
    return TableExcerpt(header=header, rows=tuple(body), heat=shares(header, body), note=note)
