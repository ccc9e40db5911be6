"""The list of all runs, quick for thousands: what an ended run was is kept beside what it was told from.

    <run>/summary.msgpack        its line of the list, with the sizes and times of the files it was read from
    GRADACC_HOME/runs.msgpack    the lines of all, so that a window shows its list before it has looked

Both may be deleted at any time. A kept line counts only while these files are as they were, so a copy or an
edit is read anew. Of a run that is alive, unsealed or damaged nothing is kept.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from gradacc_gui.session.about_file import AboutRun
from gradacc_gui.session.runs import RunSummary, is_in_wal_mode, summarise
from trainer_backend.private_files import home, make_private, private_opener
from trainer_backend.protocol import Scalar
from trainer_backend.regular_files import read_regular
from trainer_backend.run_directory import ABOUT, RunDirectory, all_runs, runs_folder
from trainer_backend.run_facts import RunState

NAME: Final = "summary.msgpack"
INDEX: Final = "runs.msgpack"
FORMAT: Final = 2
"""Counted up whenever the same files would give another line."""
LARGEST_BYTES: Final = 64 * 1024
LARGEST_INDEX_BYTES: Final = 256 * 1024 * 1024
SETTLED_S: Final = 2.0
"""A file that changed less long ago may change again without another size or time."""
_MADE_OF: Final = ("recipe.toml", "run.sqlite", "trainer.log", ABOUT)
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
    created_at: float
    about: AboutRun
    settings: dict[str, Scalar]
    effective_batch: int | None
    validation_loss: float | None
    peak_memory_bytes: int | None
    duration_s: float | None


_LINE: Final = _Kept.__struct_fields__[2:]


def list_runs() -> list[RunSummary]:
    """Every run of this user, newest first. A few small reads a run."""
    return [_listed(run)[0] for run in all_runs()]


def _listed(run: RunDirectory) -> tuple[RunSummary, _Kept | None]:
    """A run's line, and what may be kept of it."""
    made_of = _stamps(run)
    if made_of is None:
        return summarise(run), None
    kept = _read(run)
    if kept is not None and kept.made_of == made_of and not run.is_alive():
        return _as_summary(run, kept), kept
    summary = summarise(run)
    if summary.state.is_over and not is_in_wal_mode(run.journal_path) and _stamps(run) == made_of:
        summary = msgspec.structs.replace(summary, sealed=True)
        kept = _Kept(FORMAT, made_of, *(getattr(summary, name) for name in _LINE))
        _keep(run.path / NAME, kept)
        return summary, kept
    return summary, None


def _as_summary(run: RunDirectory, kept: _Kept) -> RunSummary:
    return RunSummary(run=run, sealed=True, **{name: getattr(kept, name) for name in _LINE})


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
    except (OSError, msgspec.MsgspecError):  # none yet, or none of ours: the run itself is read
        return None
    return kept if kept.format == FORMAT and kept.state.is_over else None


def _keep(path: Path, kept: _Kept | list[_Entry]) -> None:
    """Write what may be read next time; where that cannot be, the runs are read again."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with suppress(OSError, UnicodeEncodeError):  # a lone surrogate in a name cannot be kept
        try:
            with open(beside, "xb", opener=private_opener) as file:
                file.write(msgspec.msgpack.encode(kept))
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


# --------------------------------------------------------------------------- looked at again and again

Glance: TypeAlias = tuple[int, ...]
"""Times of the last change of a run's directory and of what is changed in place in it, in nanoseconds: a
trainer that starts, and a person that edits, change one of them."""
_IN_PLACE: Final = (
    "",
    f"{os.sep}recipe.toml",
    f"{os.sep}trainer.lock",
    f"{os.sep}trainer.log",
    f"{os.sep}{ABOUT}",
)


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    id: str
    glance: Glance
    kept: _Kept


class RunList:
    """All runs as a window keeps them: shown at once from the last time, then looked at in slices.

    A run that has ended is read again only when a glance at its directory differs; one that is live, or was
    changed within the last seconds, at each look.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lines: dict[str, RunSummary] = {}
        self._left: list[RunDirectory] = []
        """Runs that the look under way has not come to."""
        self._there: set[str] = set()
        self._changed = False
        self._restore()

    def lines(self) -> list[RunSummary]:
        """What is known now, newest first."""
        return sorted(self._lines.values(), key=lambda line: line.created_at, reverse=True)

    def look(self, within_s: float, clock: Callable[[], float] = time.monotonic) -> bool:
        """Go on with the look at all runs for so long; True when it has come to its end."""
        until = clock() + within_s
        if not self._left:
            self._left = _oldest_first()
            self._there = {run.id for run in self._left}
            for gone in self._lines.keys() - self._there:
                del self._lines[gone]
                self._changed |= self._entries.pop(gone, None) is not None
        while self._left:
            self.look_at(self._left.pop())
            if clock() >= until:
                break
        if not self._left and self._changed:
            self._changed = False
            self._write()
        return not self._left

    def look_at(self, run: RunDirectory) -> None:
        """Look at one run now: it was just changed."""
        entry, glance = self._entries.get(run.id), _glance(run)
        if entry is not None and entry.glance == glance and run.id in self._lines:
            return
        line, kept = _listed(run)
        if line != self._lines.get(run.id):  # else the same object stays, and is known to be the same
            self._lines[run.id] = line
        if kept is not None and _stamps(run) == kept.made_of:
            self._entries[run.id] = _Entry(run.id, _glance(run), kept)  # its own kept line changed the folder
            self._changed = True
        elif self._entries.pop(run.id, None) is not None:
            self._changed = True

    def _restore(self) -> None:
        try:
            content = read_regular(home() / INDEX, LARGEST_INDEX_BYTES)
            entries = msgspec.msgpack.decode(content, type=list[_Entry])
            folder = runs_folder()
            there = set(os.listdir(folder))  # noqa: PTH208 - a third of Path.iterdir's time
        except (OSError, msgspec.MsgspecError):
            return
        for entry in entries:
            if entry.kept.format == FORMAT and entry.id in there:
                self._entries[entry.id] = entry
                self._lines[entry.id] = _as_summary(RunDirectory(folder / entry.id), entry.kept)

    def _write(self) -> None:
        with suppress(OSError):
            make_private(home())
            _keep(home() / INDEX, list(self._entries.values()))


def _oldest_first() -> list[RunDirectory]:
    """All runs; the newest are taken from the end."""
    return all_runs()[::-1]


def _glance(run: RunDirectory) -> Glance:
    folder = str(run.path)
    return tuple(_changed_ns(folder + name) for name in _IN_PLACE)


def _changed_ns(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return -1
