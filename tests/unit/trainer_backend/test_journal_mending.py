"""A kill while the journal's mode changes leaves a hot rollback journal: every reader gets past it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gradacc_gui.session.runs import open_journal, summarise
from tests.support.events import micro_batch
from tests.support.stand_in import new_run
from trainer_backend.errors import RunDirectoryError
from trainer_backend.journal import JournalReader, JournalWriter, seal
from trainer_backend.journal_mending import may_be_hot, rollback_journal_of, sync_journal
from trainer_backend.protocol import Paused
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunState

HOT = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size=1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE scratch (value)")
for row in range(500):
    connection.execute("INSERT INTO scratch VALUES (zeroblob(4000))")
connection.execute("DELETE FROM facts")
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Dies in the middle of a transaction that had to write pages before its end."""


def make_hot(path: Path) -> None:
    """Leave what a kill leaves."""
    subprocess.run([sys.executable, "-c", HOT, str(path)], check=False)
    assert may_be_hot(path)


@pytest.fixture
def hot_run() -> RunDirectory:
    """A sealed run of one attempt, then changed half-way by a killed process."""
    run = new_run()
    writer = JournalWriter(run.journal_path, attempt=1)
    for step in range(1, 4):
        writer.put(micro_batch(step))
    writer.put(Paused(command_id=None, step=3, samples_seen=24))
    assert writer.close()
    assert seal(run.journal_path)
    make_hot(run.journal_path)
    return run


def test_a_read_only_connection_cannot_get_past_it(hot_run: RunDirectory) -> None:
    """What made runs "damaged" for ever: why all this is needed."""
    connection = sqlite3.connect(f"{hot_run.journal_path.as_uri()}?mode=ro", uri=True)
    with pytest.raises(sqlite3.OperationalError):
        connection.execute("SELECT count(*) FROM facts").fetchone()
    connection.close()


def test_a_reader_undoes_what_a_killed_writer_left(hot_run: RunDirectory) -> None:
    """Holding the trainer's lock, which says nothing new afterwards."""
    reader = JournalReader(hot_run.journal_path)
    assert len(reader.facts()) == 1
    assert reader.head() == 4
    reader.close()
    assert not may_be_hot(hot_run.journal_path)
    assert not hot_run.is_alive()
    assert hot_run.holder() is None
    assert summarise(hot_run).state is RunState.INTERRUPTED


def test_beside_a_live_trainer_a_reader_waits_for_it_to_do_so(hot_run: RunDirectory) -> None:
    """It holds the lock and opens the journal in a moment: nothing is read until then, and nothing raised."""
    with hot_run.locked():
        reader = JournalReader(hot_run.journal_path)
        assert reader.head() == 0
        assert len(reader.read()) == 0
        assert may_be_hot(hot_run.journal_path)

        writer = JournalWriter(hot_run.journal_path, attempt=2)
        assert len(reader.read()) == 4
        reader.close()
        assert writer.close()


def test_a_reader_that_was_open_before_the_kill_gets_past_it_too(hot_run: RunDirectory) -> None:
    """A window that follows the run."""
    reader = JournalReader(hot_run.journal_path)
    make_hot(hot_run.journal_path)
    looks = [len(reader.read()) for _ in range(2)]
    assert looks[-1] == 4
    reader.close()


def test_a_first_start_that_was_killed_is_an_empty_journal(tmp_path: Path) -> None:
    """No tables yet: attempt 0."""
    run = new_run()
    sqlite3.connect(run.journal_path).close()
    run.journal_path.touch()
    code = HOT.replace('connection.execute("DELETE FROM facts")', "")
    subprocess.run([sys.executable, "-c", code, str(run.journal_path)], check=False)
    assert may_be_hot(run.journal_path)
    assert summarise(run).state is RunState.INTERRUPTED
    reader = JournalReader(run.journal_path)
    assert (reader.head(), reader.facts()) == (0, [])
    reader.close()


def test_from_a_read_only_place_the_rollback_journal_is_copied_too(
    hot_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written there, and nothing half done is shown."""
    before = {path: path.read_bytes() for path in hot_run.path.iterdir() if path.is_file()}
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != hot_run.path)
    with open_journal(hot_run) as reader:
        assert len(reader.facts()) == 1
    assert {path: path.read_bytes() for path in hot_run.path.iterdir() if path.is_file()} == before


def test_one_that_cannot_be_undone_is_a_sentence(hot_run: RunDirectory) -> None:
    """The database below it is none."""
    hot_run.journal_path.write_bytes(b"no database" * 1000)
    with pytest.raises(RunDirectoryError, match="damaged or half copied"):
        JournalReader(hot_run.journal_path)


def test_the_journal_s_files_are_its_owner_s_alone(tmp_path: Path) -> None:
    """Also one that an older gradacc left open, and whatever the umask."""
    run = new_run()
    before = os.umask(0)
    try:
        run.journal_path.touch(0o666)
        writer = JournalWriter(run.journal_path, attempt=1)
        writer.put(Paused(command_id=None, step=1, samples_seen=1))
        assert writer.flush()
        files = [path for path in run.path.iterdir() if path.name.startswith("run.sqlite")]
        assert len(files) == 3
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        assert writer.close()
    finally:
        os.umask(before)


def test_what_was_put_is_on_the_disk_after_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database, its WAL and the folder's names, once what was put has been committed."""
    synced: list[str] = []
    monkeypatch.setattr("trainer_backend.journal_mending.sync", lambda path: synced.append(path.name))
    path = tmp_path / "run.sqlite"
    writer = JournalWriter(path, attempt=1)
    writer.put(Paused(command_id=None, step=1, samples_seen=1))
    assert writer.sync()
    assert synced == ["run.sqlite", "run.sqlite-wal", tmp_path.name]
    reader = JournalReader(path)
    assert reader.head() == 1
    reader.close()
    assert writer.close()


def test_a_copy_s_rollback_journal_goes_with_it(hot_run: RunDirectory, tmp_path: Path) -> None:
    """A whole directory copied after the kill is mended where it lies now."""
    copy = RunDirectory(Path(shutil.copytree(hot_run.path, tmp_path / "copy")))
    assert summarise(copy).state is RunState.INTERRUPTED
    assert rollback_journal_of(hot_run.journal_path).exists()
    sync_journal(tmp_path / "no" / "such.sqlite")  # nothing there, nothing raised
