"""Which recorded changes are made again after a checkpoint."""

from __future__ import annotations

from trainer_backend.protocol import (
    AccumulationChanged,
    AnyEvent,
    OutOfMemoryRecovered,
    Record,
    RolledBack,
    SettingChanged,
    Warned,
)
from trainer_backend.run_facts import CEILING, REPLAY_DECLINED, REPLAY_ENDED, RunFacts
from trainer_backend.settings import STEPS
from trainer_backend.trainer.replay import RecordedChanges, ReplayedSetting

RATE = "optimizer.learning_rate"


def n(step: int, after: int) -> AccumulationChanged:
    """N is `after` from window `step` on."""
    return AccumulationChanged(command_id="c", step=step, before=1, after=after, asked_by="a", asked_at=0.0)


def rate(step: int, after: float) -> SettingChanged:
    """The learning rate is `after` from window `step` on."""
    return SettingChanged(
        command_id="c", step=step, key=RATE, before=0.1, after=after, asked_by="a", asked_at=0.0
    )


def changes(*events: AnyEvent, after_step: int) -> list[ReplayedSetting]:
    """What is made again of a journal with these facts."""
    records = [Record(seq, 1, 0.0, event) for seq, event in enumerate(events, 1)]
    return ahead(records, after_step)


def ahead(
    records: list[Record], after_step: int, place: tuple[int, int] | None = None
) -> list[ReplayedSetting]:
    """What is ahead of a checkpoint."""
    found = RunFacts().take_all(records).changes_ahead(after_step, place)
    return [ReplayedSetting(change.step, change.key, change.after) for change in found]


def test_changes_before_the_checkpoint_are_in_it() -> None:
    """Those of later windows are made again, in their order."""
    assert changes(n(3, 2), rate(9, 0.5), n(12, 8), after_step=8) == [
        ReplayedSetting(9, RATE, 0.5),
        ReplayedSetting(12, STEPS, 8),
    ]


def test_what_the_checkpoints_own_attempt_recorded_before_it_is_in_it() -> None:
    """Also for the window behind it, as when N was changed while paused and then saved."""
    facts: list[AnyEvent] = [n(9, 2), rate(9, 0.5), n(9, 8)]
    records = [Record(seq, 2, 0.0, fact) for seq, fact in enumerate(facts, 5)]
    assert ahead(records, 8, (2, 5)) == [
        ReplayedSetting(9, RATE, 0.5),
        ReplayedSetting(9, STEPS, 8),
    ]
    assert ahead(records, 8, (2, 7)) == []


def test_what_earlier_attempts_recorded_for_later_windows_is_still_ahead_of_a_checkpoint() -> None:
    """Attempt 2 saved window 12 on its way to the change at 15; that at 13 it made, and saved, itself."""
    records = [Record(4, 1, 0.0, n(13, 3)), Record(5, 1, 0.0, n(15, 2)), Record(9, 2, 0.0, n(13, 5))]
    assert ahead(records, 12, (2, 9)) == [ReplayedSetting(15, STEPS, 2)]


def test_the_schedules_own_changes_are_left_to_it() -> None:
    """They come again at the same samples by themselves."""
    fact = AccumulationChanged(command_id=None, step=9, before=1, after=4, asked_by="schedule", asked_at=0.0)
    assert changes(fact, rate(9, 0.5), after_step=8) == [ReplayedSetting(9, RATE, 0.5)]


def test_a_second_attempt_that_made_them_again_adds_nothing() -> None:
    """The same change told twice is one; a later word at the same window replaces an earlier."""
    assert changes(n(9, 2), n(9, 2), after_step=8) == [ReplayedSetting(9, STEPS, 2)]
    assert changes(n(9, 2), n(9, 5), after_step=8) == [ReplayedSetting(9, STEPS, 5)]


def test_a_roll_back_voids_what_came_after_its_step() -> None:
    """The windows behind it were never trained from there."""
    back = RolledBack(command_id=None, from_step=20, to_step=10, to_samples=0, to_tokens=0)
    assert changes(n(9, 2), n(15, 3), back, rate(12, 0.5), after_step=8) == [
        ReplayedSetting(9, STEPS, 2),
        ReplayedSetting(12, RATE, 0.5),
    ]


def test_a_replay_that_was_left_or_declined_voids_the_rest() -> None:
    """From its step on the run went another way."""
    assert changes(n(9, 2), n(15, 3), Warned(code=REPLAY_ENDED, values={"step": 12}), after_step=8) == [
        ReplayedSetting(9, STEPS, 2)
    ]
    assert changes(n(9, 2), Warned(code=REPLAY_DECLINED, values={"step": 9}), after_step=8) == []


def test_a_window_that_ran_out_of_memory_is_split_again() -> None:
    """The ceiling holds from that window on."""
    fact = OutOfMemoryRecovered(
        step=9, phase="forward", micro_batch_size_before=8, micro_batch_size=4,
        accumulation_steps_before=2, accumulation_steps=4, effective_batch=16, device="cpu",
    )  # fmt: skip
    assert changes(fact, after_step=8) == [ReplayedSetting(9, CEILING, 4)]


def test_changes_are_taken_at_their_window() -> None:
    """Each once; a cleared replay gives nothing."""
    replay = RecordedChanges([ReplayedSetting(12, STEPS, 8), ReplayedSetting(9, STEPS, 2)])
    assert replay.take(8) == []
    assert replay.take(9) == [ReplayedSetting(9, STEPS, 2)]
    assert replay.take(9) == []
    replay.clear()
    assert not replay
    assert replay.take(12) == []
