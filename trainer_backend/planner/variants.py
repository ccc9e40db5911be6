"""The same plan with one setting changed: what activation checkpointing and its like cost and save."""

from __future__ import annotations

from typing import Final

import msgspec

from trainer_backend.config import RunConfig
from trainer_backend.planner.pairs import Pair, Plan
from trainer_backend.planner.plan_words import gib

SAME: Final = 0.02
"""Share of the throughput, or of the peak, below which two plans are alike."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One setting changed."""

    title: str
    setting: str
    """As `--set` takes it: task.activation_checkpointing=true."""


class VariantPlan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a variant comes to."""

    variant: Variant
    best: Pair | None
    """None: no pair fits, or it could not be measured."""
    fault: str = ""
    """Why it could not be measured."""


def variants_of(config: RunConfig, device: str) -> list[Variant]:
    """The settings that this kind of task and this device offer, each turned the other way."""
    found = []
    checkpointing = getattr(config.task, "activation_checkpointing", None)
    if isinstance(
        checkpointing, bool
    ):  # a custom task lists modules instead: which ones, only its author knows
        title = "Without activation checkpointing" if checkpointing else "Activation checkpointing"
        setting = f"task.activation_checkpointing={str(not checkpointing).lower()}"
        found.append(Variant(title=title, setting=setting))
    loss = getattr(config.task, "loss", None)
    if loss in ("auto", "chunked", "full"):
        other = "chunked" if loss == "full" else "full"
        found.append(Variant(title=f"{other.capitalize()} loss", setting=f"task.loss={other}"))
    if device == "cuda" and config.optimizer.name == "adamw":
        found.append(Variant(title="8-bit AdamW states", setting="optimizer.name=adamw-8bit"))
    return found


def compared(plan: Plan, variants: list[VariantPlan]) -> list[str]:
    """The variants as lines of a terminal, below the plan as it is."""
    best = plan.best
    lines = [f"{'With one setting changed':<34} {'pair':>12} {'peak':>10} {'samples/s':>10}"]
    if best is not None:
        lines.append(f"{'As in the recipe':<34} {_pair(best)}")
    for one in variants:
        if one.best is None:
            lines.append(f"{one.variant.title:<34} {one.fault or 'no pair fits'}")
        else:
            lines.append(f"{one.variant.title:<34} {_pair(one.best)}  {_gain(best, one.best)}".rstrip())
    return lines


def _pair(pair: Pair) -> str:
    name = f"{pair.micro_batch_size:,} x {pair.accumulation_steps:,}"
    return f"{name:>12} {gib(pair.peak_bytes):>10} {pair.samples_per_s:>10.4g}"


def _gain(best: Pair | None, other: Pair) -> str:
    if best is None:
        return "fits"
    ratio = other.samples_per_s / best.samples_per_s
    if ratio < 1 - SAME:
        return f"{100 * (1 - ratio):.0f} % slower"
    if ratio > 1 + SAME:
        return f"{100 * (ratio - 1):.0f} % faster"
    less = 1 - other.peak_bytes / best.peak_bytes
    return f"as fast, {100 * less:.0f} % less memory" if less > SAME else "no gain"
