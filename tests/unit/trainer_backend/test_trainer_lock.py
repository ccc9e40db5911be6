"""What the lock's file says, whom it lets end a trainer, and a directory that is moved from under it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gradacc_gui.session.stopping import Act, perform
from tests.support.stand_in import new_run
from trainer_backend import trainer_lock
from trainer_backend.errors import RunDirectoryError
from trainer_backend.run_directory import RunDirectory
from trainer_backend.trainer_lock import LockHolder, holder_of, read_holder


def test_the_lock_names_process_host_boot_namespace_and_start() -> None:
    """All that tells this process from another of its number."""
    run = new_run()
    with run.locked():
        named = run.holder()
        assert named == holder_of(os.getpid())
        assert named is not None
        assert all((named.host, named.boot_id, named.pid_namespace, named.started))
        assert named.is_the_process(run.lock_path)
    assert not named.is_the_process(run.lock_path)  # let go of


@pytest.mark.parametrize("field", ["host", "boot_id", "pid_namespace", "started"])
def test_a_process_is_ended_only_where_all_that_the_lock_names_matches(field: str) -> None:
    """Two containers on one home: the number is some process's here, and the lock is held elsewhere."""
    run = new_run()
    with run.locked():
        named = msgspec.structs.replace(holder_of(os.getpid()), **{field: "another"})
        run.lock_path.write_bytes(f"{named.pid}\n".encode() + msgspec.json.encode(named))
        with pytest.raises(RunDirectoryError, match=f"process {named.pid} on .*End it there"):
            perform(Act.KILL, run, asked_by="test")


def test_a_bystander_that_the_lock_names_in_full_is_not_ended() -> None:
    """It has not the lock's file open."""
    run = new_run()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with run.locked():
            named = holder_of(bystander.pid)
            run.lock_path.write_bytes(f"{named.pid}\n".encode() + msgspec.json.encode(named))
            with pytest.raises(RunDirectoryError, match="cannot be ended from here"):
                perform(Act.KILL, run, asked_by="test")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_removed_lock_file_admits_no_second_trainer() -> None:
    """The directory is locked too."""
    run = new_run()
    with run.locked():
        run.lock_path.unlink()
        assert run.is_alive()
        with pytest.raises(RunDirectoryError, match="A trainer already runs"), run.locked():
            pass
        assert run.is_alive()
    with run.locked():
        pass


def test_a_lock_file_that_another_replaced_is_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed between its opening and its locking: the trainer takes the file that lies there now."""
    run = new_run()
    shipped = trainer_lock._try_lock
    taken: list[Any] = []

    def remove_first(handle: int, *kind: int) -> bool:
        if not taken:
            run.lock_path.unlink()
        taken.append(handle)
        return shipped(handle, *kind)

    monkeypatch.setattr(trainer_lock, "_try_lock", remove_first)
    with run.locked() as lock:
        assert lock.is_in_place()
        assert run.holder() == holder_of(os.getpid())


@pytest.mark.parametrize("code", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def test_a_file_system_without_locks_is_named_as_such(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not as a trainer that runs."""
    run = new_run()
    number = getattr(errno, code)

    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RunDirectoryError, match=r"cannot be locked: .*set GRADACC_HOME"), run.locked():
        pass
    assert not run.is_alive()


def test_a_folder_that_takes_no_lock_is_held_by_its_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS: EBADF for a folder."""
    run = new_run()
    shipped = fcntl.flock

    def refuse_folders(handle: int, kind: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink() == run.path:
            raise OSError(errno.EBADF, "Bad file descriptor")
        shipped(handle, kind)

    monkeypatch.setattr(fcntl, "flock", refuse_folders)
    with run.locked() as lock:
        assert run.is_alive()
        assert lock.is_in_place()
        with pytest.raises(RunDirectoryError, match="A trainer already runs"), run.locked():
            pass
        run.lock_path.unlink()
        assert not lock.is_in_place()  # a second trainer would get in


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "text", "long"])
def test_what_is_no_lock_file_is_a_sentence_and_never_waited_for(kind: str, tmp_path: Path) -> None:
    """Whatever lies in its place."""
    run = new_run()
    match kind:
        case "pipe":
            os.mkfifo(run.lock_path)
        case "folder":
            run.lock_path.mkdir()
        case "link":
            run.lock_path.symlink_to(tmp_path / "elsewhere")
        case _:
            run.lock_path.write_text("7\n" + "[" * (10_000 if kind == "long" else 1))
    assert run.pid() is None
    assert not run.is_alive()
    if kind in ("text", "long"):  # what it says is written over
        with run.locked():
            assert run.pid() == os.getpid()
        return
    with pytest.raises(RunDirectoryError, match=r"trainer\.lock cannot be written"), run.locked():
        pass


def test_a_renamed_directory_is_noticed_and_found() -> None:
    """Its old path is nobody's; it can be told where it lies now."""
    run = new_run()
    with run.locked() as lock:
        assert lock.place_now() == run.path
        moved = run.path.rename(run.path.with_name("moved"))
        assert not lock.is_in_place()
        assert lock.place_now() == moved
        run.path.mkdir()
        assert not lock.is_in_place()
        assert RunDirectory(moved).is_alive()
        assert not run.is_alive()


def test_a_deleted_directory_lies_nowhere() -> None:
    """No path is made up for it."""
    run = new_run()
    with run.locked() as lock:
        for path in (run.lock_path, run.recipe_path):
            path.unlink()
        for path in (run.inbox_path, run.checkpoints_path, run.path):
            path.rmdir()
        assert lock.place_now() is None
        assert not lock.is_in_place()


def test_an_older_lock_file_names_its_process_and_lets_nobody_end_it() -> None:
    """It says a number only."""
    run = new_run()
    run.lock_path.write_text(f"{os.getpid()}\n")
    named = read_holder(run.lock_path)
    assert named == LockHolder(os.getpid())
    assert named is not None
    assert not named.is_the_process(run.lock_path)
