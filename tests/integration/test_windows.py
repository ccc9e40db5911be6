"""Which samples enter which optimizer step, told by the probe's digits (tests/support/probe_task.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradacc_gui.words import warning
from tests.support.trainers import events, make_probe, make_run, merged, run_here, set_recipe
from trainer_backend.protocol import (
    AccumulationChanged,
    CommandAccepted,
    NonFiniteSeen,
    OptimizerStepMeasured,
    OutOfMemoryRecovered,
    RunFailed,
    RunFinished,
    SettingChanged,
    Warned,
)
from trainer_backend.run_directory import RunDirectory, checkpoints_in

TWO_EPOCHS = {"run": {"epochs": 2}}


def digits(run: RunDirectory, *, attempt: int | None = None) -> list[int]:
    """Each window's sum of y: its digits name the samples, since the norm is their mean."""
    steps = events(run, OptimizerStepMeasured, attempt=attempt)
    return [round((step.gradient_norm or 0.0) * step.samples) for step in steps]


def micro_batches(run: RunDirectory) -> list[int]:
    """How many each window had."""
    return [step.micro_batches for step in events(run, OptimizerStepMeasured)]


@pytest.mark.parametrize("iterable", [False, True])
def test_a_short_tail_steps_over_its_own_weight_and_leaks_nothing(tmp_path: Path, iterable: bool) -> None:
    """11 micro-batches an epoch, N = 4, two epochs: windows 4, 4, 3 twice, with a length or without."""
    run = make_probe(tmp_path, TWO_EPOCHS, length=11, iterable=iterable)
    assert run_here(run) == 0
    assert micro_batches(run) == [4, 4, 3, 4, 4, 3]
    assert digits(run) == [1111, 1111_0000, 111_0000_0000] * 2


@pytest.mark.parametrize("iterable", [False, True])
def test_a_carried_tail_goes_on_in_the_next_epoch(tmp_path: Path, iterable: bool) -> None:
    """tail = carry: the window takes its last micro-batches from the next epoch's start."""
    run = make_probe(tmp_path, TWO_EPOCHS, {"accumulation": {"tail": "carry"}}, length=10, iterable=iterable)
    assert run_here(run) == 0
    assert micro_batches(run) == [4] * 5
    assert digits(run) == [1111, 1111_0000, 11_0000_0011, 111100, 1111000000]


@pytest.mark.parametrize("iterable", [False, True])
@pytest.mark.parametrize(
    ("command", "at", "first"),
    [
        ("stop", 6, [1111, 1111_0000]),
        ("stop", 10, [1111, 1111_0000, 11_0000_0011]),
        ("stop-now", 11, [1111, 1111_0000]),
        ("stop-now", 14, [1111, 1111_0000, 11_0000_0011]),
    ],
)
def test_a_carried_tail_survives_a_checkpoint(
    tmp_path: Path, iterable: bool, command: str, at: int, first: list[int]
) -> None:
    """Stopped before, in and behind the window that two epochs share: no window is another for it."""
    carry = {"accumulation": {"tail": "carry"}}
    run = make_probe(
        tmp_path, TWO_EPOCHS, carry, length=10, iterable=iterable, at=at, command=command
    )  # fmt: skip
    assert run_here(run) == 0
    assert digits(run) == first
    set_recipe(run, **{"task.options.at": 0})
    assert run_here(run) == 0
    assert digits(run) == [1111, 1111_0000, 11_0000_0011, 111100, 1111000000]
    assert events(run, RunFinished)[0].samples_seen == 20


@pytest.mark.parametrize(
    ("roomier_at", "sizes", "failures"), [(10, [2, 2, 4, 4], 1), (0, [2, 2, 2, 2], 2), (12, [2, 2, 2, 2], 2)]
)
def test_larger_micro_batches_are_tried_again_on_request(
    tmp_path: Path, roomier_at: int, sizes: list[int], failures: int
) -> None:
    """Memory held 2 samples; 4 are asked for again in the second window: the third has them, if they fit now.

    Where they do not, the window is replayed in 2 once more; the samples and the effective batch are kept.
    """
    run = make_probe(
        tmp_path,
        {"run": {"max_samples": 32}},
        {"accumulation": {"micro_batch_size": 4, "gradient_accumulation_steps": 2}},
        length=100, largest=2, roomier_at=roomier_at, at=7, command="micro-batch", value=4,
    )  # fmt: skip
    assert run_here(run) == 0
    steps = events(run, OptimizerStepMeasured)
    assert [step.micro_batch_size for step in steps] == sizes
    assert [step.micro_batches * step.micro_batch_size for step in steps] == [8] * 4
    assert digits(run) == [sum(10 ** (i % 12) for i in range(start, start + 8)) for start in range(0, 32, 8)]
    assert len(events(run, OutOfMemoryRecovered)) == failures
    asked = [
        (change.before, change.after)
        for change in events(run, SettingChanged)
        if change.asked_by == "the probe"
    ]
    assert asked == [(2, 4)]


@pytest.mark.parametrize("iterable", [False, True])
def test_a_dropped_tail_enters_no_step_and_no_count(tmp_path: Path, iterable: bool) -> None:
    """tail = drop: what is left of an epoch is passed over."""
    run = make_probe(tmp_path, TWO_EPOCHS, {"accumulation": {"tail": "drop"}}, length=11, iterable=iterable)
    assert run_here(run) == 0
    assert digits(run) == [1111, 1111_0000] * 2
    assert events(run, RunFinished)[0].samples_seen == 16


def test_an_epoch_that_never_fills_a_window_is_a_sentence(tmp_path: Path) -> None:
    """tail = drop with fewer samples than one window can never train."""
    run = make_probe(tmp_path, TWO_EPOCHS, {"accumulation": {"tail": "drop"}}, length=3)
    assert run_here(run) == 1
    assert "leaves nothing to train on" in events(run, RunFailed)[0].reason


def test_a_short_last_micro_batch_weighs_by_its_samples(tmp_path: Path) -> None:
    """7 samples in micro-batches of 2: the last one is a single sample, and the mean is over 7."""
    run = make_probe(tmp_path, {"run": {"epochs": 1}}, {"accumulation": {"micro_batch_size": 2}}, length=7)
    assert run_here(run) == 0
    (step,) = events(run, OptimizerStepMeasured)
    assert step.samples == 7
    assert step.gradient_norm == pytest.approx(1111111 / 7, rel=1e-12)


def test_optimizer_steps_are_updates_and_not_micro_batches(tmp_path: Path) -> None:
    """max_optimizer_steps = 5 with N = 3 is 5 updates and 15 micro-batches."""
    run = make_probe(
        tmp_path,
        {"run": {"max_optimizer_steps": 5}, "accumulation": {"gradient_accumulation_steps": 3}},
        length=100,
    )
    assert run_here(run) == 0
    assert micro_batches(run) == [3] * 5
    end = events(run, RunFinished)[0]
    assert (end.step, end.samples_seen, end.reason) == (5, 15, "max_optimizer_steps")


def test_the_run_ends_at_exactly_so_many_samples(tmp_path: Path) -> None:
    """max_samples cuts the last window, and the last micro-batch, short."""
    run = make_probe(
        tmp_path, {"run": {"max_samples": 9}, "accumulation": {"micro_batch_size": 2}}, length=100
    )
    assert run_here(run) == 0
    assert [step.samples for step in events(run, OptimizerStepMeasured)] == [8, 1]
    assert events(run, RunFinished)[0].reason == "max_samples"


@pytest.mark.parametrize(("before", "after"), [(5, 2), (4, 3), (2, 6)])
def test_a_new_n_leaves_the_open_window_alone(tmp_path: Path, before: int, after: int) -> None:
    """Requested inside the second window: that one keeps N, the third has the new one."""
    run = make_probe(
        tmp_path,
        {"run": {"max_samples": 2 * before + 2 * after}},
        {"accumulation": {"gradient_accumulation_steps": before}},
        length=100, at=before + 2, command="accumulation", value=after,
    )  # fmt: skip
    assert run_here(run) == 0
    assert micro_batches(run) == [before, before, after, after]
    (change,) = events(run, AccumulationChanged)
    (accepted,) = events(run, CommandAccepted)
    assert (change.step, change.before, change.after, change.asked_by) == (3, before, after, "the probe")
    assert (accepted.command_id, accepted.applies_at_step) == (change.command_id, 3)
    assert [step.accumulation_steps for step in events(run, OptimizerStepMeasured)] == [before] * 2 + [
        after
    ] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_new_micro_batch_size_neither_loses_nor_repeats_a_sample(tmp_path: Path, workers: int) -> None:
    """Workers have micro-batches of the old size ready; the samples go on where they were, N follows."""
    run = make_probe(
        tmp_path,
        {"run": {"max_samples": 24}, "data": {"num_workers": workers}},
        {"accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 3}},
        length=100, at=2, command="micro-batch", value=3,
    )  # fmt: skip
    assert run_here(run) == 0
    assert digits(run) == [111111, 111111_000000] * 2
    assert micro_batches(run) == [3, 2, 2, 2]
    (changed,) = events(run, SettingChanged)
    assert (changed.key, changed.before, changed.after) == ("accumulation.micro_batch_size", 2, 3)
    (steps,) = events(run, AccumulationChanged)
    assert (steps.step, steps.before, steps.after) == (2, 3, 2)


def test_the_recipes_schedule_of_n_follows_the_samples(tmp_path: Path) -> None:
    """N is 2 from the start, 4 once 4 samples were consumed, 1 once 12 were."""
    points = [{"from_sample": 0, "steps": 2}, {"from_sample": 4, "steps": 4}, {"from_sample": 12, "steps": 1}]
    run = make_probe(tmp_path, {"run": {"max_samples": 14}, "accumulation": {"schedule": points}}, length=100)
    assert run_here(run) == 0
    assert micro_batches(run) == [2, 2, 4, 4, 1, 1]
    assert [(c.step, c.after, c.asked_by) for c in events(run, AccumulationChanged)] == [
        (3, 4, "schedule"), (5, 1, "schedule"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(
    ("warmup", "size", "points"),
    [
        (96, 2, {0: 4, 40: 8, 72: 2}),
        (30, 3, {0: 1, 6: 5, 36: 2}),
        (50, 1, {0: 7, 21: 3, 60: 10}),
    ],
)
def test_the_learning_rate_follows_samples_whatever_n_does(
    tmp_path: Path, kind: str, warmup: int, size: int, points: dict[int, int]
) -> None:
    """Warm-up of 96 samples, b = 2, N = 4 → 8 → 2 on the way: each window's rate is that at its end."""
    schedule = [{"from_sample": sample, "steps": steps} for sample, steps in points.items()]
    run = make_probe(
        tmp_path,
        {"run": {"max_samples": warmup + 24}},
        {"accumulation": {"micro_batch_size": size, "schedule": schedule}},
        {"schedule": {"kind": kind, "warmup_samples": warmup, "samples": 2 * warmup, "final_ratio": 0.0}},
        length=1000,
    )
    assert run_here(run) == 0
    steps = events(run, OptimizerStepMeasured)
    assert {step.accumulation_steps for step in steps} == set(points.values())
    for step in steps:
        assert step.learning_rate == pytest.approx(_expected(kind, step.samples_seen, warmup), rel=1e-12)


def _expected(kind: str, samples: int, warmup: int) -> float:
    if samples <= warmup:
        return samples / warmup
    done = (samples - warmup) / warmup
    import math

    return {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 + 0.5 * math.cos(math.pi * done)}[kind]


def test_a_run_shorter_than_its_warm_up_is_warned_about_and_trains(tmp_path: Path) -> None:
    """A trial of a few steps is what people do with a recipe first."""
    run = make_probe(
        tmp_path, {"run": {"max_optimizer_steps": 2}}, {"schedule": {"kind": "cosine", "warmup_steps": 5}}
    )
    assert run_here(run) == 0
    (warned,) = [event for event in events(run, Warned) if event.code == "warmup-longer-than-run"]
    assert warned.values == {"warmup": 20, "horizon": 8}
    assert "20 samples" in warning(warned)
    assert [step.learning_rate for step in events(run, OptimizerStepMeasured)] == [0.2, 0.4]


def test_a_horizon_that_nobody_knows_is_asked_for(tmp_path: Path) -> None:
    """Epochs over data without a length cannot bend a curve."""
    run = make_probe(tmp_path, TWO_EPOCHS, {"schedule": {"kind": "cosine"}}, length=11, iterable=True)
    assert run_here(run) == 2
    assert "Give schedule.samples" in events(run, RunFailed)[0].reason


@pytest.mark.parametrize(
    ("policy", "expected"), [("skip", [0, 1111_0000]), ("drop", [1101, 1111_0000]), ("halt", [])]
)
def test_a_nan_is_skipped_dropped_or_halts_the_run(tmp_path: Path, policy: str, expected: list[int]) -> None:
    """Micro-batch 2 of 4 is NaN; the window after it is exact."""
    run = make_probe(
        tmp_path, {"run": {"max_samples": 8}, "accumulation": {"non_finite": policy}}, length=100, nan_at=2
    )
    assert run_here(run) == (1 if policy == "halt" else 0)
    steps = events(run, OptimizerStepMeasured)
    norms = [0 if step.skipped else round((step.gradient_norm or 0.0) * step.weight) for step in steps]
    assert norms == expected
    seen = events(run, NonFiniteSeen)
    assert [(fact.step, fact.index, fact.sample_indices) for fact in seen] == [(1, 1, (1,))]
    assert len(events(run, RunFailed)) == (policy == "halt")


def test_a_resumed_run_keeps_the_sequence_of_samples_under_another_n(tmp_path: Path) -> None:
    """Stopped after two windows of 4 (asked in the second); N = 3 in the recipe from then on."""
    run = make_probe(tmp_path, {"run": {"max_samples": 14}}, length=100, at=6, command="stop")
    assert run_here(run) == 0
    set_recipe(run, **{"accumulation.gradient_accumulation_steps": 3, "task.options.at": 0})
    assert run_here(run) == 0
    assert digits(run) == [1111, 1111_0000, 111_0000_0000, 100_000_000_011]
    (change,) = events(run, AccumulationChanged)
    assert (change.step, change.before, change.after, change.asked_by) == (3, 4, 3, "recipe")


def test_a_stop_now_leaves_the_open_window_to_be_replayed(tmp_path: Path) -> None:
    """Asked in the third micro-batch of the second window: its samples are not consumed, and come again."""
    run = make_probe(tmp_path, {"run": {"max_samples": 12}}, length=100, at=7, command="stop-now")
    assert run_here(run) == 0
    assert digits(run) == [1111]
    set_recipe(run, **{"task.options.at": 0})
    assert run_here(run) == 0
    assert digits(run, attempt=2) == [1111_0000, 1111_0000_0000]


def settings(**values: Any) -> dict[str, Any]:
    """A recipe's tables from keys such as optimizer__learning_rate."""
    tables: dict[str, Any] = {}
    for key, value in values.items():
        table, _, name = key.partition("__")
        tables.setdefault(table, {})[name] = value
    return tables


@pytest.mark.parametrize(("decay", "rate", "steps"), [(0.1, 0.5, 1), (0.25, 1.0, 3), (0.01, 0.1, 2)])
def test_weight_decay_and_clipping_act_once_a_window(
    tmp_path: Path, decay: float, rate: float, steps: int
) -> None:
    """Clipped to 1 after averaging: w moves by the rate towards it, and decays once a window."""
    run = make_probe(
        tmp_path,
        settings(
            run__max_optimizer_steps=steps,
            optimizer__weight_decay=decay,
            optimizer__learning_rate=rate,
            optimizer__max_grad_norm=1.0,
        ),
        length=100,
    )
    assert run_here(run) == 0
    expected = 0.0
    for _ in range(steps):
        # SGD adds decay * w to the gradient (-1 after clipping).
        expected -= rate * (-1.0 + decay * expected)
    assert _weight(run) == pytest.approx(expected, rel=1e-12)


def _weight(run: RunDirectory) -> float:
    from trainer_backend.trainer import checkpoint

    newest = list(checkpoints_in(run.checkpoints_path).values())[-1]
    return float(checkpoint.read(newest).model["w"])


def test_the_schedule_of_n_takes_its_companions_along_live_and_says_so(tmp_path: Path) -> None:
    """N 2 to 4 under x kappa: each update is twice as large, and the journal has who changed what."""
    points = [{"from_sample": 0, "steps": 2}, {"from_sample": 4, "effective_batch_size": 4}]
    rules = {"learning_rate_rule": "linear", "decay_rule": "linear"}
    run = make_probe(
        tmp_path, {"run": {"max_samples": 12}, "accumulation": {"schedule": points, **rules}}, length=100
    )
    assert run_here(run) == 0
    steps = events(run, OptimizerStepMeasured)
    assert [(step.micro_batches, step.learning_rate) for step in steps] == [(2, 1), (2, 1), (4, 2), (4, 2)]
    rate = [change for change in events(run, SettingChanged) if change.key == "optimizer.learning_rate"]
    assert [(c.step, c.before, c.after, c.asked_by) for c in rate] == [(3, 1.0, 2.0, "schedule")]


COUNTED = Path(__file__).parent.parent / "support" / "counted_task.py"
BY_TOKENS: dict[str, Any] = {
    "run": {"max_samples": 12, "device": "cpu", "precision": "fp32"},
    "data": {"shuffle": False, "num_workers": 0},
    "accumulation": {"micro_batch_size": 1, "gradient_accumulation_steps": 8, "tokens_per_step": 5},
    "optimizer": {"name": "sgd", "learning_rate": 1.0},
}


def test_a_window_by_tokens_ends_with_the_micro_batch_that_makes_them_enough(tmp_path: Path) -> None:
    """Samples of 1, 2, 3, 1, 2, 3 … tokens, at least 5 a step; the rest of the data is the last."""
    run = make_run(tmp_path, BY_TOKENS, module=COUNTED)
    assert run_here(run) == 0
    steps = events(run, OptimizerStepMeasured)
    assert [(step.micro_batches, step.tokens) for step in steps] == [(3, 6)] * 4
    assert [round(step.gradient_norm * 3) for step in steps if step.gradient_norm] == [
        111, 111_000, 111_000_000, 111_000_000_000,
    ]  # fmt: skip


def test_a_window_by_tokens_has_n_micro_batches_at_most(tmp_path: Path) -> None:
    """Where too few tokens come together, N ends it."""
    at_most = {"accumulation": {"gradient_accumulation_steps": 2}}
    run = make_run(tmp_path, merged(BY_TOKENS, at_most), module=COUNTED)
    assert run_here(run) == 0
    assert [step.tokens for step in events(run, OptimizerStepMeasured)] == [3, 4, 5] * 2


def test_a_window_by_tokens_of_a_task_that_counts_none_is_a_sentence(tmp_path: Path) -> None:
    """What to add to the task is in it."""
    run = make_run(tmp_path, merged(BY_TOKENS, {"task": {"options": {"counts": False}}}), module=COUNTED)
    assert run_here(run) != 0
    assert "does not count them. Give the task a method count(batch)" in events(run, RunFailed)[0].reason
