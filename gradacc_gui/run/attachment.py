"""The run that the window shows: its store, what this window asked of it, and how far a stop has gone. No Qt.

`tick` is called by the window's one timer; nothing here waits.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from gradacc_gui.person import person
from gradacc_gui.run.asks import Asks
from gradacc_gui.session.launch import Died, Launch
from gradacc_gui.session.runs import died_unseen
from gradacc_gui.session.stopping import Act, Ladder, Rung, perform
from gradacc_gui.store import RunStore
from trainer_backend.errors import RunDirectoryError
from trainer_backend.inbox import send
from trainer_backend.protocol import (
    AnyCommand,
    MicroBatchMeasured,
    Pause,
    Record,
    RunFailed,
    Stop,
)
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunState
from trainer_backend.settings import Settings, settings_of

LOOK_EVERY_S: Final = 1.0


class Attachment:
    """One run, shown live; several windows may each have one of the same run."""

    def __init__(self, run: RunDirectory, launch: Launch | None = None) -> None:
        self.run = run
        self.launch = launch
        self._ending: list[Launch] = []
        """Trainers of earlier attempts that have said their last and may not have exited yet."""
        self.config = run.config()
        self.store = RunStore(run, None if self.config is None else settings_of(self.config))
        self.asks = Asks()
        self.ladder = Ladder()
        self.asked_by = person()
        self.problem = ""
        """Why a command could not be sent, as a sentence."""
        self._facts_taken = 0
        self._progress_mark: tuple[object, int] = (None, 0)
        self._died_unseen = False
        self._look_due = 0.0

    def tick(self) -> list[Record]:
        """Take what is new; gives the new facts."""
        self.store.poll()
        new = self.store.facts[self._facts_taken :]
        self._facts_taken += len(new)
        if new:
            self.asks.apply(new)
        self._ending = [launch for launch in self._ending if launch.poll() is None]
        self._climb()
        self._look_for_a_silent_end()
        if self.state.is_over:
            self.asks.abandon()
        return new

    def close(self) -> None:
        """Close the store; the run keeps running."""
        self.store.close()
        for launch in (self.launch, *self._ending):
            if launch is not None:
                launch.leave()

    # ------------------------------------------------------------------ what it is doing

    @property
    def died(self) -> Died | None:
        """How the trainer that this window started ended; None while it lives or none was started."""
        return None if self.launch is None else self.launch.poll()

    @property
    def state(self) -> RunState:
        """The run's state, with what this window knows besides its facts."""
        known = self.store.state
        if self._is_launching():
            return RunState.LOADING
        if known.is_alive and self.store.alive and self.ladder.rung not in (Rung.RUNNING, Rung.ENDED):
            return RunState.STOPPING
        if known is RunState.PENDING and self.died is not None:
            return RunState.FAILED
        if known is RunState.PENDING and self._died_unseen:
            return RunState.INTERRUPTED
        if known is RunState.RUNNING:
            pause = self.asks.newest(Pause)
            return RunState.PAUSING if pause is not None and pause.is_open else RunState.RUNNING
        return known

    @property
    def settings(self) -> Settings | None:
        """What is in force; None until an attempt is ready to train."""
        return self.store.so_now.settings

    @property
    def checkpoints(self) -> list[int]:
        """Steps of the checkpoints that should still be on disk, oldest first."""
        if self.config is None:
            return self.store.so_now.checkpoints()
        asked = self.config.checkpoint
        return self.store.so_now.checkpoints(asked.keep, asked.keep_best, asked.mode)

    @property
    def best_checkpoint(self) -> tuple[int, float] | None:
        """Step and metric of the best checkpoint; None where none was kept for that."""
        if self.config is None:
            return None
        return next(iter(self.store.so_now.best_checkpoints(self.config.checkpoint.mode)), None)

    def _look_for_a_silent_end(self) -> None:
        """Whether a trainer that another window started died before it wrote anything."""
        if self.store.state is not RunState.PENDING or self.launch is not None:
            self._died_unseen = False
        elif time.monotonic() >= self._look_due:
            self._look_due = time.monotonic() + LOOK_EVERY_S
            self._died_unseen = died_unseen(self.run)

    def _is_launching(self) -> bool:
        """Started from here, alive, and not yet holding the lock."""
        return (
            self.launch is not None and self.died is None and not self.store.alive and not self._has_ended()
        )

    def _has_ended(self) -> bool:
        """Whether the journal's newest attempt is the launched one's and has ended."""
        if self.launch is None:
            return False
        started_at = self.launch.started_at
        return (
            any(record.at >= started_at for record in self.store.facts[-1:]) and self.store.ended is not None
        )

    @property
    def is_live(self) -> bool:
        """Whether a trainer is there to answer."""
        return self.store.alive and self.store.state.is_live

    @property
    def failure(self) -> RunFailed | None:
        """How the newest attempt failed, when the trainer could still say so."""
        ended = self.store.ended
        return ended if isinstance(ended, RunFailed) else None

    @property
    def good_step(self) -> int | None:
        """The step of the last good checkpoint; None when there is none."""
        told = self.failure.values.get("checkpoint_step") if self.failure is not None else None
        steps = self.checkpoints
        return told if isinstance(told, int) else steps[-1] if steps else None

    # ------------------------------------------------------------------ what is asked of it

    def send(self, command: AnyCommand) -> None:
        """Put a command into the inbox, in this person's name."""
        named = msgspec.structs.replace(command, asked_by=self.asked_by)
        try:
            send(self.run.inbox_path, named)
        except RunDirectoryError as error:
            self.problem = str(error)
            return
        self.problem = ""
        self.asks.sent(named)
        self.store.sent(named)

    def stop(self, *, now: bool) -> None:
        """The person wants the run to end."""
        self.ladder, act = self.ladder.ask(time.monotonic(), at_once=now)
        self._perform(act)

    def end_by_force(self) -> None:
        """The person was asked, and will not wait."""
        self.ladder, act = self.ladder.end_by_force(time.monotonic())
        self._perform(act)

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return self.store.alive and self.store.phase == "saving"

    def _perform(self, act: Act | None) -> None:
        match act:
            case None:
                return
            case Act.ASK:
                self.send(Stop())
            case Act.ASK_NOW:
                self.send(Stop(now=True))
            case Act.TERMINATE | Act.KILL:
                try:
                    perform(act, self.run, asked_by=self.asked_by)
                except RunDirectoryError as error:
                    self.problem = str(error)

    def _climb(self) -> None:
        if self.ladder.rung in (Rung.RUNNING, Rung.ENDED):
            return
        now = time.monotonic()
        mark = (self.store.latest.get(MicroBatchMeasured), self._facts_taken)
        if mark != self._progress_mark:
            self._progress_mark = mark
            self.ladder = self.ladder.progressed(now)
        self.ladder, act = self.ladder.look(now, alive=self.store.alive, saving=self.is_saving)
        self._perform(act)

    def relaunched(self, launch: Launch) -> None:
        """A new attempt was started from this window."""
        self._ending += [] if self.launch is None else [self.launch]
        self.launch = launch
        self.ladder = Ladder()
