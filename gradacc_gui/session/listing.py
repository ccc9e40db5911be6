"""The list of all runs, quick for thousands: what an ended run was is kept beside what it was told from.

    <run>/summary.msgpack   its line of the list, with the sizes and times of the files that it was read from

A kept line counts only while these files are as they were, so a copy or an edit is read anew. Of a run that
is alive, unsealed or damaged nothing is kept.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec

from gradacc_gui.session.runs import RunSummary, is_in_wal_mode, summarise
from trainer_backend.private_files import private_opener
from trainer_backend.regular_files import read_regular
from trainer_backend.run_directory import RunDirectory, all_runs
from trainer_backend.run_facts import RunState

NAME: Final = "summary.msgpack"
FORMAT: Final = 1
"""Counted up whenever the same files would give another line."""
LARGEST_BYTES: Final = 64 * 1024
SETTLED_S: Final = 2.0
"""A file that changed less long ago may change again without another size or time."""
_MADE_OF: Final = ("recipe.toml", "run.sqlite", "trainer.log")
_OPEN: Final = frozenset(("run.sqlite-wal", "run.sqlite-shm", "run.sqlite-journal"))
"""What lies there only while a journal is written, or has not been sealed since."""

Stamps: TypeAlias = tuple[tuple[int, int], ...]
"""Size in bytes and time of the last change in nanoseconds, of each file; -1 where there is none."""


class _Kept(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A line of the list, and what it was made from."""

    format: int
    made_of: Stamps
    name: str
    state: RunState
    attempt: int
    step: int
    samples_seen: int
    loss: float | None
    started_at: float | None
    seen_at: float | None
    reason: str
    lengthened: bool


_LINE: Final = _Kept.__struct_fields__[2:]


def list_runs() -> list[RunSummary]:
    """Every run of this user, newest first. A few small reads a run."""
    return [_listed(run) for run in all_runs()]


def _listed(run: RunDirectory) -> RunSummary:
    made_of = _stamps(run)
    if made_of is None:
        return summarise(run)
    kept = _read(run)
    if kept is not None and kept.made_of == made_of and not run.is_alive():
        return RunSummary(run=run, sealed=True, **{name: getattr(kept, name) for name in _LINE})
    summary = summarise(run)
    if summary.state.is_over and not is_in_wal_mode(run.journal_path) and _stamps(run) == made_of:
        summary = msgspec.structs.replace(summary, sealed=True)
        _keep(run, _Kept(FORMAT, made_of, *(getattr(summary, name) for name in _LINE)))
    return summary


def _stamps(run: RunDirectory) -> Stamps | None:
    """What a line would be made from; None while it may change, or is not what we leave."""
    folder = str(run.path)
    found = []
    try:
        if not _OPEN.isdisjoint(os.listdir(folder)):  # noqa: PTH208 - a third of Path.iterdir's time
            return None
        for name in _MADE_OF:
            try:
                status = os.lstat(f"{folder}{os.sep}{name}")
            except FileNotFoundError:
                found.append((-1, -1))
                continue
            if not stat.S_ISREG(status.st_mode) or time.time() - status.st_mtime < SETTLED_S:
                return None
            found.append((status.st_size, status.st_mtime_ns))
    except OSError:
        return None
    return tuple(found) if found[1][0] > 0 else None


def _read(run: RunDirectory) -> _Kept | None:
    try:
        kept = msgspec.msgpack.decode(read_regular(run.path / NAME, LARGEST_BYTES), type=_Kept)
    except (OSError, msgspec.DecodeError):  # none yet, or none of ours: the run itself is read
        return None
    return kept if kept.format == FORMAT and kept.state.is_over else None


def _keep(run: RunDirectory, kept: _Kept) -> None:
    """Write a line beside its run; where that cannot be, the run is read again the next time."""
    beside = run.path / f".{NAME}.{os.getpid()}.part"
    with suppress(OSError):
        try:
            with open(beside, "xb", opener=private_opener) as file:
                file.write(msgspec.msgpack.encode(kept))
            beside.replace(run.path / NAME)
        finally:
            beside.unlink(missing_ok=True)
