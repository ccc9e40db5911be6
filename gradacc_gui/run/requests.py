"""What a person may ask of a live run, checked and previewed before it is asked. No Qt."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from gradacc_gui.run.numbers import count, real
from gradacc_gui.words import tr
from trainer_backend.config import LARGEST
from trainer_backend.protocol import SetAccumulation
from trainer_backend.settings import Rule, Settings, with_accumulation

RULES: Final[dict[Rule, str]] = {"none": "stays", "sqrt": "× √κ", "linear": "× κ"}


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


def companions(settings: Settings, steps: int, rule: Rule) -> tuple[Settings, dict[str, Companion]]:
    """What N = `steps` would make of the settings, and by field what else it can take along.

    The rules are the trainer's own. What the run does not have is not offered.
    """
    asked = SetAccumulation(
        steps=steps, learning_rate_rule=rule, scale_beta2=True, scale_weight_decay=True, scale_ema=True
    )
    after = with_accumulation(settings, asked)
    named = {"beta2": "β₂", "weight_decay": tr("weight decay"), "ema_decay": tr("EMA decay")}
    return after, {
        field: Companion(name, getattr(settings, field), getattr(after, field))
        for field, name in named.items()
        if getattr(settings, field)  # a decay of 0 stays 0
    }
