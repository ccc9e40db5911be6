"""Commands are durable, ordered and whole; what is no command is told and ends nothing."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.events import events, same
from trainer_backend.errors import RunDirectoryError
from trainer_backend.inbox import LARGEST_BYTES, Inbox, Malformed, send
from trainer_backend.protocol import AnyCommand, Pause, SetAccumulation, Stop, new_command_id

COMMANDS = get_args(AnyCommand)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty inbox."""
    path = tmp_path / "inbox"
    path.mkdir()
    return path


def taken(inbox: Inbox) -> list[Any]:
    """What waits, removed as a trainer does it."""
    found = inbox.poll()
    for command in found:
        inbox.remove(command.name if isinstance(command, Malformed) else command.id)
    return found


@pytest.mark.parametrize("kind", COMMANDS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_command_comes_out_as_it_went_in(folder: Path, kind: type[Any], data: st.DataObject) -> None:
    """All but a number that JSON does not have: NaN as a learning rate is refused by its reader."""
    command = data.draw(events(kind).map(lambda made: type(made)(**_finite(made))))

    assert send(folder, command) == command.id
    (found,) = taken(Inbox(folder))

    assert same(found, command)


def _finite(command: Any) -> dict[str, Any]:
    fields = {name: getattr(command, name) for name in command.__struct_fields__}
    odd = (float("inf"), float("-inf"))
    fixed = {n: 0.5 if isinstance(v, float) and (v != v or v in odd) else v for n, v in fields.items()}  # noqa: PLR0124
    return fixed | {"id": new_command_id()}


def test_commands_come_in_the_order_they_were_made(folder: Path) -> None:
    """Their ids sort by time, whatever order the folder lists them in."""
    sent = [send(folder, SetAccumulation(steps=steps)) for steps in range(1, 50)]

    assert [command.id for command in taken(Inbox(folder))] == sent
    assert list(folder.iterdir()) == []


def test_a_command_is_seen_again_until_it_is_removed(folder: Path) -> None:
    """A trainer that is killed between reading and answering reads it again."""
    inbox = Inbox(folder)
    send(folder, Pause())

    assert inbox.poll() == inbox.poll()
    assert len(Inbox(folder).poll()) == 1


def test_a_command_is_never_missed_however_the_looks_fall(folder: Path) -> None:
    """Sent while the trainer looks as often as it can, from several windows at once."""
    inbox = Inbox(folder)
    seen: list[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.extend(command.id for command in taken(inbox))

    looker = threading.Thread(target=look)
    looker.start()
    sent: list[list[str]] = [[], []]

    def ask(ids: list[str]) -> None:
        ids += [send(folder, Pause()) for _ in range(150)]

    senders = [threading.Thread(target=ask, args=(ids,)) for ids in sent]
    for thread in senders:
        thread.start()
    for thread in senders:
        thread.join()
    done.set()
    looker.join()
    seen += [command.id for command in taken(inbox)]

    assert sorted(seen) == sorted(sent[0] + sent[1])


def test_an_old_untouched_folder_is_looked_at_again_when_a_command_comes(folder: Path) -> None:
    """The look that is saved on an unchanged folder costs no command."""
    os.utime(folder, (1.7e9, 1.7e9))
    inbox = Inbox(folder)
    assert inbox.poll() == []
    assert inbox.poll() == []

    send(folder, Stop())

    assert len(inbox.poll()) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b'{"type": "Explode", "id": "x"}',
        b'{"type": "Pause", "id": "another"}',
        b'{"type": "SetAccumulation", "id": "x", "steps": "many"}',
        b'{"type": "Pause", "id": "x", "unknown": 1}',
        b"\xff" * 10,
        b" " * (LARGEST_BYTES + 1),
    ],
)
def test_what_is_no_command_is_malformed_and_the_others_are_read(folder: Path, content: bytes) -> None:
    """By the name of its file, so that it can be refused and removed."""
    (folder / "x.json").write_bytes(content)
    good = send(folder, Pause())

    found = {command.id: command for command in taken(Inbox(folder))}

    assert isinstance(found["x"], Malformed)
    assert found["x"].reason
    assert isinstance(found[good], Pause)
    assert list(folder.iterdir()) == []


def test_odd_entries_are_told_moved_aside_and_block_nothing(folder: Path, tmp_path: Path) -> None:
    """A folder, a pipe, a link, deep nesting, a name that is no text: each blocked all steering for good."""
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    (folder / "link.json").symlink_to(tmp_path / "elsewhere.json")
    (folder / "deep.json").write_bytes(b'{"type": "Pause", "id": ' + b"[" * 30_000)
    (folder / os.fsdecode(b"\xff.json")).write_bytes(b"{}")
    good = send(folder, Pause())

    found = {command.id: command for command in taken(Inbox(folder))}

    assert isinstance(found.pop(good), Pause)
    assert sorted(found) == ["?", "deep", "folder", "link", "pipe"]
    assert all(isinstance(odd, Malformed) and odd.reason for odd in found.values())
    assert Inbox(folder).poll() == []
    assert sorted(path.suffix for path in folder.iterdir()) == [".aside"] * 3  # what is no file is kept


def test_what_is_answered_is_not_read_again(folder: Path) -> None:
    """Its file waits for its answer to be on the disk."""
    sent = send(folder, Pause())
    later = send(folder, Stop())
    assert [command.id for command in Inbox(folder).poll({sent})] == [later]


def test_half_written_files_and_strangers_are_not_commands(folder: Path) -> None:
    """A sender that was killed in the middle leaves a file that nobody reads."""
    (folder / f".{new_command_id()}.part").write_bytes(b'{"type": "Pau')
    (folder / "notes.txt").write_text("mine")
    (folder / "folder.json").mkdir()

    assert [type(command) for command in Inbox(folder).poll()] == [Malformed]


def test_an_inbox_that_was_taken_away_holds_no_commands(tmp_path: Path) -> None:
    """The run goes on."""
    assert Inbox(tmp_path / "gone").poll() == []


def test_a_command_that_cannot_be_sent_is_a_sentence(tmp_path: Path) -> None:
    """The run's directory was deleted, say."""
    with pytest.raises(RunDirectoryError, match=r"could not be put into .* writable"):
        send(tmp_path / "gone", Pause())
