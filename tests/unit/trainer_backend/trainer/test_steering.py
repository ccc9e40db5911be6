"""The inbox's other end: every command is answered, and the border's number is never wrong."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from trainer_backend.inbox import Inbox, send
from trainer_backend.protocol import (
    AnyCommand,
    AnyEvent,
    CommandAccepted,
    CommandRefused,
    Pause,
    Resume,
    RollBack,
    SaveCheckpoint,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    Stop,
)
from trainer_backend.settings import Settings
from trainer_backend.trainer.steering import Pending, Steering

START = Settings(
    accumulation_steps=4,
    micro_batch_size=8,
    learning_rate=0.01,
    max_grad_norm=1.0,
    weight_decay=0.0,
    beta2=0.95,
    ema_decay=None,
)


class Desk:
    """A steering with an inbox in a folder, and what it said."""

    def __init__(self, folder: Path, *, stale: tuple[str, ...] = (), answered: tuple[str, ...] = ()) -> None:
        self.said: list[AnyEvent] = []
        self.folder = folder / "inbox"
        self.folder.mkdir(exist_ok=True)
        self.steering = Steering(Inbox(self.folder), self.said.append, stale=stale, answered=answered)
        self.steering.checkpoints = lambda: [10, 20]

    def ask(self, *commands: AnyCommand) -> list[str]:
        """Send commands, let the writer's thread look once, and tell the answers' codes in their order."""
        before = len(self.said)
        for command in commands:
            send(self.folder, command)
        self.steering.tick()
        return [_code(fact) for fact in self.said[before:]]

    def write(self) -> None:
        """All that was said is in the journal now."""
        self.steering.committed(list(self.said))

    @property
    def files(self) -> list[str]:
        """What lies in the inbox, by name."""
        return sorted(path.stem for path in self.folder.iterdir())

    def take(self, step: int) -> list[AnyCommand]:
        """The commands that a border obeys."""
        return [pending.command for pending in self.steering.take(step, START)]


def _code(fact: AnyEvent) -> str:
    match fact:
        case CommandAccepted():
            return f"accepted for {fact.applies_at_step}"
        case CommandRefused():
            return fact.code
        case _:
            raise AssertionError(fact)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk whose run stands before window 5."""
    desk = Desk(tmp_path)
    desk.steering.begin(5, START)
    return desk


def test_a_command_before_the_window_applies_to_it_and_after_it_to_the_next(desk: Desk) -> None:
    """Window 5 is not open: 5. It is open: 6."""
    assert desk.ask(SetAccumulation(steps=2)) == ["accepted for 5"]
    assert not desk.steering.start_window(5, START)
    assert [type(command) for command in desk.take(5)] == [SetAccumulation]
    assert desk.steering.start_window(5, START)
    assert desk.ask(SetAccumulation(steps=3)) == ["accepted for 6"]
    assert not desk.steering.start_window(6, START)


def test_an_overtaken_command_is_refused_and_only_the_newest_is_obeyed(desk: Desk) -> None:
    """Three wishes for N at one border: the last holds."""
    assert desk.ask(*(SetAccumulation(steps=steps) for steps in (2, 3, 7))) == [
        "accepted for 5", "superseded", "accepted for 5", "superseded", "accepted for 5",
    ]  # fmt: skip
    assert [command.steps for command in desk.take(5) if isinstance(command, SetAccumulation)] == [7]


def test_settings_of_other_kinds_do_not_overtake_each_other(desk: Desk) -> None:
    """N, size, rate, clip and a save, in the order they were asked for."""
    wishes: list[AnyCommand] = [
        SetAccumulation(steps=2), SetMicroBatchSize(size=4), SetLearningRate(value=0.1),
        SetMaxGradNorm(value=None), SaveCheckpoint(), SaveCheckpoint(),
    ]  # fmt: skip
    assert desk.ask(*wishes) == ["accepted for 5"] * 6
    assert desk.take(5) == wishes


def test_a_size_keeps_the_batch_that_will_hold_by_then(desk: Desk) -> None:
    """N = 2 waits (batch 16), so size 4 needs N = 4; and 5 does not divide it."""
    desk.ask(SetAccumulation(steps=2), SetMicroBatchSize(size=4))
    pending = desk.steering.take(5, START)
    assert [entry.accumulation_steps for entry in pending] == [None, 4]
    assert desk.ask(SetMicroBatchSize(size=5)) == ["not-divisible"]
    refusal = desk.said[-1]
    assert isinstance(refusal, CommandRefused)
    assert refusal.values == {"effective_batch": 32, "size": 5, "below": 4, "above": 8}
    assert desk.ask(SetMicroBatchSize(size=5, keep_effective_batch=False)) == ["accepted for 5"]
    assert desk.steering.take(5, START)[0].accumulation_steps is None


@pytest.mark.parametrize(
    "command",
    [
        SetAccumulation(steps=0), SetAccumulation(steps=-4), SetAccumulation(steps=10**12),
        SetMicroBatchSize(size=0), SetLearningRate(value=-1.0), SetLearningRate(value=float("1e9")),
        SetMaxGradNorm(value=0.0),
    ],
)  # fmt: skip
def test_a_value_out_of_bounds_is_refused_with_the_recipes_sentence(desk: Desk, command: AnyCommand) -> None:
    """The same bounds as in a recipe; nothing waits afterwards."""
    assert desk.ask(command) == ["out-of-range"]
    refusal = desk.said[-1]
    assert isinstance(refusal, CommandRefused)
    assert str(refusal.values["key"]) in str(refusal.values["message"])
    assert desk.steering.start_window(5, START)


def test_pause_and_resume_know_what_waits(desk: Desk) -> None:
    """A resume takes back a pause that is not obeyed yet."""
    assert desk.ask(Resume()) == ["not-paused"]
    assert desk.ask(Pause(), Pause()) == ["accepted for 5", "already-paused"]
    assert desk.ask(Resume()) == ["superseded", "accepted for 5"]
    assert [type(command) for command in desk.take(5)] == [Resume]


def test_a_paused_run_wakes_for_a_command(desk: Desk) -> None:
    """The training thread sleeps at the border until something is asked; it applies at once."""
    desk.steering.set_paused(paused=True)
    taken: list[Pending] = []
    waiting = threading.Thread(target=lambda: taken.extend(desk.steering.take(5, START)))
    waiting.start()
    assert desk.ask(SetLearningRate(value=0.5)) == ["accepted for 5"]
    waiting.join(10)
    assert [type(entry.command) for entry in taken] == [SetLearningRate]
    assert not desk.steering.start_window(5, START)


def test_a_roll_back_sets_aside_what_waits_and_what_comes_after(desk: Desk) -> None:
    """Their window will not come under that number."""
    assert desk.ask(SetAccumulation(steps=2), RollBack(step=10)) == [
        "accepted for 5", "superseded", "accepted for 5",
    ]  # fmt: skip
    assert desk.ask(SetAccumulation(steps=3)) == ["rolling-back"]
    assert [type(command) for command in desk.take(5)] == [RollBack]
    assert desk.ask(RollBack(step=11)) == ["no-checkpoint"]


def test_after_a_stop_only_a_faster_stop_is_taken(desk: Desk) -> None:
    """And every other command is refused: the run is ending."""
    assert desk.ask(Stop()) == ["accepted for 5"]
    assert not desk.steering.start_window(5, START)
    assert desk.ask(Stop(), SetAccumulation(steps=2)) == ["run-is-ending"] * 2
    assert desk.ask(Stop(now=True)) == ["accepted for 5"]
    assert desk.steering.stopping == "stop-now"
    assert desk.ask(Stop(now=True)) == ["run-is-ending"]


def test_what_waits_when_the_run_ends_is_refused(desk: Desk) -> None:
    """It was accepted for a window that will not come; that is said."""
    (command,) = [SetAccumulation(steps=2)]
    desk.ask(command)
    desk.steering.end()
    assert desk.said[-1] == CommandRefused(
        command_id=command.id, code="run-is-ending", command="SetAccumulation"
    )
    assert desk.ask(Pause()) == ["run-is-ending"]


def test_while_loading_only_a_stop_is_answered(tmp_path: Path) -> None:
    """Other commands stay in the inbox until the first window's number is known."""
    desk = Desk(tmp_path)
    assert desk.ask(SetAccumulation(steps=2)) == []
    assert desk.ask(Stop()) == ["accepted for 1"]
    assert desk.ask() == ["run-is-ending"]


def test_what_lay_there_at_the_launch_is_stale_whatever_the_clocks_say(tmp_path: Path) -> None:
    """With the clock set back every command was stale, and no run could be stopped."""
    old = Stop(now=True, asked_at=time.time() + 10**6)
    desk = Desk(tmp_path, stale=(old.id,))
    desk.steering.begin(5, START)
    assert desk.ask(old) == ["stale"]
    assert desk.ask(SetAccumulation(steps=2, asked_at=0.0)) == ["accepted for 5"]


def test_a_file_stays_until_its_answer_is_in_the_journal_and_is_answered_once(desk: Desk) -> None:
    """A kill between the two left no trace of it. A file that is no command is no other."""
    (desk.folder / "x.json").write_text('{"type": "SetAccumulation", "steps": "two"}', encoding="utf-8")
    pause = Pause()
    assert sorted(desk.ask(pause)) == ["accepted for 5", "malformed"]
    assert desk.files == sorted([pause.id, "x"])
    assert desk.ask() == []
    desk.write()
    assert desk.files == []
    send(desk.folder, pause)
    assert desk.ask() == []


def test_what_the_journal_answers_already_is_taken_away_and_not_answered_again(tmp_path: Path) -> None:
    """The attempt before was killed between its answer and the file's removal."""
    pause, other = Pause(), Pause()
    desk = Desk(tmp_path, answered=(pause.id,))
    send(desk.folder, pause)
    send(desk.folder, other)
    desk.steering.remove_answered()
    assert desk.files == [other.id]
    assert desk.ask() == []
    desk.steering.begin(5, START)
    assert desk.ask() == ["accepted for 5"]


def test_an_answer_carries_the_command(desk: Desk) -> None:
    """So that one that was accepted and not obeyed is not lost with the process."""
    command = SetAccumulation(steps=2, asked_by="anna")
    desk.ask(command)
    (answer,) = desk.said
    assert isinstance(answer, CommandAccepted)
    assert answer.asked == command


def test_companions_need_something_to_scale(desk: Desk) -> None:
    """This run has no average of its weights."""
    assert desk.ask(SetAccumulation(steps=2, scale_ema=True)) == ["no-ema"]
