"""A disk that fails: training goes on, facts stay, lost measurements are told as one gap."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.events import micro_batch, steps_of
from trainer_backend import journal as module
from trainer_backend.journal import JournalReader, JournalWriter
from trainer_backend.protocol import AnyEvent, MeasurementsLost, Paused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal lies."""
    return tmp_path / "run.sqlite"


@pytest.fixture
def writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JournalWriter]:
    """A writer that holds few measurements and tries a failing disk at each batch."""
    monkeypatch.setattr(module, "HELD_MEASUREMENTS", 1_000)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    writer = JournalWriter(path, attempt=1)
    yield writer
    assert writer.close()


def fill(writer: JournalWriter) -> None:
    """SQLite's own "database or disk is full": no page may be added."""
    (pages,) = writer._connection.execute("PRAGMA page_count").fetchone()
    writer._connection.execute(f"PRAGMA max_page_count={pages}")


def free(writer: JournalWriter) -> None:
    """Room again."""
    writer._connection.execute("PRAGMA max_page_count=1000000")


def paused(step: int) -> Paused:
    """A fact."""
    return Paused(command_id=None, step=step, samples_seen=step)


def events_in(path: Path) -> list[AnyEvent]:
    """All events, in order."""
    reader = JournalReader(path)
    events: list[AnyEvent] = []
    after, head = 0, reader.head()
    while after < head:
        found = reader.read(after, 700)
        after = found.last
        events += [record.event for record in found.records()]
    reader.close()
    return events


def test_a_full_disk_costs_nothing_as_long_as_memory_holds_it(writer: JournalWriter, path: Path) -> None:
    """What came meanwhile is written once there is room, in its order."""
    fill(writer)
    for step in range(1, 901):
        writer.put(micro_batch(step))
    writer.put(paused(900))
    assert writer.flush()
    assert "full" in writer.disk_error

    free(writer)
    writer.put(micro_batch(901))
    assert writer.flush()
    writer.flush()

    assert writer.close()
    assert writer.disk_error == ""
    events = events_in(path)
    assert steps_of(events) == list(range(1, 902))
    assert isinstance(events[900], Paused)


def test_measurements_beyond_memory_become_one_gap_and_facts_stay(writer: JournalWriter, path: Path) -> None:
    """The oldest go; every fact, from before, between and after, is there in the end."""
    writer.put(micro_batch(1))
    assert writer.flush()
    fill(writer)
    for step in range(2, 4_002):
        writer.put(micro_batch(step))
        if step % 1_000 == 0:
            writer.put(paused(step))
    assert writer.flush()
    free(writer)
    assert writer.close()

    events = events_in(path)
    kept = steps_of(events)
    assert kept[0] == 1
    assert kept[1:] == list(range(4_001 - len(kept) + 2, 4_002)), "the newest are kept, without a hole"
    assert len(kept) >= 1_000
    assert [event.step for event in events if isinstance(event, Paused)] == [1_000, 2_000, 3_000, 4_000]
    (lost,) = [event for event in events if isinstance(event, MeasurementsLost)]
    assert lost.first == 2
    # Numbers count facts too: three of them lie within the gap or at its end.
    assert lost.last - lost.first + 1 in range(4_001 - len(kept), 4_001 - len(kept) + 5)


def test_a_reader_never_passes_by_what_is_written_late(writer: JournalWriter, path: Path) -> None:
    """While the disk fails and recovers in turns, a reader that follows sees every event once."""
    reader = JournalReader(path)
    seen: list[int] = []
    after = 0

    def follow() -> None:
        nonlocal after
        found = reader.read(after)
        after = found.last
        seen.extend(row[0] for rows in found.rows.values() for row in rows)
        seen.extend(record.seq for record in found.facts)

    for turn in range(10):
        fill(writer) if turn % 2 else free(writer)
        for step in range(60):
            writer.put(micro_batch(turn * 60 + step))
            follow()
        writer.put(paused(turn))
        writer.flush()
        follow()
    free(writer)
    assert writer.flush()
    writer.flush()
    assert writer.close()
    follow()
    reader.close()

    assert sorted(seen) == list(range(1, 611))
    assert len(set(seen)) == len(seen)


def test_a_disk_that_hangs_fills_no_memory_and_holds_up_nobody(
    writer: JournalWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`put` never waits; what did not fit the queue is told as lost once the disk is back."""
    monkeypatch.setattr(module, "STALLED_S", 0.0)
    hangs, goes_on = threading.Event(), threading.Event()
    real = writer._write

    def hang(events: list[Any]) -> None:
        hangs.set()
        assert goes_on.wait(30)
        real(events)

    monkeypatch.setattr(writer, "_write", hang)
    writer.put(paused(0))
    assert hangs.wait(30)
    for step in range(1, 5_001):
        writer.put(micro_batch(step))
    writer.put(paused(5_000))
    assert writer._queue.qsize() <= 1_002
    goes_on.set()
    assert writer.close()

    events = events_in(path)
    assert steps_of(events) == list(range(1, 1_001))
    (lost,) = [event for event in events if isinstance(event, MeasurementsLost)]
    assert lost.last - lost.first + 1 == 4_000
    assert [event.step for event in events if isinstance(event, Paused)] == [0, 5_000]


def test_an_error_of_the_disk_is_told_and_forgotten(
    writer: JournalWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An I/O error that passes leaves nothing behind."""
    real = writer._transact
    failing = [True]

    def fail(events: list[Any], *, sane: bool) -> None:
        if failing[0]:
            raise sqlite3.OperationalError("disk I/O error")
        real(events, sane=sane)

    monkeypatch.setattr(writer, "_transact", fail)
    writer.put(micro_batch(1))
    assert writer.flush()
    assert writer.disk_error == "disk I/O error"

    failing[0] = False
    assert writer.close()
    assert writer.disk_error == ""
    assert steps_of(events_in(path)) == [1]


def test_facts_that_the_disk_refuses_to_the_end_are_told_in_the_log(
    writer: JournalWriter, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Standard error is trainer.log, on a disk that may be another."""
    monkeypatch.setattr(module, "LAST_TRY_S", 0.05)
    fill(writer)
    for step in range(200):
        writer.put(micro_batch(step))
    writer.put(paused(7))
    assert writer.close()

    said = capfd.readouterr().err
    assert "not in the journal (database or disk is full): Paused" in said
    assert '"step": 7' in said


def test_a_failing_disk_is_not_tried_at_every_batch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying costs the interpreter that the training thread needs."""
    monkeypatch.setattr(module, "RETRY_S", 3600.0)
    monkeypatch.setattr(module, "LAST_TRY_S", 0.0)
    writer = JournalWriter(path, attempt=1)
    tries: list[int] = []

    def fail(events: list[Any]) -> None:
        tries.append(len(events))
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(writer, "_write", fail)
    for step in range(50):
        writer.put(micro_batch(step))
        assert writer.flush()

    assert tries == [1]
    assert writer.close()
