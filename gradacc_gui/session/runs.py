"""The list of runs: what each is doing, told from its lock and its journal, with bounded reads.

Alive means locked. A run that is not alive and whose newest attempt has no end is *interrupted*. A
directory that cannot be read is *damaged*, with a sentence, and never hides the others.
"""

from __future__ import annotations

import math
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from gradacc_gui.session.about_file import NO_NOTES, AboutRun, read_about
from gradacc_gui.session.launch import PROCESS_MARK, START_MARK, last_lines, last_word, tail
from trainer_backend.config_check import ONE_OF
from trainer_backend.errors import GradaccError, RunDirectoryError
from trainer_backend.journal import JournalReader, seal
from trainer_backend.journal_mending import may_be_hot, rollback_journal_of, wal_of
from trainer_backend.protocol import (
    FACTS,
    ArtifactSaved,
    DeviceSampled,
    EvaluationMeasured,
    HostSampled,
    MeasurementsLost,
    NonFiniteSeen,
    OptimizerStepMeasured,
    PhaseEntered,
    Record,
    RunStarted,
    Scalar,
    Slept,
    Warned,
)
from trainer_backend.run_directory import ABOUT, RunDirectory
from trainer_backend.run_facts import Reached, RunFacts, RunState
from trainer_backend.settings import Settings
from trainer_backend.wholeness import check_whole

STARTING_S: Final = 20.0
"""How long a trainer may take from its start to its lock before the run counts as interrupted."""
LONGEST_LOOK_S: Final = 10.0
"""How long a look at one run may take; it takes milliseconds where its directory is as we leave it."""
FULL_BYTES: Final = 1 << 20
"""Less room than this is none for a journal."""
SQLITE_MAGIC: Final = b"SQLite format 3\0"
PEAKS: Final = ((DeviceSampled, "torch_allocated_bytes"), (HostSampled, "process_rss_bytes"))
"""Which reading of memory a run is told by: the first that it has."""
WAL_VERSION: Final = 2
"""Bytes 18 and 19 of a database file in WAL mode (SQLite file format, section 1.3.3)."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list."""

    run: RunDirectory
    name: str
    state: RunState
    attempt: int = 0
    step: int = 0
    samples_seen: int = 0
    loss: float | None = None
    """Of the newest optimizer step; None when there is none."""
    started_at: float | None = None
    """Of the first attempt."""
    seen_at: float | None = None
    """Of the newest event."""
    reason: str = ""
    """Why it ended, or what is damaged: a code of the trainer's, or a sentence."""
    lengthened: bool = False
    """It has finished, and its recipe was given more to train since."""
    sealed: bool = False
    """It is over, and known to need no sealing."""
    created_at: float = 0.0
    """When its recipe was written, in seconds since the epoch."""
    about: AboutRun = NO_NOTES
    settings: dict[str, Scalar] = {}
    """By the recipe's keys; where the trainer said what is in force, that."""
    effective_batch: int | None = None
    validation_loss: float | None = None
    """Of the newest evaluation."""
    peak_memory_bytes: int | None = None
    """The most that torch allocated on a GPU, else the most that the process took; once it has ended."""
    duration_s: float | None = None
    """From the start of each attempt to its last event, added up."""

    @property
    def kind(self) -> str:
        """The kind of its task."""
        return str(self.settings.get("task.kind", ""))

    @property
    def can_resume(self) -> bool:
        """Whether a new attempt may go on from its last checkpoint."""
        return self.lengthened or self.state.can_resume


_TELLING: Final = tuple(
    kind
    for kind in FACTS.values()
    if kind not in (PhaseEntered, ArtifactSaved, NonFiniteSeen, Slept, MeasurementsLost, Warned)
)
"""What the list reads of a run's facts: all but the frequent ones, which change nothing that it shows."""


def summarise(run: RunDirectory) -> RunSummary:
    """What a run is doing now. Never raises for what lies in its directory: that is *damaged*."""
    try:
        return _with_notes(run, examine(run))
    except GradaccError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - one run's directory, whatever it is, must not hide the others
        reason = (
            f"{run.path} holds what gradacc cannot read ({type(error).__name__}: {error})."
            " It is damaged, or a newer gradacc made it."
        )
    damaged = RunSummary(run=run, name=run.id, state=RunState.DAMAGED, reason=" ".join(reason.splitlines()))
    return msgspec.structs.replace(damaged, about=read_about(run), created_at=_created_at(run))


def _created_at(run: RunDirectory) -> float:
    try:
        return run.recipe_path.lstat().st_mtime
    except OSError:
        return 0.0


def _with_notes(run: RunDirectory, summary: RunSummary) -> RunSummary:
    """What a person noted, and what the recipe asks where the trainer said nothing."""
    about = read_about(run)
    return msgspec.structs.replace(
        summary,
        name=about.label or summary.name,
        about=about,
        created_at=_created_at(run),
        settings=run.recipe_values() | summary.settings,
    )


def examine(run: RunDirectory) -> RunSummary:
    """What a run is doing now. Raises GradaccError for a directory that is no run's, or damaged."""
    alive = run.is_alive()  # before the journal is read: an end that is written in between is then seen
    run.check()
    if not run.journal_path.is_file():
        return _without_journal(run, run.asked_name or run.id, alive=alive)
    with open_journal(run, alive=alive, within_s=LONGEST_LOOK_S) as reader:
        return _from_journal(run, reader, alive=alive)


def _without_journal(run: RunDirectory, name: str, *, alive: bool) -> RunSummary:
    if alive or _just_launched(run, since=0.0):
        return RunSummary(run=run, name=name, state=RunState.LOADING)
    check_whole(run)
    reason = _last_word(run) or "it was never started"
    return RunSummary(run=run, name=name, state=RunState.INTERRUPTED, reason=reason)


def _last_word(run: RunDirectory) -> str:
    """What the trainer printed last; empty when nothing was ever printed or started."""
    word = last_word(run)
    return word or ("its trainer stopped without reporting why" if last_lines(run, count=1) else "")


def _just_launched(run: RunDirectory, *, since: float) -> bool:
    """Whether a start is the last word in trainer.log, and newer than the journal's newest event."""
    with suppress(OSError):
        launched_at = run.log_path.stat().st_mtime
        if launched_at > since and time.time() - launched_at < STARTING_S:
            *before, last = tail(run.log_path, count=2) or ("",)
            if last.startswith("--- ") and START_MARK in last:
                return True
            started = bool(before) and before[0].startswith("--- ") and START_MARK in before[0]
            return started and _is_there(last)
    return False


def _is_there(line: str) -> bool:
    """Whether the process that a line of trainer.log names may still take the lock."""
    found = re.fullmatch(rf"--- {PROCESS_MARK} (\d+) on (.*)", line)
    if found is None:
        return False
    if found[2] != platform.node():  # another machine's, which cannot be asked
        return True
    import psutil  # noqa: PLC0415 - only in a run's first seconds

    try:
        status: str = psutil.Process(int(found[1])).status()
    except psutil.Error:
        return False
    return bool(status != psutil.STATUS_ZOMBIE)  # psutil has no types


def died_unseen(run: RunDirectory) -> bool:
    """Whether a run that has no journal was started, and its trainer is not there (any more)."""
    return summarise(run).state is RunState.INTERRUPTED and bool(last_lines(run, count=1))


def _from_journal(run: RunDirectory, reader: JournalReader, *, alive: bool) -> RunSummary:
    reader.head()  # a journal that ends where none can is damaged, whatever else it tells
    told = reader.facts(*_TELLING)
    facts = RunFacts().take_all(told)
    newest = reader.newest_record(OptimizerStepMeasured)
    progress = facts.progress(newest)
    seen_at = max([*(record.at for record in told[-1:]), 0.0 if progress is None else progress.at])
    state, reason = _state(run, facts, alive=alive, seen_at=seen_at)
    return RunSummary(
        run=run,
        name=(facts.started.name if facts.started is not None else "") or run.asked_name or run.id,
        state=state,
        attempt=facts.attempt or 1,
        step=0 if progress is None else progress.step,
        samples_seen=0 if progress is None else progress.samples_seen,
        loss=None if progress is None else progress.loss,
        started_at=facts.first_started_at,
        seen_at=seen_at or None,
        reason=reason,
        lengthened=state is RunState.FINISHED and _is_lengthened(run, facts.started, newest),
        settings={} if facts.settings is None else _in_force(facts.settings),
        effective_batch=None if facts.settings is None else facts.settings.effective_batch,
        validation_loss=_validation_loss(reader),
        peak_memory_bytes=None if state.is_alive else _peak_memory(reader),
        duration_s=_duration_s(told, progress),
    )


def _in_force(settings: Settings) -> dict[str, Scalar]:
    return {key: value for key, value in settings.by_key().items() if value is not None}


def _validation_loss(reader: JournalReader) -> float | None:
    newest = reader.newest_record(EvaluationMeasured)
    return newest.event.loss if newest and isinstance(newest.event, EvaluationMeasured) else None


def _peak_memory(reader: JournalReader) -> int | None:
    """The greatest reading of all; a scan of the readings, so only for a run that has ended."""
    for kind, column in PEAKS:
        if reader.holds(kind):
            ((most,),) = reader.select(f"SELECT max({column}) FROM {kind.__name__}")  # noqa: S608 - our own names
            if isinstance(most, int | float) and most > 0:
                return int(most)
    return None


def _duration_s(told: list[Record], progress: Reached | None) -> float | None:
    """Facts of an attempt lie between its start and its end; of the newest, its newest step may be later."""
    spans: dict[int, tuple[float, float]] = {}
    for record in told:
        first, last = spans.get(record.attempt, (record.at, record.at))
        spans[record.attempt] = (min(first, record.at), max(last, record.at))
    if not spans:
        return None
    newest = max(spans)
    first, last = spans[newest]
    spans[newest] = (first, last if progress is None else max(last, progress.at))
    return sum(last - first for first, last in spans.values())


def _is_lengthened(run: RunDirectory, before: RunStarted | None, newest: Record | None) -> bool:
    """Whether a finished run's recipe asks for more than it did, or than was seen.

    `before`: how its newest attempt began; `newest`: its newest optimizer step.
    """
    if before is None or newest is None or not isinstance(newest.event, OptimizerStepMeasured):
        return False
    done, asked, per_epoch = newest.event, _length(run), before.samples_per_epoch
    return (
        asked.get("max_samples", 0) > (before.max_samples or done.samples_seen)
        or asked.get("max_optimizer_steps", 0) > (before.max_optimizer_steps or done.updates)
        # A dropped tail leaves an epoch short, so it is counted up.
        or (
            per_epoch is not None
            and per_epoch > 0
            and asked.get("epochs", 0) > math.ceil(done.samples_seen / per_epoch)
        )
    )


def _length(run: RunDirectory) -> dict[str, int]:
    """How long the recipe asks to train, its other keys unchecked: `epochs` and its alternatives."""
    given = {key.partition(".")[2]: run.recipe_value(key) for key in ONE_OF[0]}
    return {key: value for key, value in given.items() if type(value) is int}


def _state(run: RunDirectory, facts: RunFacts, *, alive: bool, seen_at: float) -> tuple[RunState, str]:
    """What the run is doing; and why it ended, as far as anybody said so."""
    state = facts.state(alive=alive, pid=run.pid() if alive else None)
    if state.is_alive:
        return state, ""
    if facts.ended is not None:
        return state, facts.ended.reason
    if _just_launched(run, since=seen_at):
        return RunState.LOADING, ""
    return RunState.INTERRUPTED, _last_word(run)


# ------------------------------------------------------------------------- opening a journal


@contextmanager
def open_journal(
    run: RunDirectory, *, alive: bool | None = None, within_s: float = math.inf
) -> Iterator[JournalReader]:
    """A reader of a run's journal, however it lies: live, sealed, or unsealed in a read-only place.

    `within_s`: longest time that all reads may take together.
    Raises RunDirectoryError when it cannot be read at all.
    """
    is_alive = run.is_alive() if alive is None else alive
    with ExitStack() as stack:
        if not is_alive and not os.access(run.path, os.W_OK):
            reader = _open_read_only(run, stack, within_s)
        else:
            reader = JournalReader(run.journal_path, within_s=within_s)
        stack.callback(reader.close)
        yield reader


def _open_read_only(run: RunDirectory, stack: ExitStack, within_s: float) -> JournalReader:
    """Where SQLite may not make the files beside the journal that its WAL mode needs.

    With a WAL, both are copied, for without it the newest events are missing, silently; what a kill left
    half done is undone in the copy. Without either, `immutable=1` is right: an ended run's journal changes
    no more.
    """
    path, wal = run.journal_path, wal_of(run.journal_path)
    try:
        if not (wal.is_file() and wal.stat().st_size) and not may_be_hot(path):
            return JournalReader(path, immutable=is_in_wal_mode(path), within_s=within_s)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradacc-")))
        for beside in (wal, rollback_journal_of(path)):
            if beside.is_file():
                shutil.copyfile(beside, folder / beside.name)
        return JournalReader(Path(shutil.copyfile(path, folder / path.name)), within_s=within_s)
    except OSError as error:
        message = f"The journal {path} cannot be copied: {error.strerror}. It is damaged or half copied."
        raise RunDirectoryError(message) from error


def is_in_wal_mode(path: Path) -> bool:
    """Whether a journal is not sealed: its newest events may lie in the WAL beside it."""
    try:
        with path.open("rb") as file:
            header = file.read(20)
    except OSError:
        return False
    return header.startswith(SQLITE_MAGIC) and WAL_VERSION in header[18:20]


def disk_problem(run: RunDirectory) -> str:
    """A sentence when a live run's disk is full, which is why nothing new is seen of it; else empty.

    Its trainer cannot say so: what it says would have to be written there.
    """
    try:
        free = shutil.disk_usage(run.path).free
    except OSError:
        return ""
    if free >= FULL_BYTES:
        return ""
    return (
        f"The disk of {run.path} is full, so nothing new is shown. It keeps training; free some disk space."
    )


# --------------------------------------------------------------------------- seal and delete


def seal_ended(runs: list[RunSummary]) -> list[RunSummary]:
    """Fold the WAL of ended runs into their journals; gives those that could not be (try again later)."""
    waiting = []
    for summary in runs:
        if summary.sealed or summary.state.is_alive or summary.state is RunState.DAMAGED:
            continue
        path = summary.run.journal_path
        if is_in_wal_mode(path) and (summary.run.is_alive() or not seal(path)):
            waiting.append(summary)
    return waiting


_FILES: Final = (
    "run.sqlite",
    "run.sqlite-wal",
    "run.sqlite-shm",
    "run.sqlite-journal",
    "trainer.log",
    "recipe.toml",
    "check.json",
    "summary.msgpack",
    ABOUT,
    "mirror.json",
)
_FOLDERS: Final = ("inbox", "checkpoints", "artifacts", "export", "line")


def delete_run(run: RunDirectory) -> None:
    """Remove a run that is not alive: what gradacc made, and nothing that lies beside it.

    Raises RunDirectoryError when it is alive, or something cannot be removed.
    """
    run.check()
    try:
        with run.locked():  # no trainer starts in it meanwhile
            for name in _FOLDERS:
                if (run.path / name).is_dir() and not (run.path / name).is_symlink():
                    shutil.rmtree(run.path / name)
            for path in (*(run.path / name for name in _FILES), *run.path.glob(".summary.msgpack.*.part")):
                path.unlink(missing_ok=True)
        run.lock_path.unlink(missing_ok=True)
    except OSError as error:
        message = f"{run.path} cannot be deleted: {error.strerror}. Check its permissions."
        raise RunDirectoryError(message) from error
    with suppress(OSError):  # something of the user's lies in it: that stays
        run.path.rmdir()


__all__ = ["RunSummary", "delete_run", "open_journal", "seal_ended", "summarise"]
