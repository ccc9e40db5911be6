"""The learning rate over samples consumed, so that changing N does not distort it. Pure; no torch.

`CURVES` has one row for each kind of schedule: config, form and trainer read it. The formulas are those of
transformers 5 (`optimization.py`), with samples in place of steps: at samples = step x effective batch both
give the same number. transformers trains its k-th update with the value of step k - 1, gradacc with that of
the samples at the window's end; only its `cosine_warmup_with_min_lr` reads the same step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

import msgspec

DecayShape: TypeAlias = Literal["linear", "cosine", "1-sqrt"]
DEFAULT_TIMESCALE_STEPS: Final = 10_000
"""transformers' time scale of an inverse square root without a warm-up."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A warm-up, then a curve down to the horizon, and flat behind it. Lengths are in samples."""

    kind: str
    """A key of `CURVES`."""
    warmup_samples: int = 0
    warmup_tokens: int = 0
    """A warm-up in tokens instead: a factor on the curve, which then starts at sample 0."""
    warmup_from_ratio: float = 0.0
    """Where the warm-up starts, as a share of the peak."""
    horizon_samples: int | None = None
    """None only where the curve needs no end."""
    final_ratio: float = 0.0
    cycles: float | None = None
    """Waves of a cosine (0.5 goes down once), or how often one with restarts goes down."""
    power: float = 1.0
    timescale_samples: int = 1
    decay_ratio: float = 0.1
    decay_shape: DecayShape = "1-sqrt"
    milestones: tuple[int, ...] = ()
    milestone_factor: float = 0.1

    def ratio(self, samples: int, tokens: int = 0) -> float:
        """Learning rate over its peak for the window that ends when so much was consumed."""
        if tokens < self.warmup_tokens:
            return self._risen(tokens / self.warmup_tokens) * CURVES[self.kind].value(self, samples)
        if samples < self.warmup_samples:
            return self._risen(samples / self.warmup_samples)
        return CURVES[self.kind].value(self, samples)

    def _risen(self, done: float) -> float:
        return self.warmup_from_ratio + (1.0 - self.warmup_from_ratio) * done

    def done(self, samples: int) -> float:
        """How much of the curve lies behind, 0 to 1."""
        assert self.horizon_samples is not None  # the row says that it is needed
        length = self.horizon_samples - self.warmup_samples
        return min(1.0, (samples - self.warmup_samples) / length) if length > 0 else 1.0

    def above_final(self, height: float) -> float:
        """A height of 0 to 1 as a ratio: `final_ratio` to 1."""
        return max(0.0, height * (1 - self.final_ratio) + self.final_ratio)


class ScheduleCurve(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of schedule: its formula and the keys that shape it."""

    title: str
    value: Callable[[Schedule, int], float]
    """The ratio after the warm-up, at so many samples."""
    keys: tuple[str, ...] = ()
    """Keys of the recipe's [schedule] that it takes; the others mean nothing beside it."""
    needs_end: bool = True


def _linear(schedule: Schedule, samples: int) -> float:
    assert schedule.horizon_samples is not None
    length = max(1, schedule.horizon_samples - schedule.warmup_samples)
    return schedule.above_final(max(0.0, (schedule.horizon_samples - samples) / length))


def _cosine(schedule: Schedule, samples: int) -> float:
    waves = 0.5 if schedule.cycles is None else schedule.cycles
    return schedule.above_final(0.5 * (1.0 + math.cos(math.pi * waves * 2.0 * schedule.done(samples))))


def _cosine_restarts(schedule: Schedule, samples: int) -> float:
    done, times = schedule.done(samples), schedule.cycles or 1.0
    if done >= 1.0:
        return schedule.final_ratio
    return schedule.above_final(0.5 * (1.0 + math.cos(math.pi * (times * done % 1.0))))


def _polynomial(schedule: Schedule, samples: int) -> float:
    remaining: float = (1 - schedule.done(samples)) ** schedule.power
    return schedule.above_final(remaining)


def _inverse_sqrt(schedule: Schedule, samples: int) -> float:
    shift = schedule.timescale_samples - schedule.warmup_samples
    return 1.0 / math.sqrt((samples + shift) / schedule.timescale_samples)


def _wsd(schedule: Schedule, samples: int) -> float:
    """Stable, then down over the last `decay_ratio` of the horizon (arXiv 2404.06395)."""
    assert schedule.horizon_samples is not None
    decay = decay_samples(schedule)
    start = max(schedule.warmup_samples, schedule.horizon_samples - decay)
    if samples < start:
        return 1.0
    if samples >= schedule.horizon_samples:
        return schedule.final_ratio
    done = (samples - start) / decay
    match schedule.decay_shape:
        case "linear":
            height = 1.0 - done
        case "cosine":
            height = 0.5 * (1.0 + math.cos(math.pi * done))
        case "1-sqrt":
            height = 1.0 - math.sqrt(done)
        case _:
            assert_never(schedule.decay_shape)
    return schedule.above_final(height)


def decay_samples(schedule: Schedule) -> int:
    """How long the decay of a warm-up-stable-decay schedule is: at most what the warm-up leaves."""
    assert schedule.horizon_samples is not None
    asked = round(schedule.horizon_samples * schedule.decay_ratio)
    return min(asked, max(0, schedule.horizon_samples - schedule.warmup_samples))


def _multistep(schedule: Schedule, samples: int) -> float:
    passed = sum(samples >= milestone for milestone in schedule.milestones)
    value: float = schedule.milestone_factor**passed
    return value


CURVES: Final[dict[str, ScheduleCurve]] = {
    "constant": ScheduleCurve(title="Constant", value=lambda _schedule, _samples: 1.0, needs_end=False),
    "linear": ScheduleCurve(title="Linear", value=_linear, keys=("final_ratio",)),
    "cosine": ScheduleCurve(title="Cosine", value=_cosine, keys=("final_ratio", "cycles")),
    "cosine-restarts": ScheduleCurve(
        title="Cosine with restarts", value=_cosine_restarts, keys=("final_ratio", "cycles")
    ),
    "polynomial": ScheduleCurve(title="Polynomial", value=_polynomial, keys=("final_ratio", "power")),
    "inverse-sqrt": ScheduleCurve(
        title="Inverse square root", value=_inverse_sqrt, keys=("timescale_samples",), needs_end=False
    ),
    "wsd": ScheduleCurve(
        title="Stable, then decay", value=_wsd, keys=("final_ratio", "decay_ratio", "decay_shape")
    ),
    "multistep": ScheduleCurve(
        title="Steps at milestones",
        value=_multistep,
        keys=("milestones", "milestone_factor"),
        needs_end=False,
    ),
}
"""By the name that a recipe gives."""

if TYPE_CHECKING:
    CurveName: TypeAlias = str
else:
    CurveName = Literal[tuple(CURVES)]


def curves_that_take(key: str) -> tuple[str, ...]:
    """The kinds of schedule beside which a key of [schedule] means something."""
    return tuple(name for name, curve in CURVES.items() if key in curve.keys)


def keys_of_some_curves() -> tuple[str, ...]:
    """The keys of [schedule] that mean something beside some of the kinds only."""
    return tuple(dict.fromkeys(key for curve in CURVES.values() for key in curve.keys))
