"""The inbox's other end: what is asked of a live run is answered at once and taken at a window's border.

`tick` and `committed` run in the journal's writer thread, `take` and `start_window` in the training
thread. One lock guards the border, so `CommandAccepted.applies_at_step` is the window that the command
really opens.

Codes of refusal: superseded, stale, malformed (reason), run-is-ending, out-of-range (key, value, message),
not-divisible (effective_batch, size, below, above), no-beta2, no-ema, already-paused, not-paused,
no-checkpoint (step), no-gate, rolling-back.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Container, Iterable
from typing import Final, Literal, TypeAlias, assert_never

import msgspec

from trainer_backend.config import AccumulationSection, OptimizerSection
from trainer_backend.config_check import check_value
from trainer_backend.inbox import Inbox, Malformed
from trainer_backend.protocol import (
    AnswerGate,
    AnyCommand,
    AnyEvent,
    CommandAccepted,
    CommandRefused,
    Event,
    Pause,
    Resume,
    RollBack,
    SaveCheckpoint,
    Scalar,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    Stop,
)
from trainer_backend.section import Section
from trainer_backend.settings import Settings, divisible_sizes

StopReason: TypeAlias = Literal["", "stop", "stop-now", "signal", "moved", "launcher", "target"]

SECTIONS: Final[dict[str, type[Section]]] = {
    "accumulation": AccumulationSection,
    "optimizer": OptimizerSection,
}


class Pending(msgspec.Struct, frozen=True):
    """A command that was accepted, with what it was found to mean."""

    command: AnyCommand
    accumulation_steps: int | None = None
    """N that follows a new micro-batch size; None leaves N."""


class _Refusal(Exception):  # noqa: N818 - an answer, no error
    def __init__(self, code: str, **values: Scalar) -> None:
        super().__init__(code)
        self.code = code
        self.values = values


class Steering:
    """Commands of one attempt, from the inbox to the border.

    `stale`: names of what lay in the inbox when the process was launched, meant for an earlier attempt.
    `answered`: ids of commands that the journal answers already; their files are only taken away.
    `checkpoints()` gives the steps that can be gone back to. `on_stop` is called, in the writer's
    thread, when a stop is asked for.
    """

    def __init__(
        self,
        inbox: Inbox,
        put: Callable[[AnyEvent], None],
        *,
        stale: Container[str] = (),
        answered: Iterable[str] = (),
        checkpoints: Callable[[], list[int]] = list,
        on_stop: Callable[[StopReason], None] = lambda _: None,
    ) -> None:
        self._inbox = inbox
        self._put = put
        self._stale = stale
        self._answered = set(answered)
        """Ids and names that are answered: never again, also where the file cannot be taken away."""
        self._names: dict[str, str] = {}
        """What is answered and waits for its answer to be on the disk: by id, its name in the inbox."""
        self.checkpoints = checkpoints
        self._on_stop = on_stop
        self._border = threading.Condition()
        self._pending: dict[str, Pending] = {}
        self._settings: Settings | None = None
        self._next_step = 1
        self._ending = False
        self._stopping: StopReason = ""
        self.due_at = math.inf
        """Until when whoever sent a signal waits, on the monotonic clock, in seconds."""
        self.paused = False
        self._gate_due_at = math.inf
        """Until when an answer is waited for, on the monotonic clock."""
        self._no_answer: AnswerGate | None = None
        """What follows then; None while nothing is asked."""

    @property
    def stopping(self) -> StopReason:
        """Whether, and how urgently, the run was asked to end."""
        return self._stopping

    @property
    def asked(self) -> StopReason:
        """The same, asked in the middle of a window."""
        return self._stopping

    # ------------------------------------------------------------- the training thread's side

    def begin(self, step: int, settings: Settings) -> None:
        """Loading is over: from now on every command is taken; `step` is the first window."""
        with self._border:
            self._next_step = step
            self._settings = settings

    def start_window(self, step: int, settings: Settings) -> bool:
        """Open window `step`; False while commands wait or the run is paused or asked to stop."""
        with self._border:
            if self._pending or self.paused or self._stopping:
                return False
            self._settings = settings
            self._next_step = step + 1
            return True

    def take(self, step: int, settings: Settings, *, at_most_s: float | None = None) -> list[Pending]:
        """The commands to obey before window `step`, oldest first; waits for one while paused.

        `at_most_s`: and no longer than this.
        """
        with self._border:
            self._settings = settings
            self._next_step = step
            while self.paused and not self._pending and not self._stopping and not self._gate_is_due():
                left_s = self._gate_due_at - time.monotonic()
                wait_s = min(left_s, math.inf if at_most_s is None else at_most_s)
                is_over = not self._border.wait(None if wait_s == math.inf else max(0.0, wait_s))
                if is_over and at_most_s is not None:
                    break
            if self._gate_is_due() and "pause" not in self._pending:
                assert self._no_answer is not None
                self._pending["pause"] = Pending(self._no_answer)
            taken = list(self._pending.values())
            self._pending.clear()
            return taken

    def set_paused(self, *, paused: bool) -> None:
        """The loop has obeyed a pause or a resume."""
        with self._border:
            self.paused = paused

    @property
    def leads(self) -> bool:
        """Whether what the trainer itself decides is decided here."""
        return True

    def ask_itself(self, command: Pause | RollBack) -> None:
        """The trainer's own wish, obeyed at the next border as a person's is."""
        with self._border:
            self._pending[_slot(command)] = Pending(command)

    def open_gate(self, minutes: float | None, no_answer: AnswerGate) -> None:
        """An answer is waited for, `minutes` or without end; then `no_answer` is what follows."""
        with self._border:
            self._no_answer = no_answer
            self._gate_due_at = math.inf if minutes is None else time.monotonic() + minutes * 60

    def close_gate(self) -> None:
        """The answer has come, or the time for it is over."""
        with self._border:
            self._no_answer, self._gate_due_at = None, math.inf

    def _gate_is_due(self) -> bool:
        return self._no_answer is not None and time.monotonic() >= self._gate_due_at

    def end(self) -> None:
        """No window will come: what waits, and what still comes, is refused."""
        with self._border:
            self._ending = True
            for pending in self._pending.values():
                self._refuse(pending.command, "run-is-ending")
            self._pending.clear()

    def stop(self, reason: StopReason) -> None:
        """Ask for the end from inside: a signal, a moved run. Safe in a signal's handler: takes no lock."""
        if self._stopping != "stop-now" and (reason != "moved" or not self._stopping):
            self._stopping = reason

    # --------------------------------------------------------------- the writer thread's side

    def tick(self) -> None:
        """Look into the inbox and answer what is there."""
        commands = self._inbox.poll(self._answered)
        if not commands and not self._stopping:
            return
        with self._border:
            for command in commands:
                if self._is_answered(command):
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

    def remove_answered(self) -> None:
        """Take away files that an earlier attempt answered and was killed before it removed them."""
        for name in self._inbox.names():
            if name in self._answered:
                self._inbox.remove(name)

    def _is_answered(self, command: AnyCommand | Malformed) -> bool:
        """Answer one command; False leaves it in the inbox, while the run is loading."""
        if isinstance(command, Malformed):
            self._refuse(command, "malformed", reason=command.reason)
        elif command.id in self._stale:
            self._refuse(command, "stale")
        elif isinstance(command, Stop):
            self._take_stop(command)
        elif self._ending or self._stopping:
            self._refuse(command, "run-is-ending")
        elif self._settings is None:
            return False
        else:
            self._take(command, self._settings)
        return True

    def _take_stop(self, command: Stop) -> None:
        if self._ending or (self._stopping and not command.now) or self._stopping == "stop-now":
            self._refuse(command, "run-is-ending")
            return
        self._accept(command)
        self._stopping = "stop-now" if command.now else "stop"
        self._on_stop(self._stopping)

    def _take(self, command: AnyCommand, settings: Settings) -> None:
        try:
            pending = self._checked(command, settings)
        except _Refusal as refusal:
            self._refuse(command, refusal.code, **refusal.values)
            return
        slot = _slot(command)
        overtaken = list(self._pending) if isinstance(command, RollBack) else [slot]
        for name in overtaken:
            if (earlier := self._pending.pop(name, None)) is not None:
                self._refuse(earlier.command, "superseded")
        self._pending[slot] = pending
        self._accept(command)

    def _checked(self, command: AnyCommand, settings: Settings) -> Pending:  # noqa: C901 - one case a command
        """What a command means now. Raises _Refusal."""
        if "roll-back" in self._pending and not isinstance(command, RollBack):
            raise _Refusal("rolling-back")
        match command:
            case SetAccumulation():
                _check_accumulation(command, settings)
            case SetMicroBatchSize():
                _check("accumulation.micro_batch_size", command.size)
                if command.keep_effective_batch:
                    return Pending(command, _steps_that_keep(self._projected(settings), command.size))
            case SetLearningRate():
                _check("optimizer.learning_rate", command.value)
            case SetMaxGradNorm():
                _check("optimizer.max_grad_norm", command.value)
            case Pause() | Resume():
                self._check_pause(command)
            case RollBack():
                self._check_roll_back(command)
            case AnswerGate():
                if self._no_answer is None:
                    raise _Refusal("no-gate")
            case SaveCheckpoint() | Stop():
                pass
            case _:
                assert_never(command)
        return Pending(command)

    def _check_roll_back(self, command: RollBack) -> None:
        steps = self.checkpoints()
        if not steps or (command.step is not None and command.step not in steps):
            raise _Refusal("no-checkpoint", step=command.step)
        if command.learning_rate_factor is not None and not 0 < command.learning_rate_factor <= 1:
            raise _Refusal(
                "out-of-range", key="learning_rate_factor", value=command.learning_rate_factor,
                message=f"The factor of the learning rate is {command.learning_rate_factor:g}; it must be"
                " above 0 and at most 1.",
            )  # fmt: skip

    def _projected(self, settings: Settings) -> Settings:
        """The settings once the commands that wait have been obeyed."""
        for pending in self._pending.values():
            settings = with_pending(settings, pending)
        return settings

    def _check_pause(self, command: Pause | Resume) -> None:
        waits = self._pending.get("pause")
        will_pause = isinstance(waits.command, Pause) if waits is not None else self.paused
        if isinstance(command, Pause) and will_pause:
            raise _Refusal("already-paused")
        if isinstance(command, Resume) and not will_pause:
            raise _Refusal("not-paused")

    def _accept(self, command: AnyCommand) -> None:
        name = type(command).__name__
        self._put(
            CommandAccepted(
                command_id=command.id, applies_at_step=self._next_step, command=name, asked=command
            )
        )

    def _refuse(self, command: AnyCommand | Malformed, code: str, **values: Scalar) -> None:
        name = "" if isinstance(command, Malformed) else type(command).__name__
        self._put(CommandRefused(command_id=command.id, code=code, values=values, command=name))


def with_pending(settings: Settings, pending: Pending) -> Settings:
    """Micro-batch size and N once `pending` is obeyed (without companions)."""
    match pending.command:
        case SetAccumulation(steps=steps):
            return msgspec.structs.replace(settings, accumulation_steps=steps, world_size=settings.ranks)
        case SetMicroBatchSize(size=size):
            steps = pending.accumulation_steps or settings.accumulation_steps
            return msgspec.structs.replace(settings, micro_batch_size=size, accumulation_steps=steps)
        case _:
            return settings


def _slot(command: AnyCommand) -> str:
    """Commands of one slot overtake each other."""
    match command:
        case SetAccumulation():
            return "accumulation"
        case SetMicroBatchSize():
            return "micro-batch"
        case SetLearningRate():
            return "learning-rate"
        case SetMaxGradNorm():
            return "max-grad-norm"
        case Pause() | Resume() | AnswerGate():
            return "pause"
        case SaveCheckpoint():
            return f"checkpoint {command.id}"  # two saves at one border are one file and two answers
        case RollBack():
            return "roll-back"
        case Stop():
            return "stop"
        case _:
            assert_never(command)


def _check(path: str, value: Scalar) -> None:
    """Hold a value to the recipe's own bounds. Raises _Refusal."""
    section, _, name = path.partition(".")
    problem = check_value(path, value, SECTIONS[section], name)
    if problem is not None:
        raise _Refusal("out-of-range", key=path, value=value, message=problem.message)


def _check_accumulation(command: SetAccumulation, settings: Settings) -> None:
    """N in its bounds, and companions that there is something to scale for. Raises _Refusal."""
    _check("accumulation.gradient_accumulation_steps", command.steps)
    if command.scale_beta2 and settings.beta2 is None:
        raise _Refusal("no-beta2")
    if command.scale_ema and settings.ema_decay is None:
        raise _Refusal("no-ema")


def _steps_that_keep(settings: Settings, size: int) -> int:
    """N that keeps the effective batch at this micro-batch size. Raises _Refusal."""
    steps = settings.steps_that_keep(size)
    if steps is None:
        effective_batch = settings.effective_batch
        below, above = divisible_sizes(effective_batch, size)
        raise _Refusal("not-divisible", effective_batch=effective_batch, size=size, below=below, above=above)
    return steps
