"""What is in force is told by facts, not by what the form or this window asked."""

from __future__ import annotations

from typing import Any

import msgspec

from gradacc_gui.run.in_force import InForce
from trainer_backend.config import RunConfig
from trainer_backend.config_check import check
from trainer_backend.protocol import (
    AccumulationChanged,
    AnyEvent,
    CheckpointSaved,
    OutOfMemoryRecovered,
    Record,
    RolledBack,
    RunStarted,
    SettingChanged,
)


def started(**values: Any) -> RunStarted:
    """A run that starts with b = 8, N = 4."""
    fields: dict[str, Any] = {
        "name": "r",
        "pid": 1,
        "host": "h",
        "versions": {},
        "commit": "",
        "devices": (),
        "precision": "fp32",
        "parameters": 10,
        "micro_batch_size": 8,
        "accumulation_steps": 4,
        "world_size": 1,
        "horizon_samples": None,
        "max_samples": None,
        "max_optimizer_steps": 100,
        "samples_per_epoch": None,
        "loss_unit": "token",
        "gradient_norm_every": 0,
        "from_step": 0,
        "from_samples": 0,
        "from_tokens": 0,
    }
    return RunStarted(**(fields | values))


def config() -> RunConfig:
    """AdamW with clipping and EMA, two checkpoints kept."""
    checked = check(
        {
            "run": {"max_optimizer_steps": 100},
            "optimizer": {
                "learning_rate": 1e-3,
                "betas": [0.9, 0.95],
                "weight_decay": 0.1,
                "ema_decay": 0.99,
                "max_grad_norm": 1.0,
            },
            "accumulation": {"gradient_accumulation_steps": 4},
            "checkpoint": {"keep": 2},
        }
    )
    assert isinstance(checked, RunConfig)
    return checked


def take(in_force: InForce, *events: AnyEvent, at: float = 0.0) -> None:
    """Give facts."""
    in_force.take([Record(seq=1, attempt=1, at=at, event=event) for event in events])


def setting(key: str, after: object) -> SettingChanged:
    """A setting that changed."""
    return msgspec.convert(
        {
            "command_id": None,
            "step": 9,
            "key": key,
            "before": None,
            "after": after,
            "asked_by": "x",
            "asked_at": 0.0,
        },
        SettingChanged,
    )


def test_nothing_is_in_force_before_the_run_has_started() -> None:
    """The recipe is a wish; RunStarted is what came of it."""
    assert InForce(config()).settings is None


def test_changes_follow_one_another() -> None:
    """N, micro-batch after out of memory, learning rate, clipping taken away, beta2."""
    in_force = InForce(config())
    take(in_force, started())
    assert in_force.settings is not None
    assert (in_force.settings.effective_batch, in_force.settings.beta2) == (32, 0.95)
    change = AccumulationChanged(command_id=None, step=9, before=4, after=3, asked_by="x", asked_at=0.0)
    out_of_memory = OutOfMemoryRecovered(
        step=10,
        phase="backward",
        micro_batch_size_before=8,
        micro_batch_size=4,
        accumulation_steps_before=3,
        accumulation_steps=6,
        effective_batch=24,
        device="cpu",
    )
    take(in_force, change, out_of_memory)
    take(in_force, setting("optimizer.learning_rate", 2e-3), setting("optimizer.max_grad_norm", None))
    take(in_force, setting("optimizer.betas", "0.9, 0.9025"))
    settings = in_force.settings
    assert settings is not None
    assert (settings.accumulation_steps, settings.micro_batch_size, settings.effective_batch) == (6, 4, 24)
    assert (settings.learning_rate, settings.max_grad_norm, settings.beta2) == (2e-3, None, 0.9025)


def test_a_run_whose_recipe_is_unreadable_still_shows_its_batch() -> None:
    """Only what the recipe alone knows is missing."""
    in_force = InForce(None)
    take(in_force, started())
    assert in_force.settings is not None
    assert in_force.settings.effective_batch == 32
    assert in_force.settings.learning_rate is None


def test_only_checkpoints_that_are_kept_can_be_gone_back_to() -> None:
    """Keep = 2, and those after the step that was rolled back to are gone."""
    in_force = InForce(config())
    take(in_force, started())
    for step in (10, 20, 30):
        saved = CheckpointSaved(
            command_id=None, step=step, samples_seen=0, path="p", size_bytes=1, duration_s=0.1
        )
        take(in_force, saved)
    assert in_force.checkpoints == [20, 30]
    take(in_force, RolledBack(command_id=None, from_step=35, to_step=20, to_samples=0, to_tokens=0))
    assert in_force.checkpoints == [20]
