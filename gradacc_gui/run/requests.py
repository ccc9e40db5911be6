"""What a person may ask of a live run, checked and previewed before it is asked. No Qt.

kappa is the ratio of the new effective batch to the one in force (micro-batch x N x world).
"""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

import msgspec

from gradacc_gui.run.numbers import count, real
from gradacc_gui.words import tr
from trainer_backend.config import LARGEST

Rule: TypeAlias = Literal["none", "sqrt", "linear"]
RULES: Final[dict[Rule, str]] = {"none": "stays", "sqrt": "× √κ", "linear": "× κ"}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force now, as the run's facts tell it. None: the run has no such setting."""

    accumulation_steps: int
    micro_batch_size: int
    world_size: int = 1
    learning_rate: float | None = None
    beta2: float | None = None
    weight_decay: float | None = None
    ema_decay: float | None = None
    max_grad_norm: float | None = None

    @property
    def effective_batch(self) -> int:
        """Samples an optimizer step."""
        return self.micro_batch_size * self.accumulation_steps * self.world_size


class Companion(msgspec.Struct, frozen=True):
    """One setting that a new N could take along: what it is now and would become."""

    name: str
    before: float
    after: float

    @property
    def text(self) -> str:
        """Such as: β₂ 0.95 → 0.9025."""
        return f"{self.name} {real(self.before)} → {real(self.after)}"


def parse_count(text: str, name: str) -> int | str:
    """A whole number from 1 to 1,000,000, or the sentence that says what would be right."""
    plain = text.strip().replace(",", "").replace("_", "").replace("\u202f", "")
    wanted = tr("{name} must be a whole number from 1 to {largest}").format(name=name, largest=count(LARGEST))
    if not plain:
        return tr("{wanted}; nothing is typed.").format(wanted=wanted)
    if not plain.isascii() or not plain.isdigit():
        return tr("{wanted}; “{text}” is not.").format(wanted=wanted, text=_cut(text))
    value = int(plain[:18])
    if value == 0:
        return tr("{wanted}; 0 would never step.").format(wanted=wanted)
    if value > LARGEST or len(plain) > 18:
        return tr("{wanted}; {text} is too large.").format(wanted=wanted, text=_cut(text))
    return value


def parse_positive(text: str, name: str, *, zero: bool = False) -> float | str:
    """A finite number above 0 (or from 0), or the sentence that says what would be right."""
    wanted = tr("{name} must be a number {bound}").format(
        name=name, bound=tr("from 0 up") if zero else tr("above 0")
    )
    try:
        value = float(text.strip().replace("−", "-"))
    except ValueError:
        typed = tr("nothing is typed") if not text.strip() else tr("“{text}” is not").format(text=_cut(text))
        return f"{wanted}; {typed}."
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        return tr("{wanted}; {text} is not.").format(wanted=wanted, text=_cut(text))
    if value > 1e6:
        return tr("{name} must be at most 1,000,000; {text} is too large.").format(name=name, text=_cut(text))
    return value


def _cut(text: str, longest: int = 24) -> str:
    text = text.strip()
    return text if len(text) <= longest else text[: longest - 1] + "…"


def kappa(settings: Settings, steps: int) -> float:
    """New over old effective batch when N becomes `steps`."""
    return steps / settings.accumulation_steps


def learning_rate_after(settings: Settings, ratio: float, rule: Rule) -> float | None:
    """The peak learning rate under `rule`; None when the run's is not known."""
    if settings.learning_rate is None:
        return None
    match rule:
        case "none":
            return settings.learning_rate
        case "sqrt":
            return settings.learning_rate * math.sqrt(ratio)
        case "linear":
            return settings.learning_rate * ratio


def beta2_companion(settings: Settings, ratio: float) -> Companion | None:
    """beta2 ** kappa keeps the half-life of Adam's second moment in samples."""
    if settings.beta2 is None:
        return None
    return Companion("β₂", settings.beta2, settings.beta2**ratio)


def decay_companion(settings: Settings, ratio: float) -> Companion | None:
    """weight_decay x kappa keeps the decay per sample."""
    if not settings.weight_decay:
        return None
    return Companion(tr("weight decay"), settings.weight_decay, settings.weight_decay * ratio)


def ema_companion(settings: Settings, ratio: float) -> Companion | None:
    """ema_decay ** kappa keeps the average's half-life in samples."""
    if settings.ema_decay is None:
        return None
    return Companion(tr("EMA decay"), settings.ema_decay, settings.ema_decay**ratio)


def steps_that_keep(settings: Settings, micro_batch_size: int) -> int | None:
    """N under which `micro_batch_size` keeps the effective batch; None when it does not divide it."""
    one = micro_batch_size * settings.world_size
    return settings.effective_batch // one if settings.effective_batch % one == 0 else None
