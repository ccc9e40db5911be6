"""The far end of a line: it reads as any reader does, and puts commands into the inbox."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

from tests.support.fake_runs import Plan, continue_run, new_run, write_run
from tests.support.waiting import wait_for
from trainer_backend.errors import GradaccError
from trainer_backend.inbox import Inbox
from trainer_backend.protocol import Pause
from trainer_backend.relaying.relay import main, relay
from trainer_backend.relaying.relay_messages import (
    AnyMessage,
    Events,
    FarStanding,
    FrameReader,
    Hello,
    LogText,
    RecipeText,
)
from trainer_backend.run_directory import RunDirectory


class Far:
    """A relay in a thread, and what it said so far."""

    def __init__(self, commands: IO[bytes], out: int) -> None:
        self.commands = commands
        self.problem = ""
        self._out, self._frames = out, FrameReader()
        self.messages: list[AnyMessage] = []

    def look(self) -> list[AnyMessage]:
        """All messages until now."""
        with suppress(BlockingIOError):
            self.messages += self._frames.take(os.read(self._out, 1 << 20))
        return self.messages

    def events(self) -> list[Events]:
        """The rows that came."""
        return [message for message in self.look() if isinstance(message, Events)]

    def standing(self) -> FarStanding | None:
        """How the trainer stands, as it was said last."""
        return next((told for told in reversed(self.look()) if isinstance(told, FarStanding)), None)


@contextmanager
def far_end(run: RunDirectory, after: int = 0) -> Iterator[Far]:
    """A relay of `run` on two pipes; its standard input ends when the block does."""
    (command_end, near_commands), (near_out, out_end) = os.pipe(), os.pipe()
    os.set_blocking(near_out, False)
    commands, out = os.fdopen(command_end, "rb"), os.fdopen(out_end, "wb")
    far = Far(os.fdopen(near_commands, "wb", buffering=0), near_out)

    def work() -> None:
        try:
            relay(run, after, commands, out)
        except GradaccError as error:
            far.problem = str(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield far
    finally:
        far.commands.close()
        thread.join()
        commands.close()
        out.close()
        os.close(near_out)


def test_it_greets_then_sends_recipe_rows_and_standing(tmp_path: Path) -> None:
    """A run that ended, from its first event on."""
    run = write_run(tmp_path, Plan(steps=5, end="finished"))
    run.log_path.write_text("hello\n")
    with far_end(run) as far:
        wait_for(lambda: far.standing() is not None)
        hello, *rest = far.look()
        standing = far.standing()
    assert isinstance(hello, Hello)
    assert (hello.run, hello.path) == (run.id, str(run.path))
    assert [told.last for told in rest if isinstance(told, Events)] == [hello.head]
    assert [told.content for told in rest if isinstance(told, RecipeText)] == [run.recipe_path.read_bytes()]
    assert [told.content for told in rest if isinstance(told, LogText)] == [b"hello\n"]
    assert standing == FarStanding(alive=False, holder=b"", head=hello.head)


def _numbers(events: Any) -> list[int]:
    """The sequence numbers of all rows."""
    return sorted(int(row[0]) for rows in (*events.rows.values(), events.facts) for row in rows)


def test_it_sends_what_lies_behind_the_number_it_is_told(tmp_path: Path) -> None:
    """No row twice, none missing."""
    run = write_run(tmp_path, Plan(steps=5))
    with far_end(run) as far:
        wait_for(lambda: far.standing() is not None)
        (first,) = far.events()
    numbers = _numbers(first)
    with far_end(run, after=10) as far:
        wait_for(lambda: far.standing() is not None)
        (later,) = far.events()
    assert _numbers(later) == [number for number in numbers if number > 10]


def test_it_tells_of_a_live_trainer_and_hands_commands_on(tmp_path: Path) -> None:
    """The lock's content goes along: it tells which process is the run's."""
    run = new_run(tmp_path, Plan())
    pause = Pause(asked_by="me")
    with run.locked(), far_end(run) as far:
        wait_for(lambda: (told := far.standing()) is not None and told.alive)
        told = far.standing()
        assert told is not None
        assert told.holder == run.lock_path.read_bytes()
        far.commands.write(msgspec.json.encode(pause) + b"\nnonsense\n")
        wait_for(lambda: Inbox(run.inbox_path).names() == [pause.id])
        assert Inbox(run.inbox_path).poll() == [pause]
        continue_run(run, Plan(steps=3))
        wait_for(lambda: bool(far.events()))


def test_a_journal_that_is_replaced_ends_the_line(tmp_path: Path) -> None:
    """Its numbers would be another history's."""
    run = write_run(tmp_path, Plan(steps=3))
    with far_end(run) as far:
        wait_for(lambda: far.standing() is not None)
        run.journal_path.rename(tmp_path / "aside")
        wait_for(lambda: bool(far.problem))
    assert "begun anew" in far.problem


def test_a_run_that_is_not_there_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, which ssh carries apart."""
    assert main(["nothing"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "No run is called 'nothing'. `gradacc runs` lists them.\n")


def test_a_line_that_nobody_reads_any_more_ends_the_relay(tmp_path: Path) -> None:
    """As a broken connection does."""

    class Closed(io.BytesIO):
        def write(self, data: object, /) -> int:
            raise BrokenPipeError(str(data))

    relay(write_run(tmp_path, Plan(steps=3)), 0, io.BytesIO(), Closed())
