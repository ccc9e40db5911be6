"""Commands to a loop that is not ours: answered at once, obeyed at the border where they are exact."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import assert_never

import msgspec

from trainer_backend.inbox import Inbox, Malformed
from trainer_backend.integrations.counting import CountingRule, Refused
from trainer_backend.protocol import (
    AccumulationChanged,
    AnswerGate,
    AnyCommand,
    AnyEvent,
    CommandAccepted,
    CommandRefused,
    Event,
    Pause,
    Paused,
    Resume,
    Resumed,
    RollBack,
    SaveCheckpoint,
    Scalar,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    Stop,
)


class PlannedChange(msgspec.Struct, frozen=True):
    """An accepted N, and the window it applies from."""

    command: SetAccumulation
    step: int


class Remote:
    """One run's commands: `tick` runs in the journal's thread, the rest in the training thread."""

    def __init__(
        self,
        inbox: Inbox,
        put: Callable[[AnyEvent], None],
        rule: CountingRule,
        *,
        steps: int,
    ) -> None:
        self._inbox = inbox
        self._put = put
        self._rule = rule
        self._answered: set[str] = set()
        self._names: dict[str, str] = {}
        """What is answered and waits for its answer to be on the disk: by id, its name in the inbox."""
        self._border = threading.Condition()
        self._step = 1
        self._done = 0
        self._epoch: int | None = None
        self._in_window = False
        self._change: PlannedChange | None = None
        self._ending = False
        self.steps = steps
        """N of the coming window."""
        self.stop_asked = False
        self.paused_by: str | None = None

    # ------------------------------------------------------------- the training thread's side

    def begin_window(self) -> None:
        """The window's first micro-batch starts; N is fixed until its end."""
        with self._border:
            self._in_window = True

    def end_window(self, micro_batches: int) -> None:
        """A window of `micro_batches` is complete."""
        with self._border:
            self._in_window = False
            self._step += 1
            self._done += micro_batches

    def restart_counter(self, epoch: int | None, done: int = 0) -> None:
        """The library counts from `done` again, to `epoch` micro-batches (None: nobody knows).

        A change that was promised for a later window keeps it where that window is still whole. Only
        where the epoch's end was not known it may not be: then it is refused after all.
        """
        with self._border:
            self._done, self._epoch, self._in_window = done, epoch, False
            change = self._change
            if change is None or change.step <= self._step:
                return
            before_it = done + (change.step - self._step) * self.steps
            if not self._rule.is_whole(before_it, change.command.steps):
                self._refuse(change.command, "epoch-ended-early", step=change.step)
                self._change = None

    def next_accumulation_steps(self, samples_seen: int) -> int:
        """Wait while paused; gives N of the coming window."""
        with self._border:
            if self.paused_by is not None:
                self._put(Paused(command_id=self.paused_by, step=self._step - 1, samples_seen=samples_seen))
                self._border.wait_for(lambda: self.paused_by is None or self.stop_asked)
                self._put(Resumed(command_id=None, step=self._step - 1, samples_seen=samples_seen))
            change = self._change
            if change is not None and change.step <= self._step:
                self._change = None
                asked = change.command
                self._put(
                    AccumulationChanged(
                        command_id=asked.id,
                        step=self._step,
                        before=self.steps,
                        after=asked.steps,
                        asked_by=asked.asked_by,
                        asked_at=asked.asked_at,
                        samples_seen=samples_seen,
                    )
                )
                self.steps = asked.steps
            # Its N is handed out: what is asked from here on is for the next. After an epoch's last window
            # the library asks again when the next epoch starts.
            self._in_window = self._epoch is None or self._done < self._epoch
            return self.steps

    def end(self) -> None:
        """Answer what is still open: no window will come."""
        with self._border:
            self._ending = True
            if self._change is not None:
                self._refuse(self._change.command, "run-is-ending")
                self._change = None

    # --------------------------------------------------------------- the writer thread's side

    def tick(self) -> None:
        """Answer what waits in the inbox."""
        commands = self._inbox.poll(self._answered)
        if not commands:
            return
        with self._border:
            for command in commands:
                self._answer(command)
                name = command.name if isinstance(command, Malformed) else command.id
                self._answered.add(name)
                self._names[command.id] = name
            self._border.notify_all()

    def committed(self, facts: Iterable[Event]) -> None:
        """These facts are in the journal: the files of the commands that they answer have served."""
        for fact in facts:
            if isinstance(fact, CommandAccepted | CommandRefused):
                name = self._names.pop(fact.command_id, None)
                if name is not None:
                    self._inbox.remove(name)

    def _answer(self, command: AnyCommand | Malformed) -> None:
        if isinstance(command, Malformed):
            self._refuse(command, "malformed", reason=command.reason)
        elif self._ending or self.stop_asked:
            self._refuse(command, "run-is-ending")
        else:
            self._take(command)

    def _take(self, command: AnyCommand) -> None:
        match command:
            case SetAccumulation():
                self._answer_steps(command)
            case Pause() if self.paused_by is None:
                self.paused_by = command.id
                self._accept(command, self._next)
            case Pause():
                self._refuse(command, "already-paused")
            case Resume() if self.paused_by is not None:
                self.paused_by = None
                self._accept(command, self._next)
            case Resume():
                self._refuse(command, "not-paused")
            case Stop():
                self.stop_asked = True
                self._accept(command, self._next)
            case (
                SetMicroBatchSize()
                | SetLearningRate()
                | SetMaxGradNorm()
                | SaveCheckpoint()
                | RollBack()
                | AnswerGate()
            ):
                self._refuse(command, "library-decides")
            case _:
                assert_never(command)

    @property
    def _next(self) -> int:
        return self._step + 1 if self._in_window else self._step

    def _answer_steps(self, command: SetAccumulation) -> None:
        if not 1 <= command.steps <= 1_000_000:
            self._refuse(
                command,
                "out-of-range",
                key="accumulation.gradient_accumulation_steps",
                value=command.steps,
            )
            return
        companions = command.scale_beta2 or command.scale_weight_decay or command.scale_ema
        if command.learning_rate_rule != "none" or companions:
            self._refuse(command, "library-decides", companions=True)
            return
        done = self._done + (self.steps if self._in_window else 0)
        windows = self._rule.windows_until(done, self.steps, command.steps, self._epoch)
        if isinstance(windows, Refused):
            self._refuse(command, windows.code, before=self.steps, after=command.steps)
            return
        if self._change is not None:
            self._refuse(self._change.command, "superseded")
        self._change = PlannedChange(command, self._next + windows)
        self._accept(command, self._change.step)

    def _accept(self, command: AnyCommand, step: int) -> None:
        name = type(command).__name__
        self._put(CommandAccepted(command_id=command.id, applies_at_step=step, command=name, asked=command))

    def _refuse(self, command: AnyCommand | Malformed, code: str, **values: Scalar) -> None:
        name = "" if isinstance(command, Malformed) else type(command).__name__
        self._put(CommandRefused(command_id=command.id, code=code, values=values, command=name))
