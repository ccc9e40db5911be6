"""The learning rate over samples: warm-up, curves, the horizon."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_backend.config import RunConfig
from trainer_backend.config_check import check
from trainer_backend.errors import UsageError
from trainer_backend.trainer.schedule import Schedule, horizon_of


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
    kind=st.sampled_from(["constant", "cosine", "linear"]),
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
    schedule = Schedule(kind=kind, warmup_samples=warmup, horizon_samples=warmup + length, final_ratio=final)
    ratio = schedule.ratio(samples)
    assert math.isfinite(ratio)
    assert 0.0 <= ratio <= 1.0 + 1e-12
    if samples >= warmup:
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
