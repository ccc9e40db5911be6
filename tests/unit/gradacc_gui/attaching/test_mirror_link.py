"""A run of another machine is a run here: same rows, same numbers, whatever the line does meanwhile."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from gradacc_gui.attaching.far_hosts import FarAddress, settings_of_host
from gradacc_gui.attaching.mirror import AttachedAlreadyError, is_fed, line_state
from gradacc_gui.attaching.mirror_link import MirrorLink
from gradacc_gui.attaching.ssh_line import FarError
from gradacc_gui.session.following import ask
from gradacc_gui.session.runs import delete_run, summarise
from gradacc_gui.store import RunStore
from tests.support.fake_runs import Plan, continue_run, new_run, write_run
from tests.support.far_machine import FarMachine, stand_in_machine
from trainer_backend.errors import RunDirectoryError
from trainer_backend.inbox import Inbox
from trainer_backend.journal import JournalWriter
from trainer_backend.protocol import CommandAccepted, MeasurementsLost, Pause
from trainer_backend.run_directory import RunDirectory, all_mirrors, all_runs, find_run
from trainer_backend.run_facts import RunState
from trainer_backend.wholeness import check_trainable

PATIENCE_S = 60.0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FarMachine:
    """Reached through a stand-in for ssh."""
    return stand_in_machine(tmp_path, monkeypatch)


@contextmanager
def linked(machine: FarMachine, run: str) -> Iterator[MirrorLink]:
    """A line to a run, closed at the end."""
    link = MirrorLink(FarAddress(machine.host, run), settings_of_host(machine.host))
    try:
        yield link
    finally:
        link.close()


def until(link: MirrorLink, condition: Callable[[], bool]) -> RunDirectory:
    """Feed the mirror until something holds; gives the mirror."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        link.step()
    assert link.mirror is not None
    return link.mirror.run


def break_line(link: MirrorLink) -> None:
    """End ssh and all that it started, as a network that fails does."""
    assert link._line is not None
    ssh = psutil.Process(link._line._process.pid)
    for process in (*ssh.children(recursive=True), ssh):
        process.kill()


def everything(run: RunDirectory) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    connection = sqlite3.connect(run.journal_path)
    try:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall()
        return {
            name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()  # noqa: S608 - our own
            for (name,) in names
        }
    finally:
        connection.close()


def test_a_mirror_has_the_same_rows_and_roll_ups(machine: FarMachine) -> None:
    """Also after more came in a second attempt, while nobody was attached."""
    plan = Plan(steps=300, nan_steps=(7,), end="stopped")
    run = write_run(machine.runs, plan)
    with linked(machine, run.id) as link:
        mirror = until(link, lambda: link.has_heard_all)
    assert everything(mirror) == everything(run)
    continue_run(run, Plan(steps=400, from_step=300, attempt=2, end="finished"))
    with linked(machine, run.id[:-1]) as link:
        until(link, lambda: link.has_heard_all)
    assert everything(mirror) == everything(run)
    assert mirror.recipe_path.read_text() == run.recipe_path.read_text()


def test_a_mirror_is_a_run_by_its_address(machine: FarMachine) -> None:
    """Commands and lists find it; it is none of this machine's own."""
    run = write_run(machine.runs, Plan(steps=5, end="finished"))
    with linked(machine, run.id) as link:
        mirror = until(link, lambda: link.has_heard_all)
    assert all_runs() == []
    assert all_mirrors() == [mirror]
    assert find_run(f"{machine.host}:{run.id}") == find_run(run.id) == mirror
    assert mirror.typed == f"{machine.host}:{run.id}"
    assert summarise(mirror).state is RunState.FINISHED
    store = RunStore(mirror)
    store.poll()
    assert store.problem == ""
    store.close()
    delete_run(mirror)
    assert not mirror.path.exists()
    assert run.journal_path.exists()


def test_no_trainer_starts_in_a_mirror(machine: FarMachine) -> None:
    """Neither the window's Resume nor the trainer's own command line; where it can be resumed is said."""
    run = write_run(machine.runs, Plan(steps=5, end="stopped"))
    with linked(machine, run.id) as link:
        mirror = until(link, lambda: link.has_heard_all)
    before = everything(mirror)
    with pytest.raises(RunDirectoryError, match=f"gradacc resume {machine.host}:{run.id}"):
        check_trainable(mirror)
    assert everything(mirror) == before
    check_trainable(run)


def test_commands_go_through_and_their_answers_come_back(machine: FarMachine) -> None:
    """The mirror's inbox is emptied once the answer is there; its lock names the far trainer."""
    run = new_run(machine.runs, Plan())
    answered = threading.Event()

    def trainer() -> None:
        inbox, writer = Inbox(run.inbox_path), JournalWriter(run.journal_path, attempt=1)
        with suppress(RuntimeError):
            while not answered.is_set():
                for command in inbox.poll():
                    writer.put(CommandAccepted(command_id=command.id, asked=command, applies_at_step=3))  # type: ignore[arg-type]  # a command
                    inbox.remove(command.id)
                time.sleep(0.01)
        writer.close()

    with run.locked(), linked(machine, run.id) as link:
        thread = threading.Thread(target=trainer)
        thread.start()
        try:
            mirror = until(link, lambda: link.mirror is not None and link.mirror.alive)
            found: list[Any] = []
            asking = threading.Thread(
                target=lambda: found.append(ask(mirror, Pause(asked_by="me"), timeout_s=60))
            )
            asking.start()
            until(link, lambda: bool(found))
            asking.join()
            until(link, lambda: Inbox(mirror.inbox_path).names() == [])
            assert found[0].event.applies_at_step == 3
            assert mirror.pid() == run.pid()
            assert mirror.is_alive()
        finally:
            answered.set()
            thread.join()
    assert not mirror.is_alive()


def test_a_dropped_line_loses_and_doubles_nothing(machine: FarMachine) -> None:
    """The relay is killed again and again while events come; a command is handed on once more."""
    run = new_run(machine.runs, Plan())
    done = threading.Event()

    def write() -> None:
        writer = JournalWriter(run.journal_path, attempt=1)
        for number in range(3_000):
            writer.put(MeasurementsLost(first=number, last=number))
            if number % 50 == 0:
                time.sleep(0.02)
        writer.close()
        done.set()

    with run.locked(), linked(machine, run.id) as link:
        mirror = until(link, lambda: link.mirror is not None and link.mirror.alive)
        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(2):
            before = link.mirror.last if link.mirror is not None else 0
            until(link, lambda last=before: link.mirror is not None and link.mirror.last > last)  # type: ignore[misc]  # bound now
            break_line(link)
            until(link, lambda: not link.connected)
            assert line_state(mirror).state == "waiting"
            assert mirror.is_alive()  # as far as is known
            link._next_try_at = 0.0
            until(link, lambda: link.connected)
        thread.join()
        until(link, lambda: link.mirror is not None and link.mirror.last >= 3_000)
    assert everything(mirror) == everything(run)


def test_a_refusal_on_the_second_try_is_the_end(machine: FarMachine) -> None:
    """A password that is wanted now will be wanted in a second, too."""
    run = write_run(machine.runs, Plan(steps=3))
    with linked(machine, run.id) as link:
        until(link, lambda: link.has_heard_all)
        machine.broken.write_text("Permission denied (publickey).\n")
        break_line(link)
        until(link, lambda: not link.connected)
        link._next_try_at = 0.0
        with pytest.raises(FarError, match="wants a password"):
            until(link, lambda: link.connected)


def test_a_journal_that_was_begun_anew_is_taken_anew(machine: FarMachine) -> None:
    """Its numbers mean something else; the copy of the old one is of no use."""
    run = write_run(machine.runs, Plan(steps=30, end="finished"))
    with linked(machine, run.id) as link:
        until(link, lambda: link.has_heard_all)
    run.journal_path.unlink()
    continue_run(run, Plan(steps=40, seed=2, began_at=1_790_000_000.0, end="finished"))
    with linked(machine, run.id) as link:
        mirror = until(link, lambda: link.has_heard_all)
    assert everything(mirror) == everything(run)


def test_one_mirror_has_one_line(machine: FarMachine) -> None:
    """A second window looks at the same mirror."""
    run = write_run(machine.runs, Plan(steps=3))
    with linked(machine, run.id) as link:
        mirror = until(link, lambda: link.connected)
        assert is_fed(mirror)
        with linked(machine, run.id) as second, pytest.raises(AttachedAlreadyError) as refused:
            until(second, lambda: second.connected)
        assert refused.value.run == mirror
        assert line_state(mirror).state == "connected"
    assert line_state(mirror).state == "ended"


def test_another_version_is_a_sentence(machine: FarMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written here."""
    run = write_run(machine.runs, Plan(steps=3))
    monkeypatch.setattr("gradacc_gui.attaching.mirror_link.__version__", "99.0")
    with linked(machine, run.id) as link, pytest.raises(FarError, match=r"and this machine 99\.0"):
        until(link, lambda: link.connected)
    assert all_mirrors() == []


def test_a_run_that_is_not_there_is_a_sentence(machine: FarMachine) -> None:
    """The far machine's own, with its name."""
    with linked(machine, "nothing") as link, pytest.raises(FarError, match=r"far-gpu: No run is called"):
        until(link, lambda: link.connected)
