"""What lies where the recipe's data are said to be: there at all, how many files, how many bytes. No Qt.

Inspecting a large folder takes time: not for the GUI thread. It ends early where there is very much.
"""

from __future__ import annotations

import os
import sysconfig
import time
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import msgspec

from gradacc_gui.words import tr
from trainer_backend.run_directory import is_readable

MOST_FILES: Final = 100_000
LONGEST_LOOK_S: Final = 5.0
LIBRARY_LEFT_OUT: Final = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)
"""Folders of the standard library that the language model does not read."""


class DataQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Which paths to inspect, and how."""

    kind: str
    folder: str
    """What relative paths start in."""
    paths: tuple[tuple[str, str], ...]
    """Field and its text, such as ("data.path", "books")."""
    pattern: str = ""
    """Files of a folder, for text: "*.py, *.txt"."""
    context_length: int = 0
    held_out: float = 0.0


class DataFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What lies at a recipe's data paths: files, bytes, and what is missing."""

    notes: dict[str, str] = {}
    """A few words for a field: "740 files, 12.2 MB"."""
    faults: dict[str, str] = {}
    """A sentence for a field with a fault."""
    samples_an_epoch: int | None = None


def inspect_data(question: DataQuestion) -> DataFacts:
    """Look at every data path of a recipe; reads folders and sizes, no contents."""
    notes: dict[str, str] = {}
    faults: dict[str, str] = {}
    samples = None
    for field, text in question.paths:
        root = Path(question.folder, os.path.expanduser(text)) if text.strip() else None  # noqa: PTH111 - "~x" may be no user
        if question.kind == "language-model" and field == "data.path":
            samples = _look_at_text(question, field, root, notes, faults)
        elif root is not None and not _exists(root):
            faults[field] = tr("There is no such file or folder: {path}. Check the path.").format(path=root)
        elif root is not None and root.is_dir() and not any(_files(root, ("*",), frozenset())):
            faults[field] = tr("The folder is empty: {path}. Choose another.").format(path=root)
    return DataFacts(notes=notes, faults=faults, samples_an_epoch=samples)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that the file system cannot even have
        return False


def _look_at_text(
    question: DataQuestion, field: str, root: Path | None, notes: dict[str, str], faults: dict[str, str]
) -> int | None:
    """Text of the byte-level language model; gives the samples of an epoch, about."""
    if root is not None and not _exists(root):
        faults[field] = tr("There is no such file or folder: {path}. Check the path.").format(path=root)
        return None
    if root is not None and not is_readable(root):
        words = tr(
            "You do not have permission to read {path}. Check its permissions, or choose another folder."
        )
        faults[field] = words.format(path=root)
        return None
    count, size_bytes, whole = _measure(_text_files(question, root))
    if not count:
        words = tr("No file in {path} matches {pattern}. Choose another folder, or other files.")
        faults[field] = words.format(path=root, pattern=question.pattern)
        return None
    more = "" if whole else tr("more than") + " "
    files = tr("1 file") if count == 1 else tr("{count:,} files").format(count=count)
    notes[field] = f"{more}{files}, {_megabytes(size_bytes)}"
    train_bytes = size_bytes * (1 - question.held_out)
    if whole and train_bytes <= question.context_length:
        words = tr("{size:,} bytes are fewer than one sample of {length:,}. Choose more text.")
        faults[field] = words.format(size=size_bytes, length=question.context_length + 1)
        return None
    return int(train_bytes // question.context_length) if whole and question.context_length else None


def _text_files(question: DataQuestion, root: Path | None) -> Iterator[Path]:
    if root is None:
        return _files(Path(sysconfig.get_path("stdlib")), ("*.py",), LIBRARY_LEFT_OUT)
    if root.is_file():
        return iter((root,))
    patterns = tuple(word.strip() for word in question.pattern.split(",") if word.strip())
    return _files(root, patterns, frozenset())


def _files(root: Path, patterns: tuple[str, ...], left_out: frozenset[str]) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in left_out and not name.startswith(".")]
        for name in names:
            if any(fnmatch(name, pattern) for pattern in patterns):
                yield Path(folder, name)


def _measure(files: Iterable[Path]) -> tuple[int, int, bool]:
    """How many, how many bytes, and whether these are all."""
    count = size_bytes = 0
    until = time.monotonic() + LONGEST_LOOK_S
    for path in files:
        try:
            size_bytes += path.stat().st_size
        except OSError:
            continue
        count += 1
        if count >= MOST_FILES or time.monotonic() > until:
            return count, size_bytes, False
    return count, size_bytes, True


def _megabytes(size_bytes: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:,} bytes"
