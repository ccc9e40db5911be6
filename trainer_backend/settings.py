"""What can be changed between windows, and what follows when it is: one `Settings` for everybody.

The trainer trains by it, its checkpoints hold it, its journal tells it; the window and the command
line preview with the same rules. Pure; no torch. kappa is the new effective batch over the old one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal, TypeAlias, assert_never

import msgspec

from trainer_backend.config import AccumulationSection, RunConfig
from trainer_backend.optimizer_table import OPTIMIZERS
from trainer_backend.protocol import Scalar, SetAccumulation

Rule: TypeAlias = Literal["none", "sqrt", "linear"]
"""How the learning rate follows the effective batch: not, by sqrt(kappa), by kappa."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one window; saved in every checkpoint.

    None: the run has no such setting, or (of a loop that is not ours) nobody said it.
    A new one needs a field here, its key in `KEYS`, and where the recipe has it in `settings_of`.
    """

    accumulation_steps: int
    """N: read once, when a window starts."""
    micro_batch_size: int
    world_size: int = 1
    """What N is multiplied by: the ranks that it was said for."""
    ranks: int = 1
    """How many train now. With other ranks than N was said for, the window keeps its micro-batches."""
    schedule_ranks: int = 1
    """What the recipe's schedule of N is said for: the ranks that the run began with."""
    learning_rate: float | None = None
    """The schedule's peak; a trainer of ours always has one."""
    max_grad_norm: float | None = None
    weight_decay: float | None = None
    beta2: float | None = None
    """None: the optimizer has none."""
    ema_decay: float | None = None
    schedule_points: int = 0
    """How many points of the recipe's schedule of N have been reached."""

    @property
    def samples_a_round(self) -> int:
        """Samples of one micro-batch on every device: what the effective batch is a multiple of."""
        return self.micro_batch_size * self.world_size

    @property
    def effective_batch(self) -> int:
        """Samples a whole window has: micro-batch x N x world."""
        return self.samples_a_round * self.accumulation_steps

    @property
    def micro_batches(self) -> int:
        """M: micro-batches of a window over all ranks."""
        return self.accumulation_steps * self.world_size

    def kappa(self, steps: int) -> float:
        """New over old effective batch when N becomes `steps` on the ranks that train now."""
        return steps * self.ranks / self.micro_batches

    def steps_for(self, effective_batch: int) -> int | None:
        """N for an effective batch at this micro-batch size; None when no whole N makes it."""
        steps, rest = divmod(effective_batch, self.samples_a_round)
        return None if rest else steps

    def steps_that_keep(self, micro_batch_size: int) -> int | None:
        """N under which another micro-batch keeps the effective batch; None when it does not divide it."""
        other = msgspec.structs.replace(self, micro_batch_size=micro_batch_size)
        return other.steps_for(self.effective_batch)

    def by_key(self) -> dict[str, Scalar]:
        """Every setting by the recipe's key, as facts carry them."""
        return {key: getattr(self, field) for field, key in KEYS.items()}


STEPS: Final = "accumulation.gradient_accumulation_steps"
MICRO_BATCH: Final = "accumulation.micro_batch_size"
KEYS: Final[dict[str, str]] = {
    "accumulation_steps": STEPS,
    "micro_batch_size": MICRO_BATCH,
    "learning_rate": "optimizer.learning_rate",
    "max_grad_norm": "optimizer.max_grad_norm",
    "weight_decay": "optimizer.weight_decay",
    "beta2": "optimizer.beta2",
    "ema_decay": "optimizer.ema_decay",
}
"""The recipe's key for each setting."""
FIELDS: Final[dict[str, str]] = {key: field for field, key in KEYS.items()}


def settings_of(config: RunConfig, ranks: int | None = None) -> Settings:
    """The settings that a recipe starts with on so many ranks; None: as many as it asks for."""
    optimizer = config.optimizer
    points = config.accumulation.schedule
    size = config.run.devices if ranks is None else ranks
    settings = Settings(
        accumulation_steps=config.accumulation_steps,
        micro_batch_size=config.accumulation.micro_batch_size,
        world_size=size,
        ranks=size,
        schedule_ranks=size,
        learning_rate=optimizer.learning_rate,
        max_grad_norm=optimizer.max_grad_norm,
        weight_decay=optimizer.weight_decay,
        beta2=optimizer.betas[1] if OPTIMIZERS[optimizer.name].has_beta2 else None,
        ema_decay=optimizer.ema_decay,
        schedule_points=1 if points and points[0].start == 0 else 0,
    )
    if config.accumulation.effective_batch_size is not None and not settings.schedule_points:
        return with_micro_batches(settings, config.effective_batch // settings.micro_batch_size)
    return settings


def on_ranks(settings: Settings, ranks: int) -> Settings:
    """The same window on another number of ranks: M stays, and N follows where it can."""
    return with_micro_batches(msgspec.structs.replace(settings, ranks=ranks), settings.micro_batches)


def with_micro_batches(settings: Settings, micro_batches: int) -> Settings:
    """A window of M micro-batches: N = M / ranks, or M on "one" where the ranks do not divide it."""
    steps, rest = divmod(micro_batches, settings.ranks)
    if rest:
        return msgspec.structs.replace(settings, accumulation_steps=micro_batches, world_size=1)
    return msgspec.structs.replace(settings, accumulation_steps=steps, world_size=settings.ranks)


# -------------------------------------------------------- what goes with a new effective batch


def learning_rate_after(learning_rate: float, kappa: float, rule: Rule) -> float:
    """The peak learning rate under a rule.

    sqrt(kappa) is for Adam (arXiv 2205.10287), kappa for SGD (arXiv 1706.02677).
    """
    match rule:
        case "none":
            return learning_rate
        case "sqrt":
            return learning_rate * math.sqrt(kappa)
        case "linear":
            return learning_rate * kappa
        case _:
            assert_never(rule)


def beta2_after(beta2: float, kappa: float, *, floor: float = 0.0) -> float:
    """beta2 ** kappa keeps the half-life of Adam's second moment in samples (arXiv 2507.07101).

    Never below `floor`, and never changed by it where it is below already.
    """
    after: float = beta2**kappa
    return max(min(floor, beta2), after)


def ema_decay_after(ema_decay: float, kappa: float) -> float:
    """ema_decay ** kappa keeps the average's half-life in samples (arXiv 2307.13813)."""
    after: float = ema_decay**kappa
    return after


def weight_decay_after(weight_decay: float, kappa: float) -> float:
    """weight_decay x kappa keeps the decay per sample."""
    return weight_decay * kappa


def with_accumulation(settings: Settings, command: SetAccumulation) -> Settings:
    """Another N, with the companions that the command asks for, as far as the run has them."""
    kappa = settings.kappa(command.steps)
    changed: dict[str, float] = {"accumulation_steps": command.steps, "world_size": settings.ranks}
    if command.learning_rate_rule != "none" and settings.learning_rate is not None:
        changed["learning_rate"] = learning_rate_after(
            settings.learning_rate, kappa, command.learning_rate_rule
        )
    if command.scale_beta2 and settings.beta2 is not None:
        changed["beta2"] = beta2_after(settings.beta2, kappa)
    if command.scale_weight_decay and settings.weight_decay is not None:
        changed["weight_decay"] = weight_decay_after(settings.weight_decay, kappa)
    if command.scale_ema and settings.ema_decay is not None:
        changed["ema_decay"] = ema_decay_after(settings.ema_decay, kappa)
    return msgspec.structs.replace(settings, **changed)


def with_next_point(settings: Settings, config: RunConfig) -> Settings:
    """The recipe's schedule of N has reached its next point: its N, with the companions of its rules.

    Each follows from its value at the run's beginning, so that a floor on the way leaves no trace; one
    that somebody changed meanwhile follows from what it is.
    """
    point = config.accumulation.schedule[settings.schedule_points]
    steps = point.steps_at(settings.micro_batch_size * settings.schedule_ranks)
    after = msgspec.structs.replace(settings, schedule_points=settings.schedule_points + 1)
    after = with_micro_batches(after, steps * settings.schedule_ranks)
    return with_rules(settings, after, settings_of(config, settings.schedule_ranks), config.accumulation)


def stages(config: RunConfig) -> list[tuple[int, Settings]]:
    """From which sample (or token) on the recipe's schedule makes which settings; the first from 0."""
    settings = settings_of(config)
    found = [(0, settings)]
    for point in config.accumulation.schedule[settings.schedule_points :]:
        settings = with_next_point(settings, config)
        found.append((point.start, settings))
    return found


def with_rules(before: Settings, after: Settings, first: Settings, rules: AccumulationSection) -> Settings:
    """`after` with what the recipe's rules make of learning rate, beta2, weight decay and EMA."""
    old, new = (each.effective_batch / first.effective_batch for each in (before, after))
    changed: dict[str, float] = {}
    for field in ("learning_rate", "beta2", "weight_decay", "ema_decay"):
        start, now = getattr(first, field), getattr(before, field)
        if start is None or now is None:
            continue
        is_own = math.isclose(now, _by_rule(field, start, old, rules), rel_tol=1e-12)
        changed[field] = (
            _by_rule(field, start, new, rules) if is_own else _by_rule(field, now, new / old, rules)
        )
    return msgspec.structs.replace(after, **changed)


def _by_rule(field: str, value: float, kappa: float, rules: AccumulationSection) -> float:
    """One companion for an effective batch kappa times as large."""
    if field == "learning_rate":
        return learning_rate_after(value, kappa, rules.learning_rate_rule)
    if field == "beta2" and rules.beta2_rule == "power":
        return beta2_after(value, kappa, floor=rules.beta2_floor)
    if field == "weight_decay" and rules.decay_rule == "linear":
        return weight_decay_after(value, kappa)
    if field == "ema_decay" and rules.ema_rule == "power":
        return ema_decay_after(value, kappa)
    return value


# ------------------------------------------------------------------------- as facts tell them


def with_value(settings: Settings, key: str, value: Scalar) -> Settings:
    """One setting, by the recipe's key, as a fact in the journal tells it."""
    return with_values(settings, {key: value})


def with_values(settings: Settings, values: Mapping[str, Scalar]) -> Settings:
    """Settings by the recipe's keys, as facts tell them.

    What is no setting here, or no value of it here, a newer version wrote: it is left out.
    """
    for key, value in values.items():
        if key in FIELDS:
            told = msgspec.structs.asdict(settings) | {FIELDS[key]: value}
            with suppress(msgspec.ValidationError):
                settings = msgspec.convert(told, Settings, strict=False)
    return settings


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
