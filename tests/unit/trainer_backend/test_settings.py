"""What a command makes of the settings: N, and the companions that are asked for."""

from __future__ import annotations

import msgspec
import pytest

from trainer_backend.config import RunConfig
from trainer_backend.protocol import SetAccumulation
from trainer_backend.settings import (
    Settings,
    beta2_after,
    differences,
    divisible_sizes,
    stages,
    with_accumulation,
    with_next_point,
    with_value,
)

START = Settings(
    accumulation_steps=4,
    micro_batch_size=8,
    learning_rate=0.01,
    max_grad_norm=1.0,
    weight_decay=0.1,
    beta2=0.95,
    ema_decay=0.999,
)


def test_n_alone_changes_nothing_else() -> None:
    """No companion unless it was asked for."""
    after = with_accumulation(START, SetAccumulation(steps=16))
    assert differences(START, after) == {"accumulation.gradient_accumulation_steps": (4, 16)}


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("sqrt", 2.0), ("linear", 4.0)])
def test_the_learning_rate_follows_its_rule(rule: str, factor: float) -> None:
    """kappa = 4: 1, sqrt(kappa), kappa."""
    command = msgspec.convert(
        {"steps": 16, "learning_rate_rule": rule, "type": "SetAccumulation"}, SetAccumulation
    )
    assert with_accumulation(START, command).learning_rate == pytest.approx(0.01 * factor, rel=1e-15)


@pytest.mark.parametrize("steps", [1, 2, 12, 64])
def test_companions_keep_what_they_say_per_sample(steps: int) -> None:
    """beta2 ** kappa, decay * kappa, ema ** kappa."""
    command = SetAccumulation(steps=steps, scale_beta2=True, scale_weight_decay=True, scale_ema=True)
    after, kappa = with_accumulation(START, command), steps / 4
    assert after.beta2 == pytest.approx(0.95**kappa, rel=1e-15)
    assert after.ema_decay == pytest.approx(0.999**kappa, rel=1e-15)
    assert after.weight_decay == pytest.approx(0.1 * kappa, rel=1e-15)
    assert after.learning_rate == 0.01


def test_a_recorded_change_is_made_again_by_its_key() -> None:
    """What `differences` tells, `with_value` does."""
    after = with_accumulation(START, SetAccumulation(steps=3, learning_rate_rule="sqrt", scale_ema=True))
    again = START
    for key, (_, value) in differences(START, after).items():
        again = with_value(again, key, value)
    assert again == after
    assert with_value(START, "optimizer.max_grad_norm", None).max_grad_norm is None


def test_the_nearest_sizes_that_divide_the_batch_are_named() -> None:
    """32 by 5: 4 below, 8 above; by 40: 32 below and none above."""
    assert divisible_sizes(32, 5) == (4, 8)
    assert divisible_sizes(32, 40) == (32, None)
    assert divisible_sizes(7, 3) == (1, 7)


def test_beta2_stops_at_its_floor() -> None:
    """A floor holds what the power would take below it, and lifts nothing that is below already."""
    assert beta2_after(0.95, 32, floor=0.5) == 0.5
    assert beta2_after(0.95, 2, floor=0.5) == 0.95**2
    assert beta2_after(0.4, 0.5, floor=0.5) == 0.4**0.5
    assert beta2_after(0.4, 2, floor=0.5) == 0.4


# --------------------------------------------------------------- the schedule of N takes along


def scheduled(points: list[dict[str, int]], **rules: object) -> RunConfig:
    """AdamW with beta2 0.999, decay 0.1, EMA 0.99; micro-batches of 8."""
    return msgspec.convert(
        {
            "accumulation": {"micro_batch_size": 8, "schedule": points, **rules},
            "optimizer": {
                "learning_rate": 0.01, "betas": [0.9, 0.999], "weight_decay": 0.1, "ema_decay": 0.99,
            },
        },
        RunConfig,
    )  # fmt: skip


RULES = {"learning_rate_rule": "sqrt", "beta2_rule": "power", "decay_rule": "linear", "ema_rule": "power"}


def test_a_schedule_takes_its_companions_along() -> None:
    """kappa = 4: twice the learning rate, beta2 ** 4, four times the decay, EMA ** 4."""
    config = scheduled([{"from_sample": 0, "steps": 2}, {"from_sample": 64, "steps": 8}], **RULES)
    (_, first), (start, last) = stages(config)
    assert (start, first.effective_batch, last.effective_batch) == (64, 16, 64)
    assert last.learning_rate == pytest.approx(0.02, rel=1e-15)
    assert last.beta2 == pytest.approx(0.999**4, rel=1e-15)
    assert last.weight_decay == pytest.approx(0.4, rel=1e-15)
    assert last.ema_decay == pytest.approx(0.99**4, rel=1e-15)


def test_without_rules_a_schedule_changes_n_alone() -> None:
    """Nothing else changes silently."""
    points = [{"from_sample": 0, "steps": 2}, {"from_sample": 64, "steps": 8}]
    (_, first), (_, last) = stages(scheduled(points))
    assert differences(first, last) == {"accumulation.gradient_accumulation_steps": (2, 8)}


@pytest.mark.parametrize(("beta2", "floor"), [(0.999, 0.95), (0.95, 0.95), (0.9, 0.9)])
def test_beta2_has_a_floor_under_a_growing_batch(beta2: float, floor: float) -> None:
    """N 1 to 64 at 0.95 would give 0.038; the floor is the smaller of beta2 and 0.95."""
    config = scheduled([{"from_sample": 0, "steps": 1}, {"from_sample": 8, "steps": 64}], beta2_rule="power")
    optimizer = msgspec.structs.replace(config.optimizer, betas=(0.9, beta2))
    (_, _), (_, last) = stages(msgspec.structs.replace(config, optimizer=optimizer))
    assert last.beta2 == floor


def test_a_floor_on_the_way_leaves_no_trace_when_the_batch_shrinks_again() -> None:
    """1, 64, 1: all is as it began."""
    points = [{"from_sample": place, "steps": steps} for place, steps in ((0, 1), (8, 64), (1000, 1))]
    (_, first), _, (_, last) = stages(scheduled(points, **RULES))
    assert differences(first, last) == {}


def test_a_value_that_somebody_changed_is_what_the_schedule_goes_on_from() -> None:
    """The learning rate typed while N was 2 is doubled, not the recipe's."""
    config = scheduled([{"from_sample": 0, "steps": 2}, {"from_sample": 64, "steps": 8}], **RULES)
    typed = msgspec.structs.replace(stages(config)[0][1], learning_rate=0.003)
    assert with_next_point(typed, config).learning_rate == pytest.approx(0.006, rel=1e-15)


def test_an_effective_batch_in_the_schedule_becomes_n_for_the_micro_batch_that_runs() -> None:
    """256 samples in micro-batches of 8 are N = 32, in those of 4 N = 64."""
    points = [{"from_sample": 0, "steps": 2}, {"from_sample": 64, "effective_batch_size": 256}]
    config = scheduled(points)
    first = stages(config)[0][1]
    assert with_next_point(first, config).accumulation_steps == 32
    smaller = msgspec.structs.replace(first, micro_batch_size=4)
    assert with_next_point(smaller, config).accumulation_steps == 64
