"""The list of runs tells the truth about each directory, however it lies there."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gradacc_gui.session.following import slices
from gradacc_gui.session.launch import START_MARK
from gradacc_gui.session.listing import list_runs
from gradacc_gui.session.runs import (
    delete_run,
    died_unseen,
    disk_problem,
    open_journal,
    seal_ended,
    summarise,
)
from tests.support import stand_in
from tests.support.events import micro_batch
from tests.support.fake_runs import Plan, continue_run, write_run
from tests.support.trainers import ROOT
from trainer_backend.errors import RunDirectoryError
from trainer_backend.journal import JournalReader, JournalWriter
from trainer_backend.protocol import OptimizerStepMeasured, Paused, Resumed, RolledBack, RunStarted
from trainer_backend.run_directory import RunDirectory, runs_folder
from trainer_backend.run_facts import RunState

SMALL = Plan(steps=6, checkpoint_every=0, evaluate_every=0)


def written(**changes: object) -> RunDirectory:
    """A run in the test's home."""
    fields = {name: getattr(SMALL, name) for name in SMALL.__struct_fields__}
    return write_run(runs_folder(), Plan(**(fields | changes)))


def killed(code: str, run: RunDirectory) -> None:
    """Run code with a writer on the run in another process, which then dies without closing it."""
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tests.support.events import micro_batch\n"
        "from trainer_backend.journal import JournalWriter\n"
        "from trainer_backend.protocol import *\n"
        "writer = JournalWriter(Path(sys.argv[1]), attempt=1)\n"
        f"{textwrap.dedent(code)}\n"
        "writer.flush()\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(run.journal_path)], cwd=ROOT, check=True)


@pytest.mark.parametrize("end", ["finished", "stopped", "failed"])
def test_a_run_that_ended_says_how(end: str) -> None:
    """From its last fact, with its step, samples and loss."""
    run = written(end=end)

    found = summarise(run)

    assert found.state is RunState(end)
    assert found.step == 6
    assert found.samples_seen == 6 * 4 * 8
    assert found.loss is not None
    assert found.name == "stdlib-gpt"
    assert found.started_at is not None
    assert not found.state.is_alive
    assert found.state.can_resume == (end != "finished")


@pytest.mark.parametrize(
    ("length", "more"),
    [
        ("max_optimizer_steps = 3", True),
        ("max_optimizer_steps = 2", False),
        ("max_samples = 64", False),
        ("max_samples = 65", True),
        ("epochs = 1_000_000", True),
        ("epochs = 1", False),
    ],
)
def test_a_finished_run_goes_on_when_its_recipe_is_given_more(length: str, more: bool) -> None:
    """By its own length or by another, which may take its place."""
    run = written(steps=2, total_steps=2, end="finished")
    assert not summarise(run).can_resume
    text = run.recipe_path.read_text("utf-8")
    run.recipe_path.write_text(text.replace("max_optimizer_steps = 2", length), "utf-8")
    summary = summarise(run)
    assert (summary.state, summary.can_resume) == (RunState.FINISHED, more)


def test_a_run_without_an_end_is_interrupted() -> None:
    """Nobody holds its lock and no fact says how it ended."""
    found = summarise(written())

    assert found.state is RunState.INTERRUPTED
    assert found.state.can_resume
    assert found.step == 6


def test_a_held_lock_is_a_live_run_paused_or_not() -> None:
    """The newest of pause and resume decides."""
    run = written()
    with run.locked():
        assert summarise(run).state is RunState.RUNNING
        writer = JournalWriter(run.journal_path, attempt=1)
        writer.put(Paused(command_id=None, step=6, samples_seen=192))
        writer.flush()
        assert summarise(run).state is RunState.PAUSED
        writer.put(Resumed(command_id=None, step=6, samples_seen=192))
        writer.flush()
        assert summarise(run).state is RunState.RUNNING
        writer.close()


def test_a_new_attempt_of_an_ended_run_is_starting_and_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock is held, by another process than before, before it says anything."""
    run = written(end="stopped")
    monkeypatch.setattr(RunDirectory, "pid", lambda _: os.getpid() + 1)
    with run.locked():
        assert summarise(run).state is RunState.LOADING


def test_a_run_that_is_just_launched_is_starting() -> None:
    """Before its trainer has taken the lock, as long as it has said nothing."""
    run = stand_in.new_run()
    run.log_path.write_text(f"--- 2026-01-01 00:00:00 {START_MARK}: python\n")
    assert summarise(run).state is RunState.LOADING

    run.log_path.write_text(run.log_path.read_text() + "ImportError: no torch\n")
    found = summarise(run)
    assert found.state is RunState.INTERRUPTED
    assert found.reason == "ImportError: no torch"


def test_a_trainer_that_died_before_its_lock_is_no_longer_starting_at_once() -> None:
    """Its process is named in trainer.log; another machine's cannot be asked and is waited for."""
    run = stand_in.new_run()
    started = f"--- 2026-01-01 00:00:00 {START_MARK}: python\n--- process {{}} on {{}}\n"
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()

    run.log_path.write_text(started.format(os.getpid(), platform.node()))
    assert summarise(run).state is RunState.LOADING
    run.log_path.write_text(started.format(gone.pid, "another machine"))
    assert summarise(run).state is RunState.LOADING
    assert not died_unseen(run)
    run.log_path.write_text(started.format(gone.pid, platform.node()))
    found = summarise(run)
    assert (found.state, found.reason) == (RunState.INTERRUPTED, "its trainer stopped without reporting why")
    assert died_unseen(run)


def test_a_run_that_was_never_started_did_not_die() -> None:
    """Nothing was said of it, so nothing ended."""
    run = stand_in.new_run()
    assert not died_unseen(run)
    assert summarise(run).reason == "it was never started"


def test_a_launch_that_led_to_nothing_is_no_longer_starting() -> None:
    """A trainer that died without a word."""
    run = stand_in.new_run()
    run.log_path.write_text(f"--- 2026-01-01 00:00:00 {START_MARK}: python\n")
    os.utime(run.log_path, (1.8e9, 1.7e9))

    assert summarise(run).state is RunState.INTERRUPTED


def test_a_second_attempt_counts_from_its_own_end() -> None:
    """And carries its number."""
    run = written(end="stopped")
    continue_run(run, Plan(steps=3, attempt=2, from_step=6, end="finished", evaluate_every=0))

    found = summarise(run)

    assert (found.state, found.attempt) == (RunState.FINISHED, 2)


def test_a_roll_back_takes_the_step_back() -> None:
    """The rows after it are superseded."""
    run = written()
    writer = JournalWriter(run.journal_path, attempt=1)
    writer.put(RolledBack(command_id=None, from_step=6, to_step=2, to_samples=64, to_tokens=8192))
    writer.close()

    found = summarise(run)
    assert (found.step, found.samples_seen) == (2, 64)


def test_an_attempt_from_an_earlier_checkpoint_takes_the_step_back() -> None:
    """Killed at step 6, on again from step 4: the run stands at 4, whatever was measured before."""
    run = written()
    continue_run(run, Plan(steps=0, attempt=2, from_step=4, evaluate_every=0))

    found = summarise(run)
    assert (found.step, found.samples_seen, found.attempt) == (4, 128, 2)


def test_a_killed_trainer_s_run_shows_all_that_it_wrote() -> None:
    """Unsealed, with its newest events in the WAL alone."""
    run = stand_in.new_run()
    killed("for step in range(1, 301): writer.put(micro_batch(step))", run)
    assert run.journal_path.with_name("run.sqlite-wal").stat().st_size > 0

    assert summarise(run).state is RunState.INTERRUPTED
    with open_journal(run) as reader:
        assert reader.head() == 300


def test_ended_runs_are_sealed_and_live_ones_are_not() -> None:
    """One that somebody reads is left for later."""
    ended, live, read = (stand_in.new_run(name) for name in ("ended", "live", "read"))
    for run in (ended, live, read):
        killed("writer.put(micro_batch(1))", run)
    reader = JournalReader(read.journal_path)
    with live.locked():
        waiting = seal_ended(list_runs())
        assert [summary.run.id for summary in waiting] == [read.id]
        assert live.journal_path.with_name("run.sqlite-wal").exists()
        assert not ended.journal_path.with_name("run.sqlite-wal").exists()
        reader.close()
        assert seal_ended(waiting) == []
        assert not read.journal_path.with_name("run.sqlite-wal").exists()
    assert summarise(read).state is RunState.INTERRUPTED


def test_a_copied_directory_is_a_run_of_its_own() -> None:
    """Copied while its original trains: its lock file names the original's process, its lock is free."""
    run = written()
    with run.locked():
        copy = RunDirectory(Path(shutil.copytree(run.path, runs_folder() / "copy")))
        assert copy.pid() == os.getpid()

        assert summarise(run).state is RunState.RUNNING
        assert summarise(copy).state is RunState.INTERRUPTED
        assert summarise(copy).step == 6


READ = """
import os, shutil, sqlite3, sys, tempfile
from pathlib import Path
from gradacc_gui.session.runs import open_journal, summarise
from trainer_backend.run_facts import RunState
from trainer_backend.run_directory import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
if os.getuid() == 0:
    os.setuid(65534)  # root may write anywhere; the imports above are done, for its Python may be private
with open_journal(run) as reader:
    print(reader.head(), summarise(run).state.value)
"""


def read_as_somebody_else(run: RunDirectory) -> str:
    """What a user sees who may not write there."""
    for folder, _, names in os.walk(run.path):
        Path(folder).chmod(0o555)
        for name in names:
            Path(folder, name).chmod(0o444)
    for parent in run.path.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ, str(run.path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for folder, _, _ in os.walk(run.path):
            Path(folder).chmod(0o755)
    assert done.stderr == ""
    return done.stdout.strip()


def test_an_unsealed_journal_in_a_read_only_place_is_read_whole() -> None:
    """Its newest events are in the WAL; opened as immutable they would be missing, silently."""
    run = stand_in.new_run()
    killed("for step in range(1, 301): writer.put(micro_batch(step))", run)
    run.journal_path.with_name("run.sqlite-shm").unlink()

    assert read_as_somebody_else(run) == "300 interrupted"
    assert sorted(entry.name for entry in run.path.iterdir()) == [
        "checkpoints",
        "inbox",
        "recipe.toml",
        "run.sqlite",
        "run.sqlite-wal",
    ]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_journal_without_a_wal_in_a_read_only_place_is_read_too(sealed: bool) -> None:
    """Sealed, or closed in WAL mode by its trainer."""
    run = written(end="finished")
    if sealed:
        seal_ended(list_runs())
    head = JournalReader(run.journal_path)
    newest = head.head()
    head.close()
    for suffix in ("-wal", "-shm"):
        run.journal_path.with_name(f"run.sqlite{suffix}").unlink(missing_ok=True)

    assert read_as_somebody_else(run) == f"{newest} finished"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda run: run.recipe_path.unlink(), "has no recipe.toml"),
        (lambda run: run.journal_path.write_bytes(b"no database " * 500), "damaged or half copied"),
        (
            lambda run: run.journal_path.write_bytes(run.journal_path.read_bytes()[:20_000]),
            "damaged or half copied",
        ),
        (
            lambda run: (run.journal_path.unlink(), (run.checkpoints_path / "step-000000004").mkdir()),
            "has checkpoints but no run.sqlite",
        ),
        (lambda run: (run.journal_path.unlink(), run.inbox_path.rmdir()), "neither a journal nor an inbox"),
    ],
)
def test_a_damaged_directory_is_told_and_hides_no_other(damage: object, told: str) -> None:
    """One sentence, and the rest of the list is there."""
    whole = written(end="finished")
    run = written(end="finished", name="broken")
    seal_ended(list_runs())
    damage(run)  # type: ignore[operator]

    found = {summary.run: summary for summary in list_runs()}

    assert found[whole].state is RunState.FINISHED
    assert found[run].state is RunState.DAMAGED
    assert told in found[run].reason
    assert "\n" not in found[run].reason


def test_files_among_the_runs_are_no_runs() -> None:
    """A stray file in the folder of runs is passed over."""
    written()
    (runs_folder() / "notes.txt").write_text("mine")

    assert len(list_runs()) == 1


def test_a_deleted_run_leaves_what_is_not_gradacc_s() -> None:
    """A file of the user's in it stays, and so does its folder."""
    run = written(end="finished")
    (run.checkpoints_path / "step-000000004").mkdir()
    other = written(end="finished", name="other")
    (other.path / "notes.txt").write_text("mine")

    delete_run(run)
    delete_run(other)

    assert not run.path.exists()
    assert [entry.name for entry in other.path.iterdir()] == ["notes.txt"]


def test_a_live_run_is_never_deleted() -> None:
    """Nothing of it."""
    run = written()
    before = sorted(run.path.rglob("*"))
    with run.locked():
        before = sorted({*before, run.lock_path})
        with pytest.raises(RunDirectoryError, match="already runs"):
            delete_run(run)
    assert sorted(run.path.rglob("*")) == before


def test_a_project_s_folder_is_never_taken_for_a_run(tmp_path: Path) -> None:
    """It may hold a recipe.toml and a folder called checkpoints."""
    (tmp_path / "recipe.toml").write_text("")
    (tmp_path / "checkpoints").mkdir()

    with pytest.raises(RunDirectoryError, match="neither a journal nor an inbox"):
        delete_run(RunDirectory(tmp_path))
    assert (tmp_path / "checkpoints").is_dir()


def test_slices_cross_a_gap_wider_than_a_slice() -> None:
    """Lost measurements leave numbers that nothing has."""
    run = stand_in.new_run()
    writer = JournalWriter(run.journal_path, attempt=1)
    writer.put(micro_batch(1))
    writer.flush()
    writer._seq += 70_000
    writer.put(micro_batch(2))
    writer.close()
    with open_journal(run) as reader:
        records = [record for found in slices(reader) for record in found.records()]
    assert [record.seq for record in records] == [1, 70_002]


def test_the_kinds_that_tell_a_run_s_state_are_in_the_made_up_runs() -> None:
    """So that the tests above look at something."""
    with open_journal(written()) as reader:
        assert reader.newest(OptimizerStepMeasured) is not None
        assert reader.first_fact(RunStarted) is not None


def test_a_full_disk_is_told_by_whoever_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer itself has nowhere to write it."""
    run = stand_in.new_run()
    assert disk_problem(run) == ""

    usage = shutil.disk_usage(run.path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=4096))

    assert str(run.path) in disk_problem(run)
    assert "free some disk space" in disk_problem(run)
