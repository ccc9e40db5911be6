"""The learning rate over samples: warm-up, curves, the horizon."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import transformers.optimization as theirs
from hypothesis import given
from hypothesis import strategies as st

from trainer_backend.config import RunConfig
from trainer_backend.config_check import check
from trainer_backend.errors import UsageError
from trainer_backend.schedule import horizon_of, schedule_of
from trainer_backend.schedule_curves import CURVES, Schedule


def config(**tables: dict[str, Any]) -> RunConfig:
    """A checked configuration."""
    steps = {"gradient_accumulation_steps": 4}
    checked = check({"run": {"epochs": 3}, "accumulation": steps} | tables)
    assert isinstance(checked, RunConfig), checked
    return checked


def test_warm_up_rises_from_zero_to_the_peak() -> None:
    """Half-way through the warm-up is half the peak, at its end the peak."""
    schedule = Schedule(kind="cosine", warmup_samples=100, horizon_samples=300, final_ratio=0.1)
    assert schedule.ratio(1) == pytest.approx(0.01)
    assert schedule.ratio(50) == pytest.approx(0.5)
    assert schedule.ratio(100) == 1.0


@pytest.mark.parametrize(("kind", "middle"), [("cosine", 0.55), ("linear", 0.55), ("constant", 1.0)])
def test_curves_pass_their_middle_and_end_at_the_final_ratio(kind: Any, middle: float) -> None:
    """Half-way a curve stands between peak and end; behind the horizon it is flat."""
    schedule = Schedule(kind=kind, warmup_samples=100, horizon_samples=300, final_ratio=0.1)
    end = 1.0 if kind == "constant" else 0.1
    assert schedule.ratio(200) == pytest.approx(middle)
    assert schedule.ratio(300) == pytest.approx(end)
    assert schedule.ratio(10_000) == pytest.approx(end)


@given(
    kind=st.sampled_from(sorted(CURVES)),
    warmup=st.integers(0, 500),
    length=st.integers(0, 500),
    final=st.floats(0, 1),
    samples=st.integers(1, 2000),
)
def test_the_ratio_stays_between_zero_and_one(
    kind: Any,
    warmup: int,
    length: int,
    final: float,
    samples: int,
) -> None:
    """For any lengths, also where nothing is left after the warm-up."""
    schedule = Schedule(
        kind=kind,
        warmup_samples=warmup,
        horizon_samples=warmup + length,
        final_ratio=final,
        timescale_samples=warmup or 100,
        milestones=(50, 500),
    )
    ratio = schedule.ratio(samples)
    assert math.isfinite(ratio)
    assert 0.0 <= ratio <= 1.0 + 1e-12
    if samples >= warmup and CURVES[kind].needs_end:
        assert ratio >= final - 1e-12


def test_the_horizon_is_what_is_given_else_the_runs_own_length() -> None:
    """schedule.samples, max_samples, epochs by length, steps by the first effective batch."""
    assert horizon_of(config(schedule={"samples": 77}), 10) == 77
    assert horizon_of(config(run={"max_samples": 50}), 10) == 50
    assert horizon_of(config(), 10) == 30
    assert horizon_of(config(run={"max_optimizer_steps": 5}), None) == 5 * 4 * 8
    assert horizon_of(config(), None) is None
    with pytest.raises(UsageError, match=r"Give schedule\.samples"):
        horizon_of(config(schedule={"kind": "linear"}), None)


BATCH = 32
STEPS = 200


def their_ratios(kind: str, warmup: int, **options: Any) -> list[float]:
    """transformers' values over the peak at steps 0, 1, … of `STEPS`, and a few behind."""
    lengths = {"num_warmup_steps": warmup, "num_training_steps": STEPS}
    match kind:
        case "constant":
            value = partial(theirs._get_constant_schedule_with_warmup_lr_lambda, num_warmup_steps=warmup)
        case "linear":
            value = partial(theirs._get_linear_schedule_with_warmup_lr_lambda, **lengths)
        case "cosine":
            value = partial(theirs._get_cosine_schedule_with_warmup_lr_lambda, **lengths, **options)
        case "cosine-restarts":
            value = partial(
                theirs._get_cosine_with_hard_restarts_schedule_with_warmup_lr_lambda, **lengths, **options
            )
        case "polynomial":
            value = partial(theirs._get_polynomial_decay_schedule_with_warmup_lr_lambda, **lengths, **options)
        case "inverse-sqrt":
            value = partial(theirs._get_inverse_sqrt_schedule_lr_lambda, num_warmup_steps=warmup, **options)
        case "wsd":
            decay = options["num_decay_steps"]
            value = partial(
                theirs._get_wsd_scheduler_lambda,
                num_warmup_steps=warmup,
                num_stable_steps=STEPS - warmup - decay,
                warmup_type="linear",
                num_cycles=0.5,
                **options,
            )
        case _:
            raise AssertionError(kind)
    return [value(step) for step in range(STEPS + 1)]


@pytest.mark.parametrize("warmup", [0, 1, 7, 60])
@pytest.mark.parametrize(
    ("kind", "ours", "options"),
    [
        ("constant", {}, {}),
        ("linear", {"final_ratio": 0.0}, {}),
        ("cosine", {"final_ratio": 0.0}, {"num_cycles": 0.5}),
        ("cosine", {"final_ratio": 0.0, "cycles": 1.5}, {"num_cycles": 1.5}),
        ("cosine", {"final_ratio": 0.1}, {"num_cycles": 0.5, "min_lr_rate": 0.1}),
        ("cosine-restarts", {"final_ratio": 0.0}, {"num_cycles": 1}),
        ("cosine-restarts", {"final_ratio": 0.0, "cycles": 3}, {"num_cycles": 3}),
        (
            "polynomial",
            {"final_ratio": 1e-4, "power": 1.0},
            {"lr_init": 1e-3, "lr_end": 1e-7, "power": 1.0},
        ),
        ("polynomial", {"final_ratio": 0.25, "power": 2.0}, {"lr_init": 1.0, "lr_end": 0.25, "power": 2.0}),
        ("inverse-sqrt", {}, {"timescale": None}),
        ("inverse-sqrt", {"timescale_samples": 90 * BATCH}, {"timescale": 90}),
        *(
            (
                "wsd",
                {"final_ratio": 0.0, "decay_ratio": 0.2, "decay_shape": shape},
                {"num_decay_steps": 40, "decay_type": shape, "min_lr_ratio": 0.0},
            )
            for shape in ("linear", "cosine", "1-sqrt")
        ),
    ],
)
def test_schedules_are_those_of_transformers_at_samples_of_so_many_steps(
    kind: str, ours: dict[str, Any], options: dict[str, Any], warmup: int
) -> None:
    """To 1e-15, so that an imported recipe trains with the learning rates that its author had."""
    if options.get("timescale", 0) is None:
        options = {"timescale": warmup or 10_000}
    schedule = schedule_of(
        config(
            run={"max_optimizer_steps": STEPS},
            schedule={"kind": kind, "warmup_steps": warmup} | ours,
        ),
        STEPS * BATCH,
    )
    expected = their_ratios(kind, warmup, **options)
    assert [schedule.ratio(step * BATCH) for step in range(STEPS + 1)] == pytest.approx(
        expected, abs=1e-15, rel=1e-15
    )


def test_a_cosine_with_a_warm_up_from_a_rate_is_that_of_transformers_at_the_same_step() -> None:
    """Theirs counts its steps from 1 here, so its k-th update has the rate at k steps' samples."""
    schedule = schedule_of(
        config(
            run={"max_optimizer_steps": STEPS},
            schedule={"kind": "cosine", "warmup_steps": 20, "final_ratio": 0.1},
        ),
        STEPS * BATCH,
    )
    value = partial(
        theirs._get_cosine_with_min_lr_schedule_with_warmup_lr_rate_lambda,
        num_warmup_steps=20, num_training_steps=STEPS, num_cycles=0.5, min_lr_rate=0.1,
    )  # fmt: skip
    ours = [schedule.ratio((step + 1) * BATCH) for step in range(STEPS)]
    assert ours == pytest.approx([value(step) for step in range(STEPS)], abs=1e-15, rel=1e-15)


@pytest.mark.parametrize("steps", [1, 99, 100, 110, 1000])
@pytest.mark.parametrize("ratio", [0.0, 0.03, 0.07, 0.1, 1.0])
def test_a_warm_up_as_a_share_takes_the_steps_that_transformers_counts(steps: int, ratio: float) -> None:
    """`get_warmup_steps` rounds up."""
    asked = config(run={"max_optimizer_steps": steps}, schedule={"kind": "linear", "warmup_ratio": ratio})
    schedule = schedule_of(asked, horizon_of(asked, None))
    assert schedule.warmup_samples == math.ceil(steps * ratio) * BATCH


def test_a_warm_up_is_given_in_samples_steps_or_tokens() -> None:
    """Steps are those of the first effective batch; tokens are a factor on the whole curve."""
    for given_as, value in (("warmup_samples", 64), ("warmup_steps", 2)):
        assert schedule_of(config(schedule={given_as: value}), None).warmup_samples == 64
    schedule = schedule_of(
        config(
            schedule={
                "kind": "linear", "final_ratio": 0.0, "warmup_tokens": 1000, "warmup_from_ratio": 0.5
            }
        ),
        400,
    )  # fmt: skip
    assert [schedule.ratio(*place) for place in ((100, 500), (200, 1000), (300, 5000))] == [
        0.75 * 0.75, 0.5, 0.25,
    ]  # fmt: skip


def test_a_schedule_of_milestones_falls_at_each() -> None:
    """By the factor, from the window that ends there."""
    asked = {"kind": "multistep", "milestones": [100, 300], "milestone_factor": 0.5, "warmup_samples": 50}
    schedule = schedule_of(config(schedule=asked), None)
    assert [schedule.ratio(n) for n in (25, 50, 99, 100, 299, 300, 10**9)] == [
        0.5, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"warmup_samples": 3, "warmup_ratio": 0.1}, "Keep one of them"),
        ({"warmup_steps": 3, "warmup_tokens": 5}, "Keep one of them"),
        ({"kind": "multistep"}, "schedule.milestones is missing"),
        ({"kind": "multistep", "milestones": [3, 2]}, "must rise"),
        ({"kind": "multistep", "milestones": [0]}, "list of whole numbers, each from 1"),
        ({"kind": "wsd", "decay_shape": "square"}, "one of 1-sqrt, cosine, linear"),
    ],
)
def test_a_schedule_that_says_two_things_or_too_little_is_refused(
    schedule: dict[str, Any], words: str
) -> None:
    """One sentence, with what to write."""
    problems = check(
        {"run": {"epochs": 3}, "accumulation": {"gradient_accumulation_steps": 4}, "schedule": schedule}
    )
    assert isinstance(problems, list)
    assert any(words in problem.message for problem in problems), problems


def test_a_share_of_an_unknown_length_is_refused_by_name() -> None:
    """Also where the curve itself needs no end."""
    with pytest.raises(UsageError, match=r"schedule\.warmup_ratio needs to know"):
        horizon_of(config(schedule={"warmup_ratio": 0.1}), None)
