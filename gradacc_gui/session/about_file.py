"""What a person notes about a run, in `about.toml` in its directory: label, tags, note, star.

The directory and the run's id never change, so commands, checkpoints and links stay as they were.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec

from trainer_backend.errors import RunDirectoryError
from trainer_backend.private_files import private_opener
from trainer_backend.regular_files import LARGEST_TEXT_BYTES, read_regular
from trainer_backend.run_directory import ABOUT, RunDirectory


class AboutRun(msgspec.Struct, frozen=True):
    """A run's notes."""

    label: str = ""
    """What the run is called in lists; empty: by its recipe's name."""
    tags: tuple[str, ...] = ()
    note: str = ""
    starred: bool = False


NO_NOTES: Final = AboutRun()


def read_about(run: RunDirectory) -> AboutRun:
    """The notes of a run; what cannot be read counts as none, so that a list is never empty for it."""
    try:
        return _checked(_table(run))
    except (OSError, ValueError, RecursionError):
        return NO_NOTES


def _table(run: RunDirectory) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(run.path / ABOUT, LARGEST_TEXT_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return {}


def _checked(table: dict[str, Any]) -> AboutRun:
    """What of a table is as it should be; a key of another type counts as absent."""
    label, tags, note, starred = (table.get(key) for key in AboutRun.__struct_fields__)
    return AboutRun(
        label=label if isinstance(label, str) else "",
        tags=clean_tags(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
        note=note if isinstance(note, str) else "",
        starred=starred is True,
    )


def clean_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags without empty ones and repetitions, their blanks joined."""
    return tuple(dict.fromkeys(clean for tag in tags if (clean := " ".join(tag.split()))))


def write_about(run: RunDirectory, about: AboutRun) -> None:
    """Keep the notes of a run beside it; keys that this version does not know stay.

    Raises RunDirectoryError: notes too long, a file that is damaged, a place that cannot be written.
    """
    import tomlkit  # noqa: PLC0415 - lists only read, with Python's own reader

    path = run.path / ABOUT
    try:
        table = _table(run)
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path} cannot be read, so it was not changed. Mend it, or delete it, and try again."
        raise RunDirectoryError(message) from error
    kept = {key: value for key, value in table.items() if key not in AboutRun.__struct_fields__}
    own = {
        "label": " ".join(about.label.split()),
        "tags": list(clean_tags(about.tags)),
        "note": about.note.strip(),
        "starred": about.starred,
    }
    try:
        text = tomlkit.dumps({**{key: value for key, value in own.items() if value}, **kept}).encode("utf-8")
    except UnicodeEncodeError as error:
        message = "The notes hold a character that no file can hold (half of a surrogate pair). Remove it."
        raise RunDirectoryError(message) from error
    if len(text) > LARGEST_TEXT_BYTES:
        message = f"The notes of a run may take {LARGEST_TEXT_BYTES:,} bytes; these take {len(text):,}."
        raise RunDirectoryError(message)
    beside = run.path / f".{ABOUT}.{os.getpid()}.part"
    try:
        with open(beside, "wb", opener=private_opener) as file:
            file.write(text)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        message = f"{path} cannot be written: {error.strerror}. Check the permissions of the run's folder."
        raise RunDirectoryError(message) from error
