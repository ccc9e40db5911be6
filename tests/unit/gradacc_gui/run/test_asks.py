"""Commands ask, facts answer: what the window says in between."""

from __future__ import annotations

from gradacc_gui.run.asks import Asks, told
from trainer_backend.protocol import (
    AccumulationChanged,
    AnyEvent,
    CommandAccepted,
    CommandRefused,
    Pause,
    Paused,
    Record,
    SetAccumulation,
)


def records(*events: AnyEvent) -> list[Record]:
    """Events as they are read."""
    return [Record(seq=seq, attempt=1, at=float(seq), event=event) for seq, event in enumerate(events, 1)]


def changed(command: SetAccumulation, step: int) -> AccumulationChanged:
    """The effect of a command."""
    return AccumulationChanged(
        command_id=command.id, step=step, before=8, after=command.steps, asked_by="ada", asked_at=0.0
    )


def test_an_ask_is_told_as_asked_then_from_a_step_then_as_changed() -> None:
    """Three lines, each only once a fact has said so."""
    asks, command = Asks(), SetAccumulation(steps=16)
    asks.sent(command)
    ask = asks.newest(SetAccumulation)
    assert ask is not None
    assert told(ask) == "N = 16 requested; waiting for the trainer"
    assert asks.apply(records(CommandAccepted(command_id=command.id, applies_at_step=125)))
    ask = asks.newest(SetAccumulation)
    assert ask is not None
    assert told(ask, effective=128) == "N = 16 from step 125 · effective batch 128"
    assert ask.is_open
    asks.apply(records(changed(command, 125)))
    ask = asks.newest(SetAccumulation)
    assert ask is not None
    assert told(ask) == "N = 16 since step 125"
    assert not ask.is_open


def test_a_refusal_says_why() -> None:
    """The code is worded."""
    asks, command = Asks(), SetAccumulation(steps=16)
    asks.sent(command)
    asks.apply(records(CommandRefused(command_id=command.id, code="superseded")))
    ask = asks.newest(SetAccumulation)
    assert ask is not None
    assert ask.answer == "refused"
    assert told(ask) == "N = 16 was refused: a later command took its place"


def test_answers_to_other_windows_are_not_taken_for_ours() -> None:
    """Two windows command one run; each shows its own asks as its own."""
    asks, mine, theirs = Asks(), SetAccumulation(steps=3), SetAccumulation(steps=5)
    asks.sent(mine)
    assert not asks.apply(
        records(CommandAccepted(command_id=theirs.id, applies_at_step=9), changed(theirs, 9))
    )
    ask = asks.newest(SetAccumulation)
    assert ask is not None
    assert ask.answer == "asked"


def test_the_newest_ask_of_a_kind_is_the_one_that_is_shown() -> None:
    """An older one that was superseded does not come back."""
    asks, first, second = Asks(), SetAccumulation(steps=3), SetAccumulation(steps=5)
    for command in (first, second):
        asks.sent(command)
    asks.apply(records(CommandRefused(command_id=first.id, code="superseded")))
    ask = asks.newest(SetAccumulation)
    assert ask is not None
    assert ask.command is second


def test_a_pause_is_open_until_the_run_has_paused() -> None:
    """Accepted is not yet paused: the window of micro-batches is finished first."""
    asks, command = Asks(), Pause()
    asks.sent(command)
    asks.apply(records(CommandAccepted(command_id=command.id, applies_at_step=7)))
    ask = asks.newest(Pause)
    assert ask is not None
    assert ask.is_open
    asks.apply(records(Paused(command_id=command.id, step=6, samples_seen=192)))
    ask = asks.newest(Pause)
    assert ask is not None
    assert not ask.is_open


def test_what_is_open_when_the_trainer_ends_will_not_be_answered() -> None:
    """No line says "waiting" for ever."""
    asks, command = Asks(), SetAccumulation(steps=3)
    asks.sent(command)
    asks.abandon()
    ask = asks.newest(SetAccumulation)
    assert ask is not None
    assert ask.answer == "refused"
    assert "ended" in told(ask)
