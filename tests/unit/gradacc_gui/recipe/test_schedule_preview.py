"""What the form draws of the learning rate, and says beside it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gradacc_gui.recipe.schedule_preview import PLACES, preview
from trainer_backend.config import RunConfig
from trainer_backend.config_check import check


def config(run: dict[str, Any], schedule: dict[str, Any]) -> RunConfig:
    """A recipe of effective batches of 32, whose peak is 1e-3."""
    checked = check({"run": run, "schedule": schedule, "accumulation": {"gradient_accumulation_steps": 4}})
    assert isinstance(checked, RunConfig), checked
    return checked


def test_a_cosine_rises_falls_and_says_where_to() -> None:
    """From 0 at the first sample to the final rate at the last."""
    shown = preview(
        config({"max_samples": 2400}, {"kind": "cosine", "warmup_samples": 240, "final_ratio": 0.1}), None
    )
    assert len(shown.ratios) == PLACES
    assert (shown.ratios[0], shown.ratios[24]) == (0.0, 1.0)
    assert shown.ratios[-1] == pytest.approx(0.1)
    assert shown.sentence == "Warm-up over 240 samples · Cosine to 0.0001 at 2,400 samples"
    assert not shown.warns


def test_a_length_in_epochs_is_drawn_once_the_data_were_looked_at() -> None:
    """Before, there is nothing to draw."""
    asked = config({"epochs": 2}, {"kind": "linear", "warmup_ratio": 0.25, "final_ratio": 0.0})
    assert preview(asked, None).ratios == ()
    shown = preview(asked, 640)
    assert (shown.ratios[60], shown.ratios[-1]) == (1.0, 0.0)
    assert "320 samples" in shown.sentence


def test_a_warm_up_that_never_ends_is_warned_about() -> None:
    """The run may be started all the same."""
    shown = preview(config({"max_optimizer_steps": 2}, {"warmup_steps": 4}), None)
    assert shown.warns
    assert shown.sentence == "The warm-up (128 samples) is longer than the schedule (64 samples)."
    assert shown.ratios[-1] == 0.5


def test_a_constant_rate_is_not_drawn() -> None:
    """There is nothing to see."""
    assert preview(config({"max_samples": 64}, {}), None).ratios == ()


def test_a_schedule_of_n_is_drawn_with_what_it_takes_along() -> None:
    """The stairs of the effective batch, and a learning rate that doubles when it does four times."""
    points = [{"from_sample": 0, "steps": 2}, {"from_sample": 320, "steps": 8}]
    asked = msgspec.convert(
        {
            "run": {"max_samples": 640},
            "accumulation": {"micro_batch_size": 8, "schedule": points, "learning_rate_rule": "sqrt"},
            "optimizer": {"learning_rate": 0.01},
            "schedule": {"kind": "constant", "warmup_samples": 0},
        },
        RunConfig,
    )
    shown = preview(asked, None)
    assert set(shown.batches) == {0.25, 1.0}
    assert (shown.ratios[0], shown.ratios[-1]) == (0.5, 1.0)
    assert shown.sentence == "Effective batch 16 → 64, learning rate 0.01 → 0.02"


def test_where_the_curve_ends_is_said_of_the_rate_that_the_schedule_of_n_makes() -> None:
    """A tenth of 0.02, not of 0.01."""
    points = [{"from_sample": 0, "steps": 2}, {"from_sample": 320, "steps": 8}]
    asked = msgspec.convert(
        {
            "run": {"max_samples": 640},
            "accumulation": {"micro_batch_size": 8, "schedule": points, "learning_rate_rule": "sqrt"},
            "optimizer": {"learning_rate": 0.01},
            "schedule": {"kind": "cosine", "final_ratio": 0.1},
        },
        RunConfig,
    )
    assert "Cosine to 0.002 at 640 samples" in preview(asked, None).sentence


def test_what_begins_at_a_token_is_said_and_not_drawn() -> None:
    """Nobody knows the sample."""
    points = [{"from_token": 0, "steps": 2}, {"from_token": 320, "steps": 8}]
    asked = msgspec.convert(
        {"run": {"max_samples": 640}, "accumulation": {"micro_batch_size": 8, "schedule": points}}, RunConfig
    )
    shown = preview(asked, None)
    assert shown.batches == ()
    assert "16 → 64 by tokens (not drawn)" in shown.sentence
