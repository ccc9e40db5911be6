"""Figures of the header: this attempt's own speed, never past 100 %, unknown rather than wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gradacc_gui.derive import (
    Speed,
    effective_batch,
    headline,
    left_s,
    length_of,
    memory_of,
    progress_of,
    speed_of,
    store_speed,
    window_strip,
)
from gradacc_gui.store import RunStore
from tests.support.fake_runs import Plan, continue_run, events, new_run, write_run
from trainer_backend.protocol import (
    DeviceSampled,
    Event,
    HostSampled,
    MicroBatchMeasured,
    OptimizerStepMeasured,
    RunStarted,
)
from trainer_backend.run_facts import RunState


def of(kind: type[Event], plan: Plan) -> list[Any]:
    """All events of one type in a made-up run."""
    return [event for _, event in events(plan) if isinstance(event, kind)]


def read_all(store: RunStore) -> None:
    """Poll until everything is there."""
    for _ in range(1_000):
        store.poll(1.0)
        if store.caught_up and not store.loading_history:
            return
    pytest.fail("the store did not come to the journal's end")


def test_the_effective_batch_is_the_product() -> None:
    """micro-batch x N x world."""
    assert effective_batch(8, 16, 2) == 256


def test_speed_is_the_median_and_one_slow_window_does_not_shake_it() -> None:
    """An evaluation inside a window is no change of speed."""
    speed = speed_of([0.1, 0.1, 30.0], [8, 8, 8], [1024, 1024, 1024])
    assert speed is not None
    assert (speed.samples_per_s, speed.tokens_per_s) == pytest.approx((80, 10_240))


def test_samples_a_second_do_not_change_with_n() -> None:
    """A window of twice the micro-batches takes twice as long."""
    assert speed_of([0.1], [8], [1024]) == speed_of([0.2], [16], [2048])


def test_no_window_gives_no_speed() -> None:
    """Rather than zero or infinity."""
    assert speed_of([], [], []) is None
    assert speed_of([0.0], [8], [8]) is None


def test_after_a_resume_only_the_new_attempt_counts(tmp_path: Path) -> None:
    """Rates and time left do not know the steps from before it."""
    first = Plan(steps=200, micro_batch_s=1.0, gpu=False)
    run = write_run(tmp_path, first)
    second = Plan(steps=20, from_step=100, attempt=2, micro_batch_s=0.01, began_at=first.began_at + 10_000)
    continue_run(run, second)
    store = RunStore(run)
    read_all(store)
    speed = store_speed(store)
    assert speed is not None
    assert speed.samples_per_s == pytest.approx(8 / 0.01, rel=0.1)
    store.close()


def test_before_a_window_is_complete_its_micro_batches_tell_the_speed(tmp_path: Path) -> None:
    """With N = 1,000 the header does not stay empty for minutes."""
    plan = Plan(steps=1, n=1_000)
    run = write_run(tmp_path, plan)
    store = RunStore(run)
    store.poll(0.0)
    store.track(OptimizerStepMeasured).truncate(0)
    assert store_speed(store) is not None
    store.close()


def test_the_strip_shows_the_micro_batch_that_runs() -> None:
    """Two done of four: the third one runs."""
    plan = Plan(steps=3, n=4)
    micro, steps = of(MicroBatchMeasured, plan), of(OptimizerStepMeasured, plan)
    strip = window_strip(steps[1], micro[9], 4)
    assert (strip.step, strip.done, strip.total) == (3, 2, 4)


def test_the_strip_is_empty_between_windows() -> None:
    """The closed window's micro-batches are not shown as the next one's."""
    plan = Plan(steps=2, n=4)
    strip = window_strip(of(OptimizerStepMeasured, plan)[1], of(MicroBatchMeasured, plan)[7], 8)
    assert (strip.step, strip.done, strip.total) == (3, 0, 8)


def test_the_strip_of_a_run_that_is_over_is_full() -> None:
    """Its last window."""
    plan = Plan(steps=2, n=4)
    last = of(OptimizerStepMeasured, plan)[1]
    strip = window_strip(last, of(MicroBatchMeasured, plan)[7], 4, over=True)
    assert (strip.step, strip.done, strip.total) == (2, 4, 4)


def test_progress_is_never_past_the_end() -> None:
    """More samples than asked (a whole window's worth) is still 100 %."""
    started = of(RunStarted, Plan())[0]
    step = of(OptimizerStepMeasured, Plan(steps=3))[2]
    asked = msgspec.structs.replace(started, max_samples=90, max_optimizer_steps=None)
    progress = progress_of(asked, length_of(asked), step, samples_seen=96, window_samples=32)
    assert progress.ratio == 1.0
    assert progress.samples_left == 0.0


def test_progress_in_optimizer_steps_counts_the_open_window() -> None:
    """Samples of the open window are not left to do."""
    started = of(RunStarted, Plan(total_steps=10))[0]
    step = of(OptimizerStepMeasured, Plan(steps=3))[2]
    length = length_of(started)
    progress = progress_of(started, length, step, samples_seen=step.samples_seen + 8, window_samples=32)
    assert progress.ratio == pytest.approx(0.3)
    assert progress.samples_left == 7 * 32 - 8
    assert progress.last_step == 10


@pytest.mark.parametrize(
    ("samples", "steps", "epochs", "tail", "last"),
    [
        (100, None, None, "step", 4),  # 32 + 32 + 32 + 4
        (None, 4, None, "step", 4),
        (None, None, 3, "step", 6),  # 40 an epoch: 32 + 8
        (None, None, 3, "carry", 4),  # 120 in all
        (100, None, None, "carry", 4),
    ],
)
def test_the_last_step_does_not_change_on_the_way_to_it(
    samples: int | None, steps: int | None, epochs: int | None, tail: str, last: int
) -> None:
    """Neither within a window nor at an epoch's short last one: 5,432 never becomes 5,433 and back."""
    per_epoch = 40 if epochs else 1000
    started = msgspec.structs.replace(
        of(RunStarted, Plan())[0], max_samples=samples, max_optimizer_steps=steps, samples_per_epoch=per_epoch
    )
    length = length_of(started, epochs=epochs, tail=tail)
    step, told, seen = None, set(), 0
    for number in range(1, last + 1):
        room = per_epoch - seen % per_epoch if tail == "step" else 32
        sizes = [8] * (min(32, room) // 8)
        for size in sizes:
            told.add(progress_of(started, length, step, samples_seen=seen, window_samples=32).last_step)
            seen += size
        told.add(progress_of(started, length, step, samples_seen=seen, window_samples=32).last_step)
        step = msgspec.structs.replace(
            of(OptimizerStepMeasured, Plan(steps=1))[0], step=number, updates=number, samples_seen=seen
        )
    told.add(progress_of(started, length, step, samples_seen=seen, window_samples=32).last_step)
    assert told == {last}


def test_a_run_without_an_end_has_no_progress() -> None:
    """And no time left."""
    started = msgspec.structs.replace(of(RunStarted, Plan())[0], max_optimizer_steps=None)
    progress = progress_of(started, length_of(started), None, samples_seen=0, window_samples=32)
    assert progress.ratio is None
    assert left_s(progress.samples_left, Speed(samples_per_s=1, tokens_per_s=1)) is None


def test_time_left_is_samples_over_speed() -> None:
    """Unknown while there is no speed."""
    assert left_s(100, Speed(samples_per_s=50, tokens_per_s=1)) == 2.0
    assert left_s(100, None) is None


def test_a_gpu_has_four_memory_lines_and_a_cpu_two() -> None:
    """Told apart by name; nothing is called what it is not."""
    plan = Plan(steps=20)
    device, host = of(DeviceSampled, plan)[0], of(HostSampled, plan)[0]
    codes = [line.code for line in memory_of(device, host).lines]
    assert codes == ["torch-allocated", "torch-reserved", "process", "device"]
    assert [line.code for line in memory_of(None, host).lines] == ["process-rss", "host"]
    assert memory_of(None, None).lines == ()


def test_an_unknown_memory_stays_unknown() -> None:
    """Never 0."""
    device = msgspec.structs.replace(of(DeviceSampled, Plan(steps=20))[0], process_memory_bytes=None)
    assert memory_of(device, None).lines[2].used_bytes is None


def test_the_headline_of_a_finished_run(tmp_path: Path) -> None:
    """All of it, and nothing left to do."""
    run = write_run(tmp_path, Plan(steps=30, total_steps=30, n=2, n_changes={10: 4}, end="finished"))
    store = RunStore(run)
    read_all(store)
    told = headline(store, now=0.0)
    assert told.state is RunState.FINISHED
    assert (told.micro_batch_size, told.accumulation_steps, told.effective_batch) == (8, 4, 32)
    assert told.progress.ratio == 1.0
    assert told.left_s is None
    assert told.strip is not None
    assert told.strip.step == 30
    assert told.elapsed_s == pytest.approx(102 * 0.037, rel=0.1)
    store.close()


def test_the_headline_before_anything_is_written_is_empty(tmp_path: Path) -> None:
    """No number is made up."""
    store = RunStore(new_run(tmp_path, Plan()))
    store.poll()
    told = headline(store, now=0.0)
    assert told.state is RunState.PENDING
    assert told.speed is None
    assert told.effective_batch is None
    store.close()
