"""The journal: a run's event queue, kept in one SQLite file that any number of readers may follow.

The training and sampler threads `put` events and never wait. One writer thread appends them in
batches, at most 25 ms apart while events come, facts at once. Readers ask for what lies after the
last sequence number they saw; live, re-attached and finished runs are one code path.

`journal_rows` has the tables, `journal_reader` the reading side; both are offered here too. `seq` is
dense over all tables, so a range of sequence numbers bounds a slice, and what is not yet written lies
behind all that is: a reader never misses a row.
"""

from __future__ import annotations

import math
import os
import queue
import sqlite3
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

from trainer_backend.asleep import asleep_s
from trainer_backend.errors import RunDirectoryError
from trainer_backend.journal_appending import RowAppender, Rows
from trainer_backend.journal_mending import sync_journal
from trainer_backend.journal_reader import JournalReader, Slice
from trainer_backend.journal_rows import (
    FACTOR,
    LEVELS,
    body_of,
    columns,
    make_schema,
    numeric_fields,
    rollup_columns,
    row_of,
    storable,
)
from trainer_backend.protocol import MEASUREMENTS, AnyEvent, Event, MeasurementsLost, Slept, Warned

BATCH_INTERVAL_S: Final = 0.025
"""Longest time an event waits for its batch while events come."""
TICK_INTERVAL_S: Final = 0.05
"""How often `on_tick` (the inbox) is called."""
HELD_MEASUREMENTS: Final = 100_000
"""Measurements kept in memory while the disk refuses them."""
TRANSACTION_EVENTS: Final = 20_000
"""Most events of one transaction: what a little freed space can take, after a full disk."""
RETRY_S: Final = 0.5
"""Time between two tries at a failing disk."""
STALLED_S: Final = 5.0
"""A write that takes longer is a disk that hangs."""
LAST_TRY_S: Final = 3.0
"""How long `close` goes on trying."""

SHORTEST_SLEEP_S: Final = 1.0
"""A suspension that is told; the clocks it is read from differ by less between two readings."""

_KINDS: Final = frozenset(MEASUREMENTS)
_Held: TypeAlias = tuple[int, float, Event]
_UNBINDABLE: Final = (sqlite3.ProgrammingError, sqlite3.InterfaceError, OverflowError, UnicodeError)
"""What SQLite says of a value that it cannot take; no fault of the disk's."""


class JournalWriter:
    """Appends events to a journal from one thread of its own, named gradacc-journal.

    `on_tick` is called in that thread about 20 times a second, between batches, and `on_committed` with the
    facts that a transaction has just brought into the journal. Raises RunDirectoryError when the journal
    cannot be opened; later faults of the disk only fill `disk_error`.
    """

    def __init__(
        self,
        path: Path,
        *,
        attempt: int,
        on_tick: Callable[[], None] | None = None,
        on_committed: Callable[[list[Event]], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._attempt = attempt
        self._on_tick = on_tick
        self._on_committed = on_committed
        self._tick_error = ""
        self._queue: queue.SimpleQueue[tuple[float, Event] | threading.Event | None] = queue.SimpleQueue()
        self._urgent = threading.Event()
        """Set when what was queued shall not wait for its batch."""
        self._flows = False
        """Whether the last batch had events."""
        self._looked_at = time.monotonic()
        """When the writer last looked at the queue."""
        self._asleep_s = asleep_s()
        self._put_at = time.time()
        """When the newest event was put."""
        self._sleep_told = threading.Lock()
        self._dropped = 0
        """Measurements that did not even enter the queue, since the last batch."""
        self._rescued: list[_Held] = []
        """Facts older than all in `_held`: the measurements around them were shed."""
        self._held: deque[_Held] = deque()
        """Not yet written, by seq."""
        self._measurements_held = 0
        self._lost: tuple[int, int] | None = None
        self._retry_at = 0.0
        self.disk_error: str = ""
        """Why the last write failed; empty while the disk takes writes."""
        self._connection = open_for_writing(path)
        self._file, self._folder = path.stat(), path.parent.stat()
        self._appender = RowAppender(self._connection)
        self._seq = self._appender.last
        self._thread = threading.Thread(target=self._run, name="gradacc-journal", daemon=True)
        self._thread.start()

    def put(self, event: AnyEvent) -> None:
        """Queue an event; any thread, never waits."""
        at = time.time()
        if at - self._put_at > SHORTEST_SLEEP_S:  # else there was no time to sleep in
            self._tell_sleep(at)
        self._put_at = at
        if event.__class__ not in _KINDS:
            self._queue.put((at, event))
            self._urgent.set()
        elif self._queue.qsize() < HELD_MEASUREMENTS or time.monotonic() - self._looked_at < STALLED_S:
            self._queue.put((at, event))
        else:
            self._dropped += 1

    def _tell_sleep(self, at: float) -> None:
        """Queue that the machine slept, once, before every event of after it."""
        with self._sleep_told:
            asleep = asleep_s()
            if asleep - self._asleep_s > SHORTEST_SLEEP_S:
                self._queue.put((at, Slept(duration_s=asleep - self._asleep_s)))
                self._asleep_s = asleep

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all events put so far were offered to the disk; False when that took too long."""
        done = threading.Event()
        self._queue.put(done)
        self._urgent.set()
        return done.wait(timeout_s)

    def is_in_place(self) -> bool:
        """Whether the journal's file still lies at its path."""
        try:
            return os.path.samestat(self._path.stat(), self._file)
        except OSError:
            return False

    def sync(self, timeout_s: float = 5.0) -> bool:
        """Bring all that was put so far to the disk, past a power cut; False when that took too long."""
        flushed = self.flush(timeout_s)
        sync_journal(self._path)
        return flushed

    def place(self, timeout_s: float = 5.0) -> tuple[int, int] | None:
        """The attempt, and a number that no event put so far lies behind; None when that took too long."""
        return (self._attempt, self._seq) if self.flush(timeout_s) else None

    def close(self, timeout_s: float = 30.0) -> bool:
        """Write what is left and end the thread; False when a disk that hangs does not let it end."""
        self._queue.put(None)
        self._urgent.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ------------------------------------------------------------------ the writer thread

    def _run(self) -> None:
        next_tick = 0.0
        open_ = True
        while open_:
            batch, waiters, open_ = self._collect(next_tick)
            self._looked_at = time.monotonic()
            self._append(batch)
            for waiter in waiters:
                waiter.set()
            if self._on_tick is not None and open_ and time.monotonic() >= next_tick:
                self._call(self._on_tick)
                next_tick = time.monotonic() + TICK_INTERVAL_S
        self._finish()

    def _call(self, of_the_inbox: Callable[[], None]) -> None:
        try:
            of_the_inbox()
        except Exception as error:  # noqa: BLE001 - a fault there must not end the journal; it is recorded
            said = f"{type(error).__name__}: {error}"
            if said != self._tick_error:
                self._tick_error = said
                self.put(Warned(code="inbox-failed", values={"error": said}))

    def _collect(self, next_tick: float) -> tuple[list[tuple[float, Event]], list[threading.Event], bool]:
        """Events until the batch is due: 25 ms after its first, at once when something is urgent.

        Gives them with whoever waits for them, and False when the journal is to be closed. Never more than
        fit one transaction, so that a flood of events keeps neither the disk nor the inbox waiting.
        """
        entries = []
        if not self._flows:
            due = next_tick if self._on_tick is not None else math.inf
            if self._held or self._rescued:
                due = min(due, time.monotonic() + RETRY_S)
            try:
                entries.append(self._queue.get(timeout=_until(due)))
            except queue.Empty:
                return [], [], True
        # While events flow, one sleep for each batch and none in the queue: each `put` would have to wake
        # this thread, and the training thread needs the interpreter more.
        self._urgent.wait(BATCH_INTERVAL_S)
        self._urgent.clear()
        entries += [self._queue.get() for _ in range(min(self._queue.qsize(), TRANSACTION_EVENTS))]
        self._flows = bool(entries)
        events: list[tuple[float, Event]] = []
        waiters: list[threading.Event] = []
        open_ = True
        for entry in entries:
            if isinstance(entry, tuple):
                events.append(entry)
            elif entry is None:
                open_ = False
            else:
                waiters.append(entry)
        return events, waiters, open_

    def _append(self, batch: list[tuple[float, Event]]) -> None:
        seq = self._seq
        self._held.extend([(seq := seq + 1, at, event) for at, event in batch])
        self._seq = seq
        self._measurements_held += _measurements(batch)
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._seq += dropped
            self._hold(time.time(), MeasurementsLost(first=self._seq - dropped + 1, last=self._seq))
        if time.monotonic() >= self._retry_at:
            self._write_held()
        self._shed()

    def _hold(self, at: float, event: Event) -> None:
        self._seq += 1
        self._held.append((self._seq, at, event))
        self._measurements_held += event.__class__ in _KINDS

    def _shed(self) -> None:
        """Give up the oldest measurements beyond what memory shall hold; never a fact."""
        while self._measurements_held > HELD_MEASUREMENTS:
            entry = self._held.popleft()
            if entry[2].__class__ in _KINDS:
                self._measurements_held -= 1
                self._lost = (self._lost[0] if self._lost else entry[0], entry[0])
            else:
                self._rescued.append(entry)

    def _write_held(self) -> None:
        """Write what is held, in the order of seq: a reader that saw one seq never looks before it again."""
        while self._held or self._rescued or self._lost:
            if not self._held and not self._rescued and self._lost:
                first, last = self._lost
                self._lost = None
                self._hold(time.time(), MeasurementsLost(first=first, last=last))
            events = [*self._rescued, *islice(self._held, TRANSACTION_EVENTS)]
            try:
                self._write(events)
            except sqlite3.Error as error:
                # A full or failing disk must not stop the training; try again soon, not at each batch.
                self.disk_error = str(error)
                self._retry_at = time.monotonic() + RETRY_S
                return
            self.disk_error = ""
            for _ in range(len(events) - len(self._rescued)):
                self._held.popleft()
            self._measurements_held -= _measurements(events)
            self._rescued.clear()
            facts = [event for _, _, event in events if event.__class__ not in _KINDS]
            if facts:
                self._call(partial(self._on_committed, facts))

    def _write(self, events: list[_Held]) -> None:
        try:
            self._transact(events, sane=False)
        except _UNBINDABLE:
            self._transact(events, sane=True)

    def _transact(self, events: list[_Held], *, sane: bool) -> None:
        attempt = self._attempt
        rows: Rows = {kind: [] for kind in MEASUREMENTS}
        rows_of_kind = rows.get
        facts = []
        for seq, at, event in events:
            found = rows_of_kind(event.__class__)
            if found is not None:
                found.append(row_of(seq, attempt, at, event))
            else:
                facts.append((seq, attempt, at, type(event).__name__, body_of(event)))
        if sane:
            rows = {kind: [tuple(map(storable, row)) for row in found] for kind, found in rows.items()}
        self._appender.append(rows, facts, events[-1][0])

    def _finish(self) -> None:
        deadline = time.monotonic() + LAST_TRY_S
        self._write_held()
        while (self._held or self._rescued) and time.monotonic() < deadline:
            time.sleep(0.1)
            self._write_held()
        self._say_what_is_lost()
        with suppress(sqlite3.Error):  # a reader may hold the WAL; `seal` tries again later
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._put_back()
        self._connection.close()

    def _put_back(self) -> None:
        """Write the history again where its file was removed from a directory that is still there."""
        with suppress(OSError, sqlite3.Error):
            if self._path.exists() or not os.path.samestat(self._path.parent.stat(), self._folder):
                return
            _make_private_file(self._path)
            copy = sqlite3.connect(self._path)
            try:
                self._connection.backup(copy)
            finally:
                copy.close()

    def _say_what_is_lost(self) -> None:
        """Facts that the disk would not take to the end go to standard error, which is trainer.log."""
        facts = [event for _, _, event in (*self._rescued, *self._held) if event.__class__ not in _KINDS]
        for event in facts:
            line = f"gradacc: not in the journal ({self.disk_error}): {type(event).__name__} {body_of(event)}"
            print(line, file=sys.stderr, flush=True)  # noqa: T201


def _measurements(entries: Sequence[tuple[Any, ...]]) -> int:
    """How many of these, each of which ends in its event, are measurements."""
    return sum(entry[-1].__class__ in _KINDS for entry in entries)


def _until(due: float) -> float | None:
    """Seconds until `due`, for a wait; None is for ever."""
    return max(0.0, due - time.monotonic()) if math.isfinite(due) else None


def open_for_writing(path: Path) -> sqlite3.Connection:
    """A connection that may write, with the schema in place. Raises RunDirectoryError."""
    connection = None
    try:
        _make_private_file(path)
        connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        make_schema(connection)
    except (sqlite3.Error, OSError) as error:
        if connection is not None:
            connection.close()
        message = (
            f"The journal {path} cannot be written: {error}. Check the folder's permissions and free space."
        )
        raise RunDirectoryError(message) from error
    return connection


def _make_private_file(path: Path) -> None:
    """The journal's file, for its owner alone; SQLite gives the files beside it the same rights."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        if mode & 0o077 and os.name != "nt":
            os.fchmod(handle, mode & ~0o077)
    finally:
        os.close(handle)


def seal(path: Path) -> bool:
    """Fold the WAL into the file, so that an ended run can be copied; False when someone reads it."""
    connection = None
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"  # never makes a file
        connection = sqlite3.connect(uri, uri=True, timeout=0.0, isolation_level=None)
        return bool(connection.execute("PRAGMA journal_mode=DELETE").fetchone()[0] == "delete")
    except sqlite3.Error:
        return False
    finally:
        if connection is not None:
            connection.close()


__all__ = [
    "FACTOR",
    "LEVELS",
    "JournalReader",
    "JournalWriter",
    "Slice",
    "columns",
    "numeric_fields",
    "open_for_writing",
    "rollup_columns",
    "seal",
]
