"""Follow a run's journal to its end, or to the answer of a command: what the command line does all day."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from gradacc_gui.session.runs import summarise
from trainer_backend.errors import GradaccError, RunDirectoryError
from trainer_backend.inbox import send
from trainer_backend.journal import JournalReader, Slice
from trainer_backend.protocol import (
    AnyCommand,
    CommandAccepted,
    CommandRefused,
    Record,
)
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunFacts, RunState
from trainer_backend.wholeness import check_whole

POLL_S: Final = 0.05
ANSWER_S: Final = 15.0


class NoAnswerError(GradaccError):
    """A command got no answer; the sentence says why."""


class Follower:
    """Reads what a run's journal gets, from `after` on, whether it exists yet or not."""

    def __init__(self, run: RunDirectory, *, after: int = 0) -> None:
        self.run = run
        self.after = after
        self.facts = RunFacts()
        """What the facts that were read say is so now."""
        self._reader: JournalReader | None = None

    def poll(self, limit: int = 20_000) -> Slice:
        """What is new since the last poll. Raises RunDirectoryError for a damaged journal."""
        if self._reader is None:
            if not self.run.journal_path.is_file():
                return Slice(self.after, self.after)
            self._reader = JournalReader(self.run.journal_path)
        found = self._reader.read(self.after, limit)
        self.after = found.last
        self.facts.take_all(found.facts)
        return found

    def close(self) -> None:
        """Close the journal's reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def slices(reader: JournalReader, *, after: int = 0) -> Iterator[Slice]:
    """Everything in a journal from `after` to where it ends now, in bounded pieces."""
    end = reader.head()
    while after < end:
        found = reader.read(after)
        if found.last == after:
            return
        after = found.last
        yield found


def ask(run: RunDirectory, command: AnyCommand, *, timeout_s: float = ANSWER_S) -> Record:
    """Send a command to a live run and wait for the fact that answers it.

    Raises NoAnswerError when no trainer is alive or it does not answer, RunDirectoryError when the run
    cannot be written or read, or is damaged.
    """
    if not run.is_alive():
        raise NoAnswerError(_not_live(run))
    follower = Follower(run, after=head(run))
    send(run.inbox_path, command)
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            alive = run.is_alive()
            for record in follower.poll().facts:
                event = record.event
                if isinstance(event, (CommandAccepted, CommandRefused)) and event.command_id == command.id:
                    return record
            if not alive:
                message = f"{run.id} ended before it answered. `gradacc show {run.typed}` shows how it ended."
                raise NoAnswerError(message)
            if time.monotonic() > deadline:
                message = (
                    f"{run.id} has not answered within {timeout_s:g} s. The command stays in its inbox;"
                    f" see {run.log_path}."
                )
                raise NoAnswerError(message)
            time.sleep(POLL_S)
    finally:
        follower.close()


def _not_live(run: RunDirectory) -> str:
    """Why nothing can be asked, and what can be done. Raises RunDirectoryError for a damaged run."""
    check_whole(run)
    summary = summarise(run)
    if summary.state is RunState.DAMAGED:
        raise RunDirectoryError(summary.reason)
    said = f"{run.id} is not live, so it takes no commands."
    if summary.can_resume:
        return f"{said} `gradacc resume {run.typed}` starts it."
    if summary.state is RunState.FINISHED:
        return f"{said} It has finished; `gradacc show {run.typed}` shows how it ended."
    return f"{said} Its trainer is starting; ask again in a moment."


def head(run: RunDirectory) -> int:
    """The newest sequence number of a run's journal; 0 when there is none yet."""
    if not run.journal_path.is_file():
        return 0
    reader = JournalReader(run.journal_path)
    try:
        return reader.head()
    finally:
        reader.close()
