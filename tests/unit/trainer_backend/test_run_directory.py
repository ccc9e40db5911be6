"""A run's directory is private, its lock decides who is alive, and a look takes nothing from anybody."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path

import pytest

from tests.support.stand_in import new_run
from tests.support.trainers import ROOT
from trainer_backend.errors import RunDirectoryError, UsageError
from trainer_backend.private_files import home
from trainer_backend.run_directory import RunDirectory, all_runs, find_run, runs_folder

HOLD = """
import os, sys, time
from pathlib import Path
from trainer_backend.run_directory import RunDirectory
with RunDirectory(Path(sys.argv[1])).locked():
    {body}
    print(os.getpid(), flush=True)
    time.sleep(60)
"""
FORK = """
    there, here = os.pipe()
    if os.fork() == 0:
        sys.stdout = None
        os.close(1)
        os.write(here, b"!")
        time.sleep(60)
    os.read(there, 1)
"""
"""The worker has let go before anybody kills its parent."""


def holder(run: RunDirectory, body: str = "pass") -> subprocess.Popen[str]:
    """A process that holds the run's lock."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD.replace("{body}", textwrap.indent(textwrap.dedent(body), "    ").strip()),
            str(run.path),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


def test_a_run_s_files_are_its_owner_s_alone() -> None:
    """0700 and 0600: recipes and logs may hold what others shall not read."""
    run = new_run()
    with run.locked():
        paths = [run.path, run.inbox_path, run.checkpoints_path, run.recipe_path, run.lock_path]
        for path in paths:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_runs_of_one_second_whose_digits_are_alike_get_folders_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four digits tell runs of one second and name apart, and are drawn again when they do not."""
    drawn = iter([uuid.UUID(int=0), uuid.UUID(int=0), uuid.UUID(int=0), uuid.UUID(int=1 << 112)])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(drawn))
    monkeypatch.setattr(time, "strftime", lambda _: "20260101-000000")
    first, second = (RunDirectory.create("", name="sweep") for _ in range(2))
    assert (first.id, second.id) == ("sweep-20260101-000000-0000", "sweep-20260101-000000-0001")
    assert second.recipe_path.is_file()


def test_a_held_lock_is_alive_and_a_free_one_is_not() -> None:
    """Also for the process that holds it itself."""
    run = new_run()
    assert not run.is_alive()
    with run.locked():
        assert run.is_alive()
        assert run.pid() == os.getpid()
    assert not run.is_alive()


def test_a_killed_trainer_is_not_alive_whatever_it_left_in_the_file() -> None:
    """Nor when it is a zombie that still has a number."""
    run = new_run()
    process = holder(run)
    assert run.is_alive()
    assert run.pid() == process.pid

    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, not yet reaped

    assert not run.is_alive()
    process.wait()


def test_a_forked_worker_does_not_keep_a_killed_trainer_alive() -> None:
    """A loader worker shares its parent's files; it lets go of this one."""
    run = new_run()
    process = holder(run, FORK)
    try:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not run.is_alive()
        with run.locked():
            assert run.is_alive()
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_the_lock_is_refused_to_a_second_trainer() -> None:
    """With the first one's number."""
    run = new_run()
    process = holder(run)
    try:
        with pytest.raises(RunDirectoryError, match=f"already runs .*process {process.pid}"), run.locked():
            pass
        assert run.pid() == process.pid
    finally:
        process.kill()
        process.wait()


def test_reading_the_lock_file_frees_nothing() -> None:
    """A copy of a live run made in its own process, by a hook of the user's, opens and closes it."""
    run = new_run()
    with run.locked():
        shutil.copytree(run.path, run.path.with_name("copy"))
        run.lock_path.read_bytes()
        assert run.is_alive()
        with pytest.raises(RunDirectoryError, match="already runs"), RunDirectory(run.path).locked():
            pass


def test_looks_never_keep_a_trainer_out_and_never_see_each_other() -> None:
    """Many windows look at once, all the time; a trainer still gets its lock, and nobody sees a ghost."""
    run = new_run()
    with run.locked():
        pass
    done = threading.Event()
    ghosts: list[bool] = []

    def look() -> None:
        while not done.is_set():
            ghosts.append(RunDirectory(run.path).is_alive())

    lookers = [threading.Thread(target=look) for _ in range(4)]
    for thread in lookers:
        thread.start()
    try:
        while len(ghosts) < 2_000:
            done.wait(0.01)
        assert not any(ghosts)
        for _ in range(20):
            with run.locked():
                assert run.is_alive()
    finally:
        done.set()
        for thread in lookers:
            thread.join()


def test_a_run_is_found_by_id_prefix_name_and_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a person would type it."""
    run, other = new_run("first"), new_run("second")
    for text in (run.id, run.id[:-2], "first", str(run.path)):
        assert find_run(text) == run
    monkeypatch.chdir(runs_folder())
    assert find_run(f".{os.sep}{other.id}") == other
    assert set(all_runs()) == {run, other}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "blank"),
        (" ", "blank"),
        ("third", "No run is called 'third'"),
        ("./third", "no run directory at"),
    ],
)
def test_a_run_that_is_not_there_is_a_sentence(text: str, told: str) -> None:
    """With how to find those that are."""
    new_run("first")
    with pytest.raises(UsageError, match=told):
        find_run(text)


def test_a_prefix_of_several_runs_is_a_sentence() -> None:
    """With their ids, so that more can be given."""
    runs = [new_run("same"), new_run("same")]
    with pytest.raises(UsageError, match="any of 2 runs") as told:
        find_run("sam")
    assert all(run.id in str(told.value) for run in runs)


def test_a_name_whose_letters_are_escaped_in_the_recipe_is_found() -> None:
    """A recipe may write "\u00e9" for an é."""
    run = RunDirectory.create('[run]\nname = "caf\\u00e9"\n', name="x")
    assert find_run("café") == run


def test_a_command_for_live_runs_looks_among_live_ones_first() -> None:
    """Ended runs of the same name, or whose ids begin like it, do not make it ambiguous."""
    ended = [new_run(name="demo") for _ in range(2)]
    live = RunDirectory.create('[run]\nname = "demo"\n', name="other")
    with live.locked():
        assert find_run("demo", live_first=True) == live
        assert find_run(ended[0].id, live_first=True) == ended[0]
        with ended[1].locked(), pytest.raises(UsageError, match="any of 2 runs"):
            find_run("demo", live_first=True)
    with pytest.raises(UsageError, match="any of 2 runs"):
        find_run("demo", live_first=True)


def test_the_home_is_the_platform_s_unless_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """GRADACC_HOME decides; a relative one is meant from here."""
    monkeypatch.setenv("GRADACC_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADACC_HOME", "mine")
    assert home() == tmp_path / "mine"
    monkeypatch.delenv("GRADACC_HOME")
    assert home().name == "gradacc"


def test_a_home_that_cannot_be_written_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is a file, say."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADACC_HOME", str(tmp_path / "file"))
    with pytest.raises(RunDirectoryError, match=r"No run can be made .* Set GRADACC_HOME"):
        new_run()
