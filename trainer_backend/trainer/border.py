"""The border between two windows: the only place where a setting changes.

The recipe's schedule of N, what is replayed, and commands, in this order; each change is applied and told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, assert_never

import msgspec

from trainer_backend.engine import WindowResult
from trainer_backend.protocol import (
    AccumulationChanged,
    AnswerGate,
    AnyEvent,
    CommandAccepted,
    GateAnswered,
    Pause,
    Paused,
    Resume,
    Resumed,
    RollBack,
    RolledBack,
    SaveCheckpoint,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    SettingChanged,
    Stop,
    Warned,
)
from trainer_backend.run_facts import CEILING, REPLAY_ENDED
from trainer_backend.settings import (
    FIELDS,
    KEYS,
    Settings,
    differences,
    with_accumulation,
    with_micro_batches,
    with_next_point,
    with_value,
)
from trainer_backend.trainer.assembly import Parts
from trainer_backend.trainer.checkpoints import Checkpoints
from trainer_backend.trainer.gates import Goals, goals_of
from trainer_backend.trainer.incidents import write_incident
from trainer_backend.trainer.ranked_steering import RankedSteering
from trainer_backend.trainer.replay import RecordedChanges
from trainer_backend.trainer.steering import Pending, Steering, with_pending


class Author(msgspec.Struct, frozen=True):
    """Who or what changes a setting."""

    name: str
    asked_at: float
    command_id: str | None = None


class Border:
    """Applies commands to the live objects between windows, and reports their effect."""

    def __init__(
        self,
        parts: Parts,
        checkpoints: Checkpoints,
        steering: Steering | RankedSteering,
        put: Callable[[AnyEvent], None],
        *,
        replay: RecordedChanges,
        owed: Sequence[CommandAccepted] = (),
        goals: Goals | None = None,
    ) -> None:
        self._gates, self._evaluations = goals or goals_of(parts.config, put)
        self._parts = parts
        self._config = parts.config
        self._engine = parts.accumulator
        self._checkpoints = checkpoints
        self._steering = steering
        self._put = put
        self._replay = replay
        self._owed = list(owed)
        """Settings that were accepted before a kill and not obeyed."""
        self._recovered = False
        self._split: int | None = None
        """The micro-batch size that the coming window is split to, as it was before the interruption."""

    @property
    def settings(self) -> Settings:
        """The settings that the next window will use."""
        return self._parts.settings

    def cross(self) -> None:
        """Obey what was asked, and wait while paused; the next window's number is settled here."""
        step = self._engine.step + 1
        self._follow_schedule(step)
        self._replay_changes(step)
        self._obey_owed(step)
        self._judge_targets()
        while not self._steering.start_window(step, self.settings):
            for pending in self._steering.take(step, self.settings):
                self._obey(pending, step)
                step = self._engine.step + 1
            if self._steering.stopping:
                return

    def _obey(self, pending: Pending, step: int) -> None:  # noqa: C901 - one case a command
        command = pending.command
        author = Author(command.asked_by, command.asked_at, command.id)
        match command:
            case SetAccumulation():
                after = with_accumulation(self.settings, command)
                self._change(after, author, step, always=KEYS["accumulation_steps"])
            case SetMicroBatchSize():
                self._allow(command.size)
                after = with_pending(self.settings, pending)
                self._change(after, author, step, always=KEYS["micro_batch_size"])
            case SetLearningRate():
                after = msgspec.structs.replace(self.settings, learning_rate=command.value)
                self._change(after, author, step, always=KEYS["learning_rate"])
            case SetMaxGradNorm():
                after = msgspec.structs.replace(self.settings, max_grad_norm=command.value)
                self._change(after, author, step, always=KEYS["max_grad_norm"])
            case Pause():
                self._steering.set_paused(paused=True)
                self._put(
                    Paused(command_id=command.id, step=step - 1, samples_seen=self._engine.samples_seen)
                )
            case Resume() if self._gates.open is not None:
                self._answer("continue", "", author)
            case Resume():
                self._resume(author)
            case AnswerGate():
                self._answer(command.answer, command.reason, author)
            case SaveCheckpoint():
                self._checkpoints.save(self._parts, command_id=command.id)
            case RollBack():
                self._roll_back_as_asked(command, author)
            case Stop():
                raise AssertionError("a stop is no setting")
            case _:
                assert_never(command)

    def _allow(self, size: int) -> None:
        """A person asks for larger micro-batches again after an out-of-memory: try them."""
        ceiling = self._engine.micro_batch_ceiling
        if ceiling is not None and size > ceiling:
            self._engine.micro_batch_ceiling = self._split = None

    def _change(self, after: Settings, author: Author, step: int, *, always: str = "") -> None:
        """Make `after` the settings from window `step` on, and say what changed; `always`, this key."""
        if author.command_id is not None:
            self._leave_replay(step)
            self._checkpoints.save_before_change(self._parts)
        before = self.settings
        apply(self._parts, after)
        self._announce(before, after, author, step, always=always)

    def _announce(
        self, before: Settings, after: Settings, author: Author, step: int, *, always: str = ""
    ) -> None:
        changed = differences(before, after)
        if always:  # every command's effect is a fact, also where it changes nothing
            value = getattr(after, FIELDS[always])
            changed = {always: (value, value)} | changed
        if before.micro_batches != after.micro_batches:  # also where only the ranks that N is for are others
            changed.setdefault(
                KEYS["accumulation_steps"], (before.accumulation_steps, after.accumulation_steps)
            )
        for key, (old, new) in changed.items():
            if key == KEYS["accumulation_steps"]:
                assert isinstance(old, int)
                assert isinstance(new, int)
                self._put(
                    AccumulationChanged(
                        command_id=author.command_id, step=step, before=old, after=new,
                        asked_by=author.name, asked_at=author.asked_at,
                        samples_seen=self._engine.samples_seen, micro_batches=after.micro_batches,
                    )
                )  # fmt: skip
            else:
                self._put(
                    SettingChanged(
                        command_id=author.command_id, step=step, key=key, before=old, after=new,
                        asked_by=author.name, asked_at=author.asked_at,
                        samples_seen=self._engine.samples_seen,
                    )
                )  # fmt: skip

    def _follow_schedule(self, step: int) -> None:
        """The recipe's schedule of N, by samples or tokens consumed, with its companions."""
        points = self._config.accumulation.schedule
        reached = self.settings.schedule_points
        samples, tokens = self._engine.samples_seen, self._engine.tokens_seen
        while reached < len(points) and points[reached].is_reached(samples, tokens):
            after = with_next_point(self.settings, self._config)
            self._change(after, Author("schedule", time.time()), step)
            reached += 1

    def _replay_changes(self, step: int) -> None:
        """What was changed here before the run was interrupted."""
        for change in self._replay.take(step):
            if change.key == CEILING:
                assert isinstance(change.after, int)
                self._engine.micro_batch_ceiling = self._split = change.after
            else:
                if change.key == KEYS["micro_batch_size"]:
                    assert isinstance(change.after, int)
                    self._allow(change.after)
                after = with_value(self.settings, change.key, change.after)
                if change.key == KEYS["accumulation_steps"]:
                    many = change.micro_batches or after.accumulation_steps * after.ranks
                    after = with_micro_batches(after, many)
                self._change(after, Author(change.asked_by, time.time()), step)

    def _obey_owed(self, step: int) -> None:
        """What was accepted before the run was interrupted takes effect where its answer said it would."""
        due = [fact for fact in self._owed if fact.applies_at_step <= step]
        self._owed = [fact for fact in self._owed if fact.applies_at_step > step]
        for fact in due:
            command, steps = fact.asked, None
            assert command is not None
            if isinstance(command, SetMicroBatchSize) and command.keep_effective_batch:
                steps = self.settings.steps_that_keep(command.size)
            self._obey(Pending(command, steps), step)

    def _leave_replay(self, step: int) -> None:
        """A new wish: from here on the windows are others than those that were recorded."""
        if self._replay:
            self._replay.clear()
            self._put(Warned(code=REPLAY_ENDED, values={"step": step}))

    # ------------------------------------------------------------------------------ targets

    def _judge_targets(self) -> None:
        """Ask for what the recipe chose for each target that was missed just now."""
        if not self._steering.leads:
            return
        for target in self._gates.judge(self._engine.step, self._engine.samples_seen):
            if self._gates.open is not None:
                return
            if target.act == "roll-back" and target.key not in self._gates.rolled_back:
                self._gates.rolled_back.add(target.key)
                self._gates.cause = target.key
                self._steering.ask_itself(self._way_back())
            elif target.act in ("pause", "roll-back"):  # going back once did not help: a person decides
                self._gates.open = target
                no_answer = AnswerGate(answer=self._config.targets.no_answer, asked_by="timeout")
                self._steering.open_gate(self._config.targets.pause_minutes, no_answer)
                self._steering.ask_itself(Pause(asked_by="target"))
            elif target.act == "stop":
                self._steering.stop("target")

    def _way_back(self) -> RollBack:
        """How the recipe wants to go back when a target is missed."""
        asked = self._config.targets
        return RollBack(
            asked_by="target",
            best=True,
            skip_samples=asked.roll_back == "skip-samples",
            learning_rate_factor=asked.roll_back_factor if asked.roll_back == "lower-rate" else None,
        )

    def _answer(self, answer: Literal["continue", "stop", "roll-back"], reason: str, author: Author) -> None:
        """A paused run's question is answered: by a person, or because nobody did in time."""
        target, self._gates.open = self._gates.open, None
        key = "" if target is None else target.key  # only where it was judged is known what was asked
        self._steering.close_gate()
        self._put(
            GateAnswered(
                command_id=author.command_id,
                step=self._engine.step,
                key=key,
                answer=answer,
                reason=reason,
                asked_by=author.name,
                asked_at=author.asked_at,
            )
        )
        match answer:
            case "continue":
                self._gates.overridden.add(key)
                self._resume(author)
            case "stop":
                if self._steering.leads:
                    self._steering.stop("target")
            case "roll-back":
                self._gates.cause = key
                self._resume(author)
                self._roll_back_as_asked(self._way_back(), Author("target", time.time()))
            case _:
                assert_never(answer)

    def _resume(self, author: Author) -> None:
        self._steering.set_paused(paused=False)
        engine = self._engine
        self._put(Resumed(command_id=author.command_id, step=engine.step, samples_seen=engine.samples_seen))

    # ---------------------------------------------------------------------------- going back

    def _roll_back_as_asked(self, command: RollBack, author: Author) -> None:
        """Go back; then leave out samples, or lower the learning rate, as is asked."""
        cause, self._gates.cause = self._gates.cause, ""
        step = command.step
        if step is None and command.best:
            step = self._checkpoints.best_step()
        position = self._parts.stream.position
        if not self._roll_back(step, author, cause=cause, skips=command.skip_samples):
            if cause:
                self._put(Warned(code="no-way-back", values={"key": cause}))
            return
        if command.skip_samples:
            here = self._parts.stream.position
            self._parts.stream.position = msgspec.structs.replace(position, consumed=here.consumed)
        if command.learning_rate_factor is not None and self.settings.learning_rate is not None:
            rate = self.settings.learning_rate * command.learning_rate_factor
            after = msgspec.structs.replace(self.settings, learning_rate=rate)
            before = self.settings
            apply(self._parts, after)
            self._announce(before, after, author, self._engine.step + 1)
        if command.skip_samples or command.learning_rate_factor is not None:
            self._checkpoints.forget_saved()  # a kill from here on goes on from this, not from before it
            self._checkpoints.save(self._parts)

    def _incident(self, author: Author, cause: str, from_step: int, left_out: int, before: Settings) -> str:
        """Write down what led back to an earlier step; gives the file, relative to the run."""
        if not self._steering.leads:
            return ""
        engine = self._engine
        self._checkpoints.flush_journal()
        return write_incident(
            self._checkpoints.run,
            from_step,
            {
                "what": "rolled-back",
                "cause": cause,
                "from_step": from_step,
                "to_step": engine.step,
                "decided": {"by": author.name, "at": author.asked_at, "command_id": author.command_id},
                "samples": {"to": engine.samples_seen, "left_out": left_out},
                "settings_before": before.by_key(),
                "settings_after": self.settings.by_key(),
            },
        )

    def _roll_back(
        self, to_step: int | None, author: Author, *, cause: str = "", skips: bool = False
    ) -> bool:
        """Stand at an earlier checkpoint again, everything as it was there; False when none is good."""
        before, from_step, from_samples = self.settings, self._engine.step, self._engine.samples_seen
        self._replay.clear()
        self._split = None
        if not self._checkpoints.roll_back(self._parts, to_step):
            return False
        engine = self._engine
        self._evaluations.go_back(engine.step)
        left_out = max(0, from_samples - engine.samples_seen) if skips else 0
        incident = self._incident(author, cause, from_step, left_out, before)
        self._put(
            RolledBack(
                command_id=author.command_id,
                from_step=from_step,
                to_step=engine.step,
                to_samples=engine.samples_seen,
                to_tokens=engine.tokens_seen,
                settings=self.settings.by_key(),
                cause=cause,
                samples_left_out=left_out,
                incident=incident,
            )
        )
        self._announce(before, self.settings, author, engine.step + 1)
        return True

    def recover_step(self) -> bool:
        """After an update that ran out of memory half-way: from the last good checkpoint, once.

        From then on the optimizer updates one tensor at a time, which needs no temporary of them all.
        """
        if self._recovered or not self._roll_back(None, Author("out-of-memory", time.time())):
            return False
        self._recovered = True
        for group in self._engine.optimizer.param_groups:
            if "foreach" in group:
                group["foreach"] = False
        return True

    def keep_ceiling(self, result: WindowResult) -> None:
        """After an out-of-memory: smaller micro-batches from now on, N so that the batch is kept."""
        size, self._split = self._split, None  # the kill may have come before these were recorded
        if result.out_of_memory:
            size = result.out_of_memory[-1].micro_batch_size
        if size is None:
            return
        settings = self.settings
        steps = settings.steps_that_keep(size)
        if size < settings.micro_batch_size and steps is not None:
            after = msgspec.structs.replace(settings, micro_batch_size=size, accumulation_steps=steps)
            self._change(after, Author("out-of-memory", time.time()), result.step + 1)


def apply(parts: Parts, after: Settings) -> None:
    """Bring settings to the engine and the optimizer."""
    before, engine = parts.settings, parts.accumulator
    parts.settings = after
    engine.max_grad_norm = after.max_grad_norm
    if after.ema_decay is not None and engine.ema_decay is not None:
        engine.ema_decay = after.ema_decay
    decay = after.weight_decay if after.weight_decay != before.weight_decay else None
    for group, share in zip(engine.optimizer.param_groups, parts.decay_shares, strict=True):
        if after.beta2 is not None and "betas" in group:
            group["betas"] = (group["betas"][0], after.beta2)
        if decay is not None and "weight_decay" in group:
            group["weight_decay"] = share * decay
