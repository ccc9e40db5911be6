"""The far end of a line: `python -m trainer_backend relay RUN --after SEQ`, started by ssh.

What the run's journal gets goes to standard output, commands come from standard input, and the relay ends
when either is closed. It reads as any reader does, so it is in no run's way. No torch.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

from trainer_backend import __version__
from trainer_backend.errors import GradaccError, RunDirectoryError
from trainer_backend.inbox import send
from trainer_backend.journal_reader import JournalReader
from trainer_backend.protocol import AnyCommand
from trainer_backend.regular_files import LARGEST_TEXT_BYTES, open_regular, read_regular
from trainer_backend.relaying.relay_messages import (
    FORMAT,
    MARK,
    AnyMessage,
    Events,
    FarStanding,
    Hello,
    LogText,
    RecipeText,
    Row,
    frame,
)
from trainer_backend.run_directory import RunDirectory, find_run

POLL_S: Final = 0.01
"""Between two looks at a live run's journal; a look that finds nothing takes 22 us."""
IDLE_POLL_S: Final = 0.1
"""The same while no trainer is there."""
STANDING_S: Final = 1.0
LOCK_S: Final = 0.1
FILES_S: Final = 0.5
SLICE_EVENTS: Final = 10_000
LOG_BYTES: Final = 64 * 1024
"""Of a log that is met for the first time, its end; and the most of one message."""
LARGEST_LOCK_BYTES: Final = 4096
_commands = msgspec.json.Decoder(AnyCommand)


def main(words: Sequence[str]) -> int:
    """The command line; gives the exit code. A refusal is one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m trainer_backend relay", description=__doc__)
    parser.add_argument("run", metavar="RUN", help="an id, a unique prefix of one, a name, or a directory")
    parser.add_argument("--after", metavar="SEQ", type=int, default=0, help="number of the last known event")
    options = parser.parse_args(words)
    return relay_here(options.run, options.after)


def relay_here(name: str, after: int) -> int:
    """Relay a run on this process's standard streams; gives the exit code."""
    try:
        run = find_run(name)
        run.check()
        relay(run, after, sys.stdin.buffer, sys.stdout.buffer)
    except GradaccError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def relay(run: RunDirectory, after: int, commands: IO[bytes], out: IO[bytes]) -> None:
    """Hand on what `run` gets until a stream is closed. Raises GradaccError."""
    gone = threading.Event()
    listener = threading.Thread(target=_listen, args=(run, commands, gone), name="gradacc-relay", daemon=True)
    teller = _Teller(run, after, out)
    try:
        teller.hello()
        listener.start()
        while not gone.is_set():
            if not teller.look():
                gone.wait(POLL_S if teller.alive else IDLE_POLL_S)
    except BrokenPipeError:
        # The line is gone. What is buffered must not be flushed into it when the interpreter ends.
        if out is sys.stdout.buffer:
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    finally:
        teller.close()


def _listen(run: RunDirectory, commands: IO[bytes], gone: threading.Event) -> None:
    """Put what comes into the run's inbox, until nothing can come any more."""
    try:
        for line in commands:
            try:
                send(run.inbox_path, _commands.decode(line))
            except (msgspec.DecodeError, RunDirectoryError) as error:  # the near side sees no answer
                sys.stderr.write(f"A command was passed over: {error}\n")
                sys.stderr.flush()
    except (OSError, ValueError):
        pass
    finally:
        gone.set()


class _Teller:
    """What was said of a run, and what is to be said next."""

    def __init__(self, run: RunDirectory, after: int, out: IO[bytes]) -> None:
        self._run, self._after, self._out = run, after, out
        self._reader: JournalReader | None = None
        self._file: os.stat_result | None = None
        self.alive = run.is_alive()
        self._standing = FarStanding(alive=False, holder=b"", head=-1)
        self._standing_due = self._lock_due = self._files_due = 0.0
        self._recipe = b""
        self._log_at = -1
        self._log_file: tuple[int, int] = (0, 0)

    def hello(self) -> None:
        """Say what this is. Raises RunDirectoryError for a journal that cannot be read."""
        self._open()
        reader = self._reader
        self._out.write(MARK)
        self._say(
            Hello(
                format=FORMAT,
                version=__version__,
                run=self._run.id,
                path=str(self._run.path),
                host=platform.node(),
                origin="" if reader is None else reader.origin(),
                head=0 if reader is None else reader.head(),
            )
        )

    def look(self) -> bool:
        """Say what is new; False when there were no events. Raises RunDirectoryError."""
        now = time.monotonic()
        if now >= self._files_due:
            self._files_due = now + FILES_S
            self._run.check()  # a run that was deleted, or a disk that went away
            self._tell_recipe()
            self._tell_log()
        if (
            now >= self._lock_due
        ):  # before the journal is read: an end that is written in between is then seen
            self._lock_due = now + LOCK_S
            self.alive = self._run.is_alive()
        alive = self.alive
        rows, facts, last = self._read()
        is_new = last > self._after
        if is_new:
            self._after = last
            named = {kind.__name__: found for kind, found in rows.items()}
            self._say(Events(last=last, rows=named, facts=facts))
        if alive or not is_new:  # that it ended is said behind all that it wrote
            self._tell_standing(now, alive=alive)
        self._out.flush()
        return is_new

    def _read(self) -> tuple[dict[type, list[Row]], list[Row], int]:
        self._open()
        if self._reader is None:
            return {}, [], self._after
        return self._reader.read_raw(self._after, SLICE_EVENTS)

    def _open(self) -> None:
        """Open the journal, or see whether it is still the one that was opened."""
        path = self._run.journal_path
        if self._reader is None and path.is_file():
            self._reader, self._file = JournalReader(path), path.stat()

    def _tell_standing(self, now: float, *, alive: bool) -> None:
        holder = _content(self._run.lock_path, LARGEST_LOCK_BYTES) if alive else b""
        told = FarStanding(alive=alive, holder=holder, head=self._after)
        is_changed = (told.alive, told.holder) != (self._standing.alive, self._standing.holder)
        if is_changed or now >= self._standing_due:
            if not is_changed:
                self._check_journal()
            self._standing, self._standing_due = told, now + STANDING_S
            self._say(told)

    def _check_journal(self) -> None:
        if self._file is None:
            return
        try:
            is_there = os.path.samestat(self._run.journal_path.stat(), self._file)
        except OSError:
            is_there = False
        if not is_there:
            message = f"The journal of {self._run.id} was removed or begun anew. Attach to the run again."
            raise RunDirectoryError(message)

    def _tell_recipe(self) -> None:
        content = _content(self._run.recipe_path, LARGEST_TEXT_BYTES)
        if content and content != self._recipe:
            self._recipe = content
            self._say(RecipeText(content=content))

    def _tell_log(self) -> None:
        try:
            with open_regular(self._run.log_path) as file:
                status = os.fstat(file.fileno())
                begins = self._log_at < 0 or status.st_size < self._log_at or self._log_file != _inode(status)
                if begins:
                    self._log_at, self._log_file = max(0, status.st_size - LOG_BYTES), _inode(status)
                file.seek(self._log_at)
                content = file.read(LOG_BYTES)
        except OSError:
            return
        if content or begins:
            self._log_at += len(content)
            self._say(LogText(begins=begins, content=content))

    def _say(self, message: AnyMessage) -> None:
        self._out.write(frame(message))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _content(path: Path, largest: int) -> bytes:
    """A small file's content; empty where there is none."""
    try:
        return read_regular(path, largest)
    except (OSError, ValueError):
        return b""
