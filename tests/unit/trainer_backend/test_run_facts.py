"""What is in force is told by facts, not by what the form or a window asked."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.events import events, optimizer_step
from trainer_backend.protocol import (
    FACTS,
    AccumulationChanged,
    AnyEvent,
    CheckpointSaved,
    CommandAccepted,
    CommandRefused,
    OutOfMemoryRecovered,
    Paused,
    PhaseEntered,
    Record,
    Resumed,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SettingChanged,
)
from trainer_backend.run_facts import RecordedChange, RunFacts, RunState, Stand
from trainer_backend.settings import KEYS, Settings

RATE: Final = KEYS["learning_rate"]
ASKED = Settings(
    accumulation_steps=4,
    micro_batch_size=8,
    learning_rate=1e-3,
    beta2=0.95,
    weight_decay=0.1,
    ema_decay=0.99,
    max_grad_norm=1.0,
)


def started(**values: Any) -> RunStarted:
    """A run that starts with b = 8, N = 4; an older trainer's unless `settings` are given."""
    fields: dict[str, Any] = {
        "name": "r", "pid": 1, "host": "h", "versions": {}, "commit": "", "devices": (), "precision": "fp32",
        "parameters": 10, "micro_batch_size": 8, "accumulation_steps": 4, "world_size": 1,
        "horizon_samples": None, "max_samples": None, "max_optimizer_steps": 100, "samples_per_epoch": None,
        "loss_unit": "token", "gradient_norm_every": 0, "from_step": 0, "from_samples": 0, "from_tokens": 0,
    }  # fmt: skip
    return RunStarted(**(fields | values))


def setting(key: str, after: object, *, step: int = 9) -> SettingChanged:
    """A setting that changed."""
    values = {"command_id": None, "step": step, "key": key, "before": None, "after": after}
    return msgspec.convert(values | {"asked_by": "x", "asked_at": 0.0}, SettingChanged)


def n(after: int, *, step: int = 9) -> AccumulationChanged:
    """N that changed."""
    return AccumulationChanged(command_id=None, step=step, before=4, after=after, asked_by="x", asked_at=0.0)


def saved(step: int) -> CheckpointSaved:
    """A checkpoint."""
    return CheckpointSaved(command_id=None, step=step, samples_seen=0, path="p", size_bytes=1, duration_s=0.1)


def back(to_step: int, settings: dict[str, Any] | None = None) -> RolledBack:
    """The run stands at an earlier step again."""
    return RolledBack(
        command_id=None, from_step=99, to_step=to_step, to_samples=to_step * 32, to_tokens=0,
        settings=settings,
    )  # fmt: skip


class Told:
    """Facts given one after the other."""

    def __init__(self, asked: Settings | None = ASKED) -> None:
        self.facts = RunFacts(asked)
        self.seq = 0

    def take(self, *events: AnyEvent, attempt: int = 1) -> RunFacts:
        """Give facts."""
        for event in events:
            self.seq += 1
            self.facts.take(Record(self.seq, attempt, float(self.seq), event))
        return self.facts

    @property
    def settings(self) -> Settings:
        """What is in force."""
        assert self.facts.settings is not None
        return self.facts.settings


def test_nothing_is_in_force_before_the_run_has_started() -> None:
    """The recipe is a wish; RunStarted is what came of it."""
    assert RunFacts(ASKED).settings is None


def test_changes_follow_one_another() -> None:
    """N, learning rate, clipping taken away, beta2; a key that is no setting here changes nothing."""
    told = Told()
    told.take(started())
    assert told.settings == ASKED
    told.take(n(3), setting(RATE, 2e-3), setting("optimizer.max_grad_norm", None))
    told.take(setting("optimizer.beta2", 0.9025), setting("optimizer.of_tomorrow", 5))
    assert told.settings == msgspec.structs.replace(
        ASKED, accumulation_steps=3, learning_rate=2e-3, max_grad_norm=None, beta2=0.9025
    )


def test_a_split_window_changes_no_setting_by_itself() -> None:
    """The trainer says so where it goes on with smaller micro-batches; 6 does not divide into 8 x 4."""
    told = Told()
    split = OutOfMemoryRecovered(
        step=10, phase="backward", micro_batch_size_before=8, micro_batch_size=6,
        accumulation_steps_before=4, accumulation_steps=6, effective_batch=32, device="cpu",
    )  # fmt: skip
    told.take(started(), split)
    assert told.settings == ASKED
    (change,) = told.facts.changes_ahead(8)
    assert (change.step, change.after) == (10, 6)


def test_an_attempt_begins_with_what_it_says_and_keeps_nothing_of_what_was() -> None:
    """Learning rate 7 after the checkpoint: the next attempt trains with the checkpoint's."""
    told = Told()
    told.take(started(settings=ASKED.by_key()), saved(5), setting(RATE, 7.0, step=6))
    assert told.settings.learning_rate == 7.0
    told.take(started(from_step=5, settings=ASKED.by_key()), attempt=2)
    assert told.settings == ASKED


@pytest.mark.parametrize("asked", [ASKED, None])
def test_an_older_journal_is_told_by_what_was_in_force_at_its_checkpoint(asked: Settings | None) -> None:
    """Its facts say neither at an attempt's begin nor at a roll-back what else was in force."""
    told = Told(asked)
    told.take(started(), setting(RATE, 2.0, step=3), saved(5), setting(RATE, 7.0, step=6), n(9, step=6))
    told.take(started(from_step=5), attempt=2)
    assert (told.settings.learning_rate, told.settings.accumulation_steps) == (2.0, 4)
    told.take(setting(RATE, 8.0, step=6), back(5), attempt=2)
    assert (told.settings.learning_rate, told.settings.accumulation_steps) == (2.0, 4)
    told.take(started(), attempt=3)
    assert told.settings.learning_rate == (1e-3 if asked else None)


def test_a_loop_that_is_not_ours_says_only_what_it_knows() -> None:
    """The recipe's learning rate is not its own."""
    told = Told()
    told.take(started(settings={KEYS["accumulation_steps"]: 4, KEYS["micro_batch_size"]: 8}))
    assert told.settings == Settings(accumulation_steps=4, micro_batch_size=8)


def test_only_checkpoints_that_are_kept_can_be_gone_back_to() -> None:
    """Keep = 2, and those after the step that was rolled back to are gone."""
    told = Told()
    facts = told.take(started(), saved(10), saved(20), saved(30))
    assert (facts.checkpoints(), facts.checkpoints(2)) == ([10, 20, 30], [20, 30])
    assert told.take(back(20)).checkpoints(2) == [10, 20]


def test_facts_tell_where_the_run_stands_and_what_that_supersedes() -> None:
    """Rows of later steps that came before; nothing of an attempt's own."""
    told = Told()
    facts = told.take(started(), saved(5))
    stand = facts.take(Record(50, 1, 50.0, back(5)))
    assert isinstance(stand, Stand)
    assert (stand.step, stand.checkpoint_seq, stand.begins_attempt) == (5, 2, False)
    assert [facts.is_superseded(seq, step) for seq, step in ((40, 6), (40, 5), (60, 6))] == [
        True,
        False,
        False,
    ]
    change = facts.take(Record(51, 1, 51.0, n(2, step=6)))
    assert isinstance(change, RecordedChange)
    assert [facts.accumulation_at(seq) for seq in (0, 1, 50, 51, 99)] == [1, 4, 4, 2, 2]


def test_progress_is_the_newest_row_unless_the_run_went_back_since() -> None:
    """By a roll-back or by an attempt from an earlier checkpoint."""
    told = Told()
    newest = Record(60, 1, 60.0, optimizer_step(60, samples_seen=1920, loss=1.5))
    facts = told.take(started())
    assert facts.progress(None).step == 0  # type: ignore[union-attr]  # it has begun
    progress = facts.progress(newest)
    assert progress is not None
    assert (progress.step, progress.samples_seen, progress.loss) == (60, 1920, 1.5)
    facts.take(Record(61, 2, 61.0, started(from_step=50, from_samples=1600)))
    progress = facts.progress(newest)
    assert progress is not None
    assert (progress.step, progress.samples_seen, progress.loss) == (50, 1600, None)
    assert facts.progress(Record(62, 2, 62.0, optimizer_step(51))).step == 51  # type: ignore[union-attr]  # likewise
    assert RunFacts().progress(None) is None


ENDS: Final[dict[RunState, AnyEvent]] = {
    RunState.FINISHED: RunFinished(step=1, samples_seen=1, reason="x"),
    RunState.STOPPED: RunStopped(step=1, samples_seen=1, reason="x"),
    RunState.FAILED: RunFailed(step=1, samples_seen=1, reason="x"),
}


def test_each_state_is_told_by_facts_and_the_lock() -> None:
    """From a directory without a word to the end; a pause that was overtaken is none."""
    told = Told()

    def state(*events: AnyEvent, alive: bool = True, pid: int = 1, attempt: int = 1) -> RunState:
        return told.take(*events, attempt=attempt).state(alive=alive, pid=pid)

    assert state(alive=False) is RunState.PENDING
    assert state() is RunState.LOADING
    assert state(PhaseEntered(phase="reading-data")) is RunState.LOADING
    assert state(started()) is RunState.RUNNING
    assert state(CommandAccepted(command_id="a", applies_at_step=2, command="Pause")) is RunState.PAUSING
    assert state(CommandRefused(command_id="a", code="superseded", command="Pause")) is RunState.RUNNING
    assert state(CommandAccepted(command_id="b", applies_at_step=2, command="Pause")) is RunState.PAUSING
    assert state(Paused(command_id="b", step=1, samples_seen=1)) is RunState.PAUSED
    assert state(Resumed(command_id="c", step=1, samples_seen=1)) is RunState.RUNNING
    assert state(CommandAccepted(command_id="d", applies_at_step=2, command="Stop")) is RunState.STOPPING
    assert state(alive=False) is RunState.INTERRUPTED
    assert state(pid=2) is RunState.LOADING  # another trainer has the lock, and has not spoken yet
    for attempt, (name, end) in enumerate(ENDS.items(), 2):
        assert state(started(), attempt=attempt) is RunState.RUNNING
        assert state(end, attempt=attempt) is name
        assert state(alive=False, attempt=attempt) is name


@given(st.lists(st.sampled_from(list(FACTS.values())).flatmap(events), max_size=8))
def test_no_fact_breaks_the_fold_whatever_it_says(told: list[AnyEvent]) -> None:
    """A newer version may have settings, and values of them, that this one has not."""
    facts = RunFacts(ASKED)
    for seq, event in enumerate(told, 1):
        facts.take(Record(seq, 1, 0.0, event))
    assert facts.attempt == min(len(told), 1)
    assert isinstance(facts.state(alive=True, pid=None), RunState)
