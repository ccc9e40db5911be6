"""What a command makes of the settings: N, and the companions that are asked for."""

from __future__ import annotations

import msgspec
import pytest

from trainer_backend.protocol import SetAccumulation
from trainer_backend.settings import (
    Settings,
    beta2_after,
    differences,
    divisible_sizes,
    with_accumulation,
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
