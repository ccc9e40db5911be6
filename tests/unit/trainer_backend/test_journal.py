"""The journal as both sides see it: numbers without gaps, nothing lost, nobody held up."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import asdict

from tests.support.events import micro_batch, same, steps_of
from trainer_backend import journal as module
from trainer_backend.asleep import asleep_s
from trainer_backend.errors import RunDirectoryError
from trainer_backend.journal import JournalReader, JournalWriter, seal
from trainer_backend.journal_trust import check_tables
from trainer_backend.protocol import (
    MEASUREMENTS,
    AnyEvent,
    MicroBatchMeasured,
    Paused,
    Record,
    Resumed,
    Slept,
    Warned,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal lies."""
    return tmp_path / "run.sqlite"


@pytest.fixture
def open_writer(path: Path) -> Iterator[Callable[..., JournalWriter]]:
    """Makes writers, and closes them after the test."""
    writers: list[JournalWriter] = []

    def make(**options: Any) -> JournalWriter:
        writers.append(JournalWriter(path, **({"attempt": 1} | options)))
        return writers[-1]

    yield make
    for writer in writers:
        assert writer.close()


@pytest.fixture
def open_reader(path: Path) -> Iterator[Callable[[], JournalReader]]:
    """Makes readers, and closes them after the test."""
    readers: list[JournalReader] = []

    def make() -> JournalReader:
        readers.append(JournalReader(path))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


def read_all(reader: JournalReader, limit: int = 20_000) -> list[Record]:
    """Every record, slice by slice."""
    records: list[Record] = []
    after = 0
    while found := reader.read(after, limit):
        assert found.last > after
        after = found.last
        records += found.records()
    return records


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Until it holds; fails the test when it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def test_events_are_numbered_without_gaps_over_all_kinds(
    open_writer: Callable[..., JournalWriter], open_reader: Callable[[], JournalReader]
) -> None:
    """Facts and measurements share one row of numbers, in the order they were put."""
    put: list[AnyEvent] = []
    writer = open_writer(attempt=3)
    for step in range(1, 200):
        put.append(micro_batch(step))
        if step % 7 == 0:
            put.append(Paused(command_id=None, step=step, samples_seen=8 * step))
    for event in put:
        writer.put(event)
    assert writer.flush()

    records = read_all(open_reader(), limit=50)

    assert [record.seq for record in records] == list(range(1, len(put) + 1))
    assert [record.event for record in records] == put
    assert {record.attempt for record in records} == {3}


def test_a_fact_does_not_wait_for_the_batch(
    open_writer: Callable[..., JournalWriter],
    open_reader: Callable[[], JournalReader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With batches an hour apart, a fact and the measurements before it are written all the same."""
    monkeypatch.setattr(module, "BATCH_INTERVAL_S", 3600.0)
    writer = open_writer()
    reader = open_reader()
    writer.put(micro_batch(1))
    writer.put(Paused(command_id=None, step=1, samples_seen=8))

    wait_for(lambda: reader.head() == 2)


def test_measurements_are_written_without_a_fact_behind_them(
    open_writer: Callable[..., JournalWriter], open_reader: Callable[[], JournalReader]
) -> None:
    """A batch is due soon after its first event."""
    writer = open_writer()
    reader = open_reader()
    writer.put(micro_batch(1))

    wait_for(lambda: reader.head() == 1)


def test_the_inbox_is_looked_at_while_nothing_happens_and_while_much_does(
    open_writer: Callable[..., JournalWriter],
) -> None:
    """`on_tick` comes from the writer's thread, whether events come or not."""
    ticks: list[str] = []
    writer = open_writer(on_tick=lambda: ticks.append(threading.current_thread().name))
    wait_for(lambda: len(ticks) > 2)
    seen = len(ticks)
    deadline = time.monotonic() + 20
    while len(ticks) < seen + 3 and time.monotonic() < deadline:
        for _ in range(20):
            writer.put(micro_batch(1))
        time.sleep(0.002)

    assert len(ticks) >= seen + 3
    assert set(ticks) == {"gradacc-journal"}


def test_a_fault_in_the_inbox_is_recorded_once_and_ends_nothing(
    open_writer: Callable[..., JournalWriter], open_reader: Callable[[], JournalReader]
) -> None:
    """The journal outlives whatever is called from its thread."""
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("no such folder")

    writer = open_writer(on_tick=fail)
    wait_for(lambda: len(calls) > 3)
    writer.put(micro_batch(1))
    assert writer.flush()

    facts = [record.event for record in read_all(open_reader()) if isinstance(record.event, Warned)]
    assert facts == [Warned(code="inbox-failed", values={"error": "ValueError: no such folder"})]


def test_a_value_that_cannot_be_stored_does_not_keep_the_others_from_the_disk(
    open_writer: Callable[..., JournalWriter], open_reader: Callable[[], JournalReader]
) -> None:
    """The 2^64-1 of a driver, and a number of another library, in the middle of a batch."""
    writer = open_writer()
    writer.put(micro_batch(1))
    writer.put(micro_batch(2, tokens=2**64 - 1))
    writer.put(micro_batch(3, loss=np.float32(1.5)))
    writer.put(micro_batch(4))
    assert writer.flush()

    assert writer.disk_error == ""
    events = [record.event for record in read_all(open_reader())]
    assert steps_of(events) == [1, 2, 3, 4]
    assert isinstance(events[2], MicroBatchMeasured)
    assert events[2].loss == 1.5


def test_a_second_attempt_goes_on_with_the_numbers(
    path: Path, open_reader: Callable[[], JournalReader]
) -> None:
    """And carries its own attempt."""
    for attempt in (1, 2):
        writer = JournalWriter(path, attempt=attempt)
        writer.put(micro_batch(attempt))
        writer.close()

    assert [(record.seq, record.attempt) for record in read_all(open_reader())] == [(1, 1), (2, 2)]


def test_a_column_that_came_later_is_none_for_readers_and_made_by_the_next_attempt(path: Path) -> None:
    """A journal of an older version is read as it is, and resumed."""
    writer = JournalWriter(path, attempt=1)
    writer.put(micro_batch(1))
    writer.close()
    connection = sqlite3.connect(path)
    for column in ("data_wait_s", "tokens_seen"):
        for table in ("MicroBatchMeasured", "OptimizerStepMeasured"):
            with_it = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            if column in with_it:
                connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    connection.commit()
    connection.close()

    reader = JournalReader(path)
    (old,) = read_all(reader)
    reader.close()
    assert isinstance(old.event, MicroBatchMeasured)
    assert asdict(old.event)["tokens_seen"] is None

    writer = JournalWriter(path, attempt=2)
    writer.put(micro_batch(2))
    writer.close()
    reader = JournalReader(path)
    assert same(read_all(reader)[-1].event, micro_batch(2))
    reader.close()


def test_readers_see_each_event_once_and_never_hold_up_the_writer(
    path: Path, open_writer: Callable[..., JournalWriter]
) -> None:
    """Three readers poll all the while; each sees every number in order, and the WAL stays small."""
    count = 60_000
    seen: list[list[int]] = [[], [], []]
    largest = [0]
    writer = open_writer()

    def follow(numbers: list[int]) -> None:
        reader = JournalReader(path)
        after = 0
        while after < count:
            found = reader.read(after, 5_000)
            numbers += [row[0] for rows in found.rows.values() for row in rows]
            after = found.last
            largest[0] = max(largest[0], path.with_name("run.sqlite-wal").stat().st_size)
        reader.close()

    threads = [threading.Thread(target=follow, args=(numbers,)) for numbers in seen]
    for thread in threads:
        thread.start()
    for step in range(count):
        writer.put(micro_batch(step))
        if step % 2_000 == 0:
            writer.flush()
    for thread in threads:
        thread.join(60)

    assert all(numbers == list(range(1, count + 1)) for numbers in seen)
    assert path.stat().st_size > 0
    assert largest[0] < 24 * 2**20


def test_a_writer_killed_in_the_middle_leaves_a_journal_without_gaps(path: Path) -> None:
    """What was said to be on the disk is there, whatever the moment of the kill."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.support.events import micro_batch\n"
        "from trainer_backend.journal import JournalWriter\n"
        "writer = JournalWriter(Path(sys.argv[1]), attempt=1)\n"
        "for step in range(1, 10**9):\n"
        "    writer.put(micro_batch(step))\n"
        "    if step % 500 == 0:\n"
        "        writer.flush()\n"
        "        print(step, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(5):
        told = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    told = max([told, *map(int, process.stdout.read().split())])
    process.stdout.close()
    process.wait()

    reader = JournalReader(path)
    records = read_all(reader)
    reader.close()
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert steps_of([record.event for record in records]) == list(range(1, len(records) + 1))
    assert len(records) >= told


def test_an_ended_journal_is_sealed_into_one_file(
    path: Path, tmp_path: Path, open_reader: Callable[[], JournalReader]
) -> None:
    """A reader that is still there puts it off; then one file, copied alone, has everything."""
    writer = JournalWriter(path, attempt=1)
    reader = JournalReader(path)
    writer.put(micro_batch(1))
    writer.close()
    assert not seal(path)
    reader.close()

    assert seal(path)

    assert [entry.name for entry in sorted(tmp_path.iterdir()) if entry.name.startswith("run")] == [
        "run.sqlite"
    ]
    copy = Path(shutil.copy(path, tmp_path / "copy.sqlite"))
    copied = JournalReader(copy)
    assert len(read_all(copied)) == 1
    copied.close()


def test_a_sealed_journal_is_taken_up_again_under_a_reader(
    path: Path, open_writer: Callable[..., JournalWriter], open_reader: Callable[[], JournalReader]
) -> None:
    """A window that shows a stopped run sees the next attempt."""
    writer = JournalWriter(path, attempt=1)
    writer.put(micro_batch(1))
    writer.close()
    assert seal(path)
    reader = open_reader()
    assert reader.head() == 1

    writer = open_writer(attempt=2)
    writer.put(micro_batch(2))
    assert writer.flush()

    assert [record.attempt for record in read_all(reader)] == [1, 2]


def test_sealing_makes_no_file_where_there_is_none(path: Path) -> None:
    """A run that never wrote stays as it is."""
    assert not seal(path)
    assert not path.exists()


def test_a_journal_that_is_just_being_made_is_empty_and_not_damaged(path: Path) -> None:
    """A window may look between the file's making and its tables'."""
    path.touch()
    reader = JournalReader(path)
    assert len(reader.read()) == 0
    assert reader.head() == 0
    assert reader.facts() == []
    assert reader.newest(MicroBatchMeasured) is None

    writer = JournalWriter(path, attempt=1)
    writer.put(micro_batch(1))
    writer.put(Resumed(command_id=None, step=1, samples_seen=8))
    writer.close()

    assert len(read_all(reader)) == 2
    newest = reader.newest_fact(Paused, Resumed)
    assert newest is not None
    assert newest.seq == 2
    reader.close()


def test_tables_that_appear_while_a_reader_looks_for_them_are_all_there_or_none(
    path: Path, open_reader: Callable[[], JournalReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that saw some and not the others would lack those measurements for as long as it lives."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    reader = open_reader()
    its_look = "trainer_backend.journal_reader.check_tables"

    def look_while_they_are_made(connection: sqlite3.Connection) -> dict[str, str]:
        found = check_tables(connection)
        monkeypatch.setattr(its_look, check_tables)
        writer = JournalWriter(path, attempt=1)
        for step in (1, 2):
            writer.put(micro_batch(step))
        writer.close()
        return found

    monkeypatch.setattr(its_look, look_while_they_are_made)
    wanted = dict.fromkeys(MEASUREMENTS, ("seq", "at"))
    assert len(reader.read_numbers(0, 1_000, wanted)) == 0
    assert [row[0] for row in reader.read_numbers(0, 1_000, wanted).rows[MicroBatchMeasured]] == [1, 2]
    assert len(read_all(reader)) == 2


def test_numbers_of_a_journal_without_a_later_kind_are_the_others(
    path: Path, open_reader: Callable[[], JournalReader]
) -> None:
    """A journal of an older version may lack a table."""
    writer = JournalWriter(path, attempt=1)
    writer.put(micro_batch(1))
    writer.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP TABLE OptimizerStepMeasured")
    connection.close()

    found = open_reader().read_numbers(0, 1_000, dict.fromkeys(MEASUREMENTS, ("seq", "at")))
    assert list(found.rows) == [MicroBatchMeasured]


def test_a_journal_that_is_locked_for_a_moment_has_nothing_new(
    path: Path, open_reader: Callable[[], JournalReader]
) -> None:
    """Somebody seals it or mends it; that is no damage, and the next look tells."""
    writer = JournalWriter(path, attempt=1)
    writer.put(micro_batch(1))
    writer.close()
    assert seal(path)
    reader = open_reader()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")

    assert len(reader.read()) == 0
    other.execute("ROLLBACK")
    other.close()
    assert len(reader.read()) == 1


@pytest.mark.parametrize("damage", ["text", "cut", "zeros", "overwritten", "no text in a table's name"])
def test_a_damaged_journal_is_a_sentence(path: Path, damage: str) -> None:
    """Whatever happened to the file, its path and the likely cause are told."""
    writer = JournalWriter(path, attempt=1)
    for step in range(5_000):
        writer.put(micro_batch(step))
    writer.close()
    seal(path)
    whole = path.read_bytes()
    broken = {
        "text": b"this is no database, though it is long enough to be taken for one" * 100,
        "cut": whole[: len(whole) // 2],
        "zeros": bytes(len(whole)),
        "overwritten": whole[:4096] + os.urandom(4096) * (len(whole) // 4096 - 1),
        "no text in a table's name": whole.replace(b"CREATE TABLE facts", b"CREATE TABLE f\xb1cts"),
    }[damage]
    path.write_bytes(broken)

    with pytest.raises(RunDirectoryError, match=r"run\.sqlite cannot be read: .* damaged or half copied"):
        read_all_closing(path)


def read_all_closing(path: Path) -> None:
    """Read everything, and give the file back however that ends."""
    reader = JournalReader(path)
    try:
        read_all(reader)
    finally:
        reader.close()


def test_a_journal_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    """Before anything trains."""
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        JournalWriter(tmp_path / "nowhere" / "run.sqlite", attempt=1)


def test_a_machine_s_sleep_is_told_once_before_what_came_after_it(
    open_writer: Callable[..., JournalWriter],
    open_reader: Callable[[], JournalReader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever thread notices; a clock's jitter is no sleep."""
    asleep = [100.0]
    monkeypatch.setattr(module, "asleep_s", lambda: asleep[0])
    writer = open_writer()
    writer.put(micro_batch(1))
    asleep[0] += 0.5
    writer._put_at -= 2.0  # a pause, in which the machine was awake
    writer.put(micro_batch(2))
    asleep[0] += 28_800.0
    writer._put_at -= 28_800.5
    for step in (3, 4):
        writer.put(micro_batch(step))
    assert writer.flush()
    records = read_all(open_reader())
    assert [getattr(record.event, "step", record.event) for record in records] == [
        1, 2, Slept(duration_s=28_800.5), 3, 4,
    ]  # fmt: skip


def test_a_clock_that_stands_in_a_sleep_gains_on_none_while_awake() -> None:
    """Two readings with work between them differ by next to nothing."""
    before = asleep_s()
    deadline = time.monotonic() + 0.05
    while time.monotonic() < deadline:
        pass
    assert abs(asleep_s() - before) < module.SHORTEST_SLEEP_S
