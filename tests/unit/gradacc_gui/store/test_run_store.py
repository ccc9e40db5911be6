"""A store follows live, re-attached, resumed, rolled-back and very long runs by one code path."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradacc_gui.series import decimate
from gradacc_gui.store import AXES, Axis, RunStore, View, run_store
from tests.support.fake_runs import BackdatedWriter, Plan, continue_run, events, new_run, write_run
from trainer_backend.protocol import (
    AnyEvent,
    CommandAccepted,
    DeviceSampled,
    EvaluationMeasured,
    MeasurementsLost,
    MicroBatchMeasured,
    OptimizerStepMeasured,
    Paused,
    PhaseEntered,
    Resumed,
    RolledBack,
    Slept,
    Stop,
)
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunState

EVERYWHERE = (-1e18, 1e18)


@pytest.fixture
def opened() -> Iterator[Any]:
    """Opens stores and closes them again."""
    stores: list[RunStore] = []

    def open_store(run: RunDirectory) -> RunStore:
        stores.append(RunStore(run))
        read_all(stores[-1])
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def read_all(store: RunStore) -> None:
    """Poll until everything is there."""
    store._lock_due = 0.0
    for _ in range(5_000):
        store.poll(1.0)
        if store.caught_up and not store.loading_history:
            return
    pytest.fail("the store did not come to the journal's end")


def whole(axis: Axis = "steps", width: int = 700) -> View:
    """All of a run."""
    return View(axis, *EVERYWHERE, width)


def steps_of(store: RunStore) -> list[float]:
    """Numbers of the visible optimizer steps."""
    steps: list[float] = store.track(OptimizerStepMeasured).tail("step", 10**9).tolist()
    return steps


def write(run: RunDirectory, attempt: int, told: list[tuple[float, AnyEvent]]) -> None:
    """Append events of one attempt."""
    writer = BackdatedWriter(run.journal_path, attempt=attempt)
    for at, event in told:
        writer.put_at(at, event)
    writer.close()


# ---------------------------------------------------------------------------------- one attempt


def test_a_run_without_a_journal_is_pending(tmp_path: Path, opened: Any) -> None:
    """Its directory is there, nothing else."""
    store = RunStore(new_run(tmp_path, Plan()))
    store.poll()
    assert store.state is RunState.PENDING
    assert store.problem == ""


def test_every_row_and_every_fact_arrives(tmp_path: Path, opened: Any) -> None:
    """Counted against what was written."""
    plan = Plan(steps=60, n=3)
    store = opened(write_run(tmp_path, plan))
    told = [event for _, event in events(plan)]
    for kind in (MicroBatchMeasured, OptimizerStepMeasured, DeviceSampled, EvaluationMeasured):
        assert len(store.track(kind)) == sum(isinstance(event, kind) for event in told)
    measured = sum(len(store.track(kind)) for kind in store._tracks)
    assert len(store.facts) == len(told) - measured
    assert store.last == len(told)


def test_reading_in_small_slices_gives_the_same(
    tmp_path: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fact that moves the x-axis may lie anywhere in a slice."""
    run = write_run(tmp_path, Plan(steps=40, n_changes={7: 2, 20: 5}))
    at_once = opened(run)
    monkeypatch.setattr(run_store, "READ_EVENTS", 3)
    bit_by_bit = opened(run)
    for kind in at_once._tracks:
        for name in at_once.track(kind).names:
            expected, found = (store.track(kind).tail(name, 10**6) for store in (at_once, bit_by_bit))
            assert np.array_equal(expected, found, equal_nan=True), f"{kind.__name__}.{name}"


def test_micro_batches_lie_inside_their_step(tmp_path: Path, opened: Any) -> None:
    """The last one of a window where the step stands, the others spread before it; under every N."""
    store = opened(write_run(tmp_path, Plan(steps=4, n=2, n_changes={3: 4})))
    x = store.track(MicroBatchMeasured).tail("x_steps", 100).tolist()
    assert x == [0.5, 1, 1.5, 2, 2.25, 2.5, 2.75, 3, 3.25, 3.5, 3.75, 4]


@pytest.mark.parametrize("axis", AXES)
def test_every_line_ascends_on_every_axis(tmp_path: Path, opened: Any, axis: Axis) -> None:
    """No zig-zag, with a resume in between."""
    plan = Plan(steps=60, n_changes={20: 8})
    run = write_run(tmp_path, plan)
    continue_run(
        run, Plan(steps=60, from_step=40, attempt=2, n_changes={20: 8}, began_at=plan.began_at + 9e4)
    )
    store = opened(run)
    for kind, field in (
        (MicroBatchMeasured, "loss"),
        (OptimizerStepMeasured, "loss"),
        (DeviceSampled, "power_watts"),
        (EvaluationMeasured, "loss"),
    ):
        items = store.items(kind, field, whole(axis))
        assert len(items.x) > 1
        assert (np.diff(items.x) >= 0).all()


def test_an_n_change_is_marked_at_the_border_of_the_windows(tmp_path: Path, opened: Any) -> None:
    """On every axis, between the last window under the old N and the first under the new one."""
    store = opened(write_run(tmp_path, Plan(steps=20, n=2, n_changes={11: 4})))
    (mark,) = store.markers.n_changes
    assert (mark.before, mark.after, mark.step) == (2, 4, 11)
    assert (mark.place.steps, mark.place.samples) == (10.0, 160.0)
    assert store.accumulation_steps == 4


def test_pauses_are_left_out_of_active_time(tmp_path: Path, opened: Any) -> None:
    """An hour of pause does not stretch the time axis."""
    plan = Plan(steps=20, n=2)
    told = list(events(plan))
    middle = next(place for place, (_, event) in enumerate(told) if getattr(event, "step", 0) == 11)
    at = told[middle - 1][0]
    pause: list[tuple[float, AnyEvent]] = [(at, Paused(command_id=None, step=10, samples_seen=160))]
    rest: list[tuple[float, AnyEvent]] = [(at + 3600, Resumed(command_id=None, step=10, samples_seen=160))]
    rest += [(then + 3600, event) for then, event in told[middle:]]
    run = new_run(tmp_path, plan)
    write(run, 1, told[:middle] + pause + rest)
    store = opened(run)
    assert store.extent("time")[1] == pytest.approx(40 * 0.037, rel=0.2)
    assert store.active_s(now=at + 9_999) == pytest.approx(40 * 0.037, rel=0.2)


def test_nan_infinity_and_unknown_reach_the_chart(tmp_path: Path, opened: Any) -> None:
    """Each as what it is."""
    run = write_run(tmp_path, Plan(steps=60, nan_steps=(20,), infinite_steps=(30,)))
    trace = decimate(opened(run).items(OptimizerStepMeasured, "loss", whole()), 0, 60, 700)
    assert trace.nan_x.tolist() == [20.0]
    assert trace.posinf_x.tolist() == [30.0]
    reserved = opened(run).items(DeviceSampled, "torch_reserved_bytes", whole())
    assert not reserved.nan.any()


def test_lost_measurements_leave_a_marked_range(tmp_path: Path, opened: Any) -> None:
    """Between the rows around them."""
    plan = Plan(steps=30, n=2, gpu=False, evaluate_every=0, checkpoint_every=0)
    told = list(events(plan))
    run = new_run(tmp_path, plan)
    write(run, 1, told)
    with sqlite3.connect(run.journal_path) as connection:
        connection.execute("DELETE FROM MicroBatchMeasured WHERE step BETWEEN 10 AND 12")
    connection.close()
    steps = [place + 1 for place, (_, event) in enumerate(told) if isinstance(event, MicroBatchMeasured)]
    write(run, 1, [(told[-1][0], MeasurementsLost(first=steps[18], last=steps[23]))])
    (lost,) = opened(run).markers.lost
    assert (lost.begin.steps, lost.end.steps) == (9.0, 12.5)


# ------------------------------------------------------------------------- attempts, roll-backs


def test_a_resume_hides_what_came_after_its_checkpoint(tmp_path: Path, opened: Any) -> None:
    """Steps 41 … 60 of the first attempt are superseded; the charts know each step once."""
    plan = Plan(steps=60, n_changes={50: 8})
    run = write_run(tmp_path, plan)
    store = opened(run)
    assert len(store.markers.n_changes) == 1
    continue_run(run, Plan(steps=10, from_step=40, attempt=2, began_at=plan.began_at + 10_000))
    read_all(store)
    assert steps_of(store) == list(range(1, 51))
    assert store.markers.n_changes == []
    assert [mark.place.steps for mark in store.markers.attempts] == [40.0]
    assert store.attempt == 2


def test_a_store_opened_after_a_resume_shows_the_same(tmp_path: Path, opened: Any) -> None:
    """As one that was there all the time."""
    plan = Plan(steps=60)
    run = write_run(tmp_path, plan)
    before = opened(run)
    for attempt, step in ((2, 40), (3, 20), (4, 45)):
        continue_run(
            run,
            Plan(steps=30, from_step=step, attempt=attempt, began_at=plan.began_at + 10_000 * attempt),
        )
        read_all(before)
    after = opened(run)
    assert steps_of(before) == list(range(1, 76))
    for kind in before._tracks:
        for name in before.track(kind).names:
            expected, found = (store.track(kind).tail(name, 10**6) for store in (before, after))
            assert np.array_equal(expected, found, equal_nan=True), f"{kind.__name__}.{name}"


def test_downtime_is_left_out_of_active_time(tmp_path: Path, opened: Any) -> None:
    """A resume a day later goes on where the checkpoint stood."""
    plan = Plan(steps=40, n=2)
    run = write_run(tmp_path, plan)
    continue_run(run, Plan(steps=40, n=2, from_step=20, attempt=2, began_at=plan.began_at + 86_400))
    assert opened(run).extent("time")[1] == pytest.approx(120 * 0.037, rel=0.4)


def test_a_roll_back_hides_what_came_after_its_checkpoint(tmp_path: Path, opened: Any) -> None:
    """Within one attempt."""
    plan = Plan(steps=30, n=2)
    told = list(events(plan))
    back = (told[-1][0], RolledBack(command_id=None, from_step=30, to_step=10, to_samples=160, to_tokens=1))
    again = [pair for pair in told if getattr(pair[1], "step", 0) > 10]
    run = new_run(tmp_path, plan)
    write(run, 1, [*told, back, *again[: len(again) // 2]])
    steps = steps_of(opened(run))
    assert steps == list(range(1, len(steps) + 1))
    assert 10 < len(steps) < 30


def test_what_is_newest_after_a_roll_back_is_where_the_run_stands_again(tmp_path: Path, opened: Any) -> None:
    """Also after a second one to the same step, and before any step was made again."""
    plan = Plan(steps=30, n=2)
    told = list(events(plan))
    back = (told[-1][0], RolledBack(command_id=None, from_step=30, to_step=10, to_samples=160, to_tokens=1))
    again = [pair for pair in told if 10 < getattr(pair[1], "step", 0) <= 15]
    run = new_run(tmp_path, plan)
    write(run, 1, [*told, back, *again, back])
    store = opened(run)
    assert store.latest[OptimizerStepMeasured].step == 10
    assert (store.latest[MicroBatchMeasured].step, store.latest[MicroBatchMeasured].index) == (10, 1)


def test_a_machine_s_sleep_is_left_out_of_active_time(tmp_path: Path, opened: Any) -> None:
    """A night between two micro-batches stretches neither the axis nor the time spent."""
    plan = Plan(steps=20, n=2)
    told = list(events(plan))
    middle = next(place for place, (_, event) in enumerate(told) if getattr(event, "step", 0) == 11)
    at = told[middle][0] + 28_800
    slept: list[tuple[float, AnyEvent]] = [(at, Slept(duration_s=28_800.0))]
    run = new_run(tmp_path, plan)
    write(run, 1, [*told[:middle], *slept, *((then + 28_800, event) for then, event in told[middle:])])
    store = opened(run)
    assert store.extent("time")[1] == pytest.approx(40 * 0.037, rel=0.2)
    assert store.active_s(now=at + 9_999) == pytest.approx(40 * 0.037, rel=0.3)
    places = store.track(MicroBatchMeasured).tail("x_time", 40)
    assert np.all(np.diff(places) > 0)


def test_time_that_was_spent_is_not_taken_back_with_the_steps(tmp_path: Path, opened: Any) -> None:
    """After a roll-back the axis goes on where the checkpoint stood, and the time spent from where it was."""
    plan = Plan(steps=30, n=2)
    told = list(events(plan))[:-1]
    at = told[-1][0]
    back = (at, RolledBack(command_id=None, from_step=30, to_step=10, to_samples=160, to_tokens=1))
    run = new_run(tmp_path, plan)
    write(run, 1, told)
    before = opened(run)
    spent, place = before.active_s(now=at), before.extent("time")[1]
    write(run, 1, [back])
    after = opened(run)
    assert spent == pytest.approx(60 * 0.037, rel=0.3)
    assert after.active_s(now=at) == pytest.approx(spent)
    assert after.extent("time")[1] == pytest.approx(place / 3, rel=0.3)


def test_time_stands_while_a_paused_run_is_rolled_back(tmp_path: Path, opened: Any) -> None:
    """It stays paused; an hour of waiting is not spent."""
    plan = Plan(steps=30, n=2)
    told = list(events(plan))[:-1]
    at = told[-1][0]
    pause = (at, Paused(command_id=None, step=30, samples_seen=480))
    back = (at + 60, RolledBack(command_id=None, from_step=30, to_step=10, to_samples=160, to_tokens=1))
    run = new_run(tmp_path, plan)
    write(run, 1, [*told, pause])
    spent = opened(run).active_s(now=at + 60)
    write(run, 1, [back])
    assert opened(run).active_s(now=at + 3_600) == pytest.approx(spent)


def test_a_resumed_run_keeps_the_time_of_the_steps_it_makes_again(tmp_path: Path, opened: Any) -> None:
    """Forty steps and then twenty of them and twenty more: eighty steps' time, downtime left out."""
    plan = Plan(steps=40, n=2)
    run = write_run(tmp_path, plan)
    first = opened(run).active_s(now=plan.began_at + 90_000)
    again = Plan(steps=40, n=2, from_step=20, attempt=2, began_at=plan.began_at + 86_400)
    continue_run(run, again)
    assert opened(run).active_s(now=again.began_at + 9_999) == pytest.approx(2 * first, rel=0.2)


def test_a_resume_under_another_n_is_marked(tmp_path: Path, opened: Any) -> None:
    """The curve changes there, so a line says why."""
    plan = Plan(steps=20, n=4)
    run = write_run(tmp_path, plan)
    continue_run(run, Plan(steps=5, n=8, from_step=20, attempt=2, began_at=plan.began_at + 100))
    (mark,) = opened(run).markers.n_changes
    assert (mark.before, mark.after, mark.place.steps) == (4, 8, 20.0)


# ----------------------------------------------------------------------------------- long runs


@pytest.fixture(scope="module")
def written_long_run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of some 30,000 events, resumed in its middle."""
    tmp_path = tmp_path_factory.mktemp("long")
    plan = Plan(
        steps=3_000, n=4, n_changes={700: 2}, spike_steps=(1_234,), nan_steps=(400,), micro_batch_s=0.05
    )
    run = write_run(tmp_path, plan)
    later = Plan(
        steps=2_000, n=4, n_changes={700: 2}, from_step=2_500, attempt=2, began_at=plan.began_at + 1e5,
        infinite_steps=(2_600,), micro_batch_s=0.05, end="finished",
    )  # fmt: skip
    continue_run(run, later)
    return run


@pytest.fixture
def long_run(written_long_run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run far longer than what is opened row by row."""
    monkeypatch.setattr(run_store, "TAIL_EVENTS", 2_000)
    return written_long_run


def test_a_long_run_opens_at_its_end_and_its_past_comes_from_rollups(
    long_run: RunDirectory, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same number of rows, the same sums, the same extremes as when all rows are read."""
    short = opened(long_run)
    monkeypatch.setattr(run_store, "TAIL_EVENTS", 10**9)
    full = opened(long_run)
    assert len(short.track(MicroBatchMeasured)) < len(full.track(MicroBatchMeasured)) / 2
    for kind, field in (
        (MicroBatchMeasured, "loss"),
        (OptimizerStepMeasured, "gradient_norm"),
        (DeviceSampled, "power_watts"),
        (EvaluationMeasured, "loss"),
    ):
        expected, found = full.items(kind, field, whole()), short.items(kind, field, whole())
        assert found.finite.sum() == expected.finite.sum()
        assert found.total.sum() == pytest.approx(expected.total.sum())
        assert np.nanmax(found.hi) == np.nanmax(expected.hi)
        assert np.nanmin(found.lo) == np.nanmin(expected.lo)
    assert short.state is full.state is RunState.FINISHED
    assert short.extent("time")[1] == pytest.approx(full.extent("time")[1])
    assert [mark.place for mark in short.markers.n_changes] == [mark.place for mark in full.markers.n_changes]


@pytest.mark.parametrize("axis", AXES)
def test_the_past_lies_where_its_rows_lie(
    long_run: RunDirectory, opened: Any, monkeypatch: pytest.MonkeyPatch, axis: Axis
) -> None:
    """A spike, a NaN and an infinity of the past are found at their place, on every axis, ascending."""
    short = opened(long_run)
    monkeypatch.setattr(run_store, "TAIL_EVENTS", 10**9)
    full = opened(long_run)
    expected = full.items(OptimizerStepMeasured, "loss", whole(axis))
    found = short.items(OptimizerStepMeasured, "loss", whole(axis))
    assert (np.diff(found.x) >= 0).all()
    near = full.extent(axis)[1] * 0.01
    spike = expected.x[int(np.nanargmax(np.where(expected.x > near * 20, expected.hi, np.nan)))]
    assert found.x[int(np.nanargmax(np.where(found.x > near * 20, found.hi, np.nan)))] == pytest.approx(
        spike, abs=near
    )
    assert found.x[found.nan] == pytest.approx(expected.x[expected.nan], abs=near)
    assert found.x[found.posinf] == pytest.approx(expected.x[expected.posinf], abs=near)


def test_zooming_into_the_past_fetches_its_rows(long_run: RunDirectory, opened: Any) -> None:
    """At full zoom each optimizer step is a point again, hidden ones excepted."""
    store = opened(long_run)
    view = View("steps", 1_200, 1_260, 700)
    assert len(store.items(OptimizerStepMeasured, "loss", view).x) < 50
    store.look_at(view)
    read_all(store)
    items = store.items(OptimizerStepMeasured, "loss", view)
    inside = (items.x >= 1_200) & (items.x <= 1_260)
    assert items.x[inside].tolist() == list(range(1_200, 1_261))
    assert items.hi[inside][34] == items.hi[inside].max()


def test_detail_at_the_border_of_superseded_rows_shows_each_step_once(
    long_run: RunDirectory, opened: Any
) -> None:
    """Rows 2,501 … 3,000 of the first attempt stay hidden at every zoom."""
    store = opened(long_run)
    view = View("steps", 2_450, 2_550, 700)
    store.look_at(view)
    read_all(store)
    items = store.items(OptimizerStepMeasured, "loss", view)
    inside = items.x[(items.x >= 2_450) & (items.x <= 2_550)]
    assert inside.tolist() == list(range(2_450, 2_551))


def test_looking_elsewhere_ends_a_fetch_that_nobody_wants(long_run: RunDirectory, opened: Any) -> None:
    """The newest wish is fetched; the older one is dropped."""
    store = opened(long_run)
    store.look_at(View("steps", 100, 160, 700))
    view = View("steps", 900, 960, 700)
    store.look_at(view)
    read_all(store)
    assert (store.items(OptimizerStepMeasured, "loss", view).finite == 1).sum() >= 60


def test_rows_that_memory_drops_become_history(
    tmp_path: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live run of any length: bounded rows, nothing lost from sight."""
    from gradacc_gui.store import columns

    monkeypatch.setattr(columns, "CHUNK_ROWS", 1_024)
    monkeypatch.setattr(columns, "LARGEST_CHUNKS", 2)
    plan = Plan(steps=1_500, n=4, spike_steps=(77,))
    store = opened(write_run(tmp_path, plan))
    rows = [event.loss or 0.0 for _, event in events(plan) if isinstance(event, MicroBatchMeasured)]
    items = store.items(MicroBatchMeasured, "loss", whole())
    assert len(store.track(MicroBatchMeasured)) <= 2 * 1_024
    assert items.finite.sum() == len(rows)
    assert items.hi.max() == max(rows)
    assert (np.diff(items.x) > 0).all()


# --------------------------------------------------------------------------------------- state


def test_the_states_of_a_live_run(tmp_path: Path) -> None:
    """Loading, running, paused, running, stopping; then interrupted, when its lock is free."""
    run = new_run(tmp_path, Plan())
    store = RunStore(run)
    told = list(events(Plan(steps=3)))
    seen = []

    def look() -> RunState:
        store._lock_due = 0.0
        read_all(store)
        return store.state

    with run.locked():
        write(run, 1, [(1.0, PhaseEntered(phase="importing-torch"))])
        seen.append(look())
        write(run, 1, told)
        seen.append(look())
        write(run, 1, [(2.0, Paused(command_id="p", step=3, samples_seen=96))])
        seen.append(look())
        write(run, 1, [(3.0, Resumed(command_id="r", step=3, samples_seen=96))])
        seen.append(look())
        stop = Stop()
        store.sent(stop)
        write(run, 1, [(4.0, CommandAccepted(command_id=stop.id, applies_at_step=4))])
        seen.append(look())
    seen.append(look())
    assert [str(state) for state in seen] == [
        "loading", "running", "paused", "running", "stopping", "interrupted",
    ]  # fmt: skip
    store.close()


def test_a_stop_that_another_window_asked_for_shows_as_stopping(tmp_path: Path) -> None:
    """Its acceptance says what was accepted; another command's is none."""
    plan = Plan(steps=3, n=2)
    run = new_run(tmp_path, plan)
    told = list(events(plan))[:-1]
    store = RunStore(run)
    seen = []
    with run.locked():
        write(run, 1, [*told, (4.0, CommandAccepted(command_id="a", applies_at_step=4, command="Pause"))])
        read_all(store)
        seen.append(str(store.state))
        write(run, 1, [(5.0, CommandAccepted(command_id="b", applies_at_step=4, command="Stop"))])
        read_all(store)
        seen.append(str(store.state))
    assert seen == ["pausing", "stopping"]
    store.close()


@pytest.mark.parametrize("end", ["finished", "stopped", "failed"])
def test_an_attempt_ends_as_it_says(tmp_path: Path, opened: Any, end: Any) -> None:
    """With the fact at hand."""
    store = opened(write_run(tmp_path, Plan(steps=3, end=end)))
    assert str(store.state) == end
    assert store.state.is_over
    assert store.ended is not None


def test_a_killed_trainer_is_interrupted_and_a_new_one_is_loading(tmp_path: Path) -> None:
    """Even before the new attempt has said a word: another process holds the lock."""
    run = write_run(tmp_path, Plan(steps=3))
    with sqlite3.connect(run.journal_path) as connection:
        body = connection.execute("SELECT body FROM facts WHERE type='RunStarted'").fetchone()[0]
        dead = body.replace(f'"pid": {os.getpid()}', '"pid": 1').replace(f'"pid":{os.getpid()}', '"pid":1')
        assert dead != body
        connection.execute("UPDATE facts SET body=? WHERE type='RunStarted'", (dead,))
    connection.close()
    store = RunStore(run)
    read_all(store)
    assert str(store.state) == "interrupted"
    with run.locked():
        store._lock_due = 0.0
        store.poll()
        assert str(store.state) == "loading"
    store.close()


def test_a_damaged_journal_is_a_sentence(tmp_path: Path) -> None:
    """And no traceback."""
    run = new_run(tmp_path, Plan())
    run.journal_path.write_bytes(b"not a database" * 100)
    store = RunStore(run)
    store.poll()
    assert "damaged" in store.problem
    store.close()


def test_a_poll_without_news_says_so(tmp_path: Path, opened: Any) -> None:
    """So that nothing is drawn."""
    store = opened(write_run(tmp_path, Plan(steps=3)))
    assert store.poll() is False


def test_opening_ten_million_rows_takes_no_longer_than_reading_its_tail(
    long_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in rows, not in seconds: the past is fetched as buckets, never as its rows."""
    store = RunStore(long_run)
    store.poll(0.0)
    assert store.last > run_store.TAIL_EVENTS
    rows = 0

    def counting(sql: str, parameters: Any = ()) -> Any:
        nonlocal rows
        found = original(sql, parameters)
        rows += len(found)
        return found

    reader = store._reader
    assert reader is not None
    original = reader.select
    monkeypatch.setattr(reader, "select", counting)
    began = time.monotonic()
    while store.loading_history and time.monotonic() < began + 60:
        store.poll(1.0)
    assert not store.loading_history
    assert rows < store.last / 10
    store.close()
