"""What can be changed between windows, and what a command makes of it. Pure; no torch."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from trainer_backend.config import RunConfig
from trainer_backend.protocol import Scalar, SetAccumulation


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the coming window; saved in every checkpoint."""

    accumulation_steps: int
    """N: read once, when a window starts."""
    micro_batch_size: int
    learning_rate: float
    """The schedule's peak."""
    max_grad_norm: float | None
    weight_decay: float
    beta2: float | None
    """None: the optimizer has none."""
    ema_decay: float | None
    schedule_points: int = 0
    """How many points of the recipe's schedule of N have been reached."""

    @property
    def effective_batch(self) -> int:
        """Samples a whole window has (one rank)."""
        return self.accumulation_steps * self.micro_batch_size


KEYS: Final[dict[str, str]] = {
    "accumulation_steps": "accumulation.gradient_accumulation_steps",
    "micro_batch_size": "accumulation.micro_batch_size",
    "learning_rate": "optimizer.learning_rate",
    "max_grad_norm": "optimizer.max_grad_norm",
    "weight_decay": "optimizer.weight_decay",
    "beta2": "optimizer.beta2",
    "ema_decay": "optimizer.ema_decay",
}
"""The recipe's key for each setting."""
FIELDS: Final[dict[str, str]] = {key: field for field, key in KEYS.items()}


def settings_of(config: RunConfig) -> Settings:
    """The settings that a recipe starts with."""
    optimizer = config.optimizer
    points = config.accumulation.schedule
    return Settings(
        accumulation_steps=config.accumulation_steps,
        micro_batch_size=config.accumulation.micro_batch_size,
        learning_rate=optimizer.learning_rate,
        max_grad_norm=optimizer.max_grad_norm,
        weight_decay=optimizer.weight_decay,
        beta2=optimizer.betas[1] if optimizer.name == "adamw" else None,
        ema_decay=optimizer.ema_decay,
        schedule_points=1 if points and points[0].from_sample == 0 else 0,
    )


def with_accumulation(settings: Settings, command: SetAccumulation) -> Settings:
    """Another N, with the companions that the command asks for (kappa = new / old effective batch).

    beta2 ** kappa keeps Adam's half-life in samples (arXiv 2507.07101), ema_decay ** kappa that of the
    average, weight_decay * kappa the decay per sample.
    """
    kappa = command.steps / settings.accumulation_steps
    factor = {"none": 1.0, "sqrt": math.sqrt(kappa), "linear": kappa}[command.learning_rate_rule]
    changed = msgspec.structs.replace(settings, accumulation_steps=command.steps)
    if factor != 1.0:
        changed = msgspec.structs.replace(changed, learning_rate=settings.learning_rate * factor)
    if command.scale_beta2 and settings.beta2 is not None:
        changed = msgspec.structs.replace(changed, beta2=settings.beta2**kappa)
    if command.scale_weight_decay:
        changed = msgspec.structs.replace(changed, weight_decay=settings.weight_decay * kappa)
    if command.scale_ema and settings.ema_decay is not None:
        changed = msgspec.structs.replace(changed, ema_decay=settings.ema_decay**kappa)
    return changed


def with_value(settings: Settings, key: str, value: Scalar) -> Settings:
    """One setting, by the recipe's key, as a fact in the journal tells it."""
    field = FIELDS[key]
    return msgspec.convert(msgspec.structs.asdict(settings) | {field: value}, Settings, strict=False)


def differences(before: Settings, after: Settings) -> dict[str, tuple[Scalar, Scalar]]:
    """The recipe's keys of what differs, with both values."""
    pairs = {key: (getattr(before, field), getattr(after, field)) for field, key in KEYS.items()}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def divisible_sizes(effective_batch: int, size: int) -> tuple[int | None, int | None]:
    """The nearest micro-batch sizes below and above `size` that divide the effective batch."""
    below = next(
        (near for near in range(min(size, effective_batch), 0, -1) if effective_batch % near == 0), None
    )
    above = next((near for near in range(size + 1, effective_batch + 1) if effective_batch % near == 0), None)
    return below, above
