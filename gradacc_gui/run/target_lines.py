"""The targets of a run and how they stand, as lines of words."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from gradacc_gui.words import bound_words, target_words, tr
from trainer_backend.config import RunConfig
from trainer_backend.goals import Target, targets_of
from trainer_backend.protocol import TargetJudged
from trainer_backend.run_facts import RunFacts

Standing: TypeAlias = Literal["met", "missed", "unknown"]
VERDICTS: Final[dict[Standing, str]] = {"met": "met", "missed": "missed", "unknown": "not yet known"}
ACTS: Final = {
    "note": "a miss is recorded",
    "warn": "a miss is a warning",
    "pause": "a miss pauses the run",
    "stop": "a miss stops the run",
    "roll-back": "a miss goes back to a good checkpoint",
}


class TargetLine(msgspec.Struct, frozen=True, kw_only=True):
    """One target beside what was measured."""

    quantity: str
    bound: str
    """at most 12 GiB"""
    reached: str
    """11.2 GiB; empty while nothing is measured."""
    verdict: Standing
    overridden: bool
    evidence: str
    """What the verdict comes from, and what a miss does."""


def target_lines(config: RunConfig | None, so_now: RunFacts) -> list[TargetLine]:
    """A line for each target of the recipe, in its order."""
    targets = () if config is None else targets_of(config.targets)
    return [_line(target, so_now.targets.get((target.key, target.bound))) for target in targets]


def _line(target: Target, fact: TargetJudged | None) -> TargetLine:
    quantity, unit = target_words(target.key)
    quantity = f"{quantity[:1].upper()}{quantity[1:]}"
    bound = bound_words(target.key, target.bound, target.limit)
    if fact is None:
        return TargetLine(
            quantity=quantity, bound=bound, reached="", verdict="unknown", overridden=False,
            evidence=_sentence(tr("nothing is measured yet"), tr(ACTS[target.act])),
        )  # fmt: skip
    reached = "" if fact.reached is None else f"{fact.reached:,.4g} {unit}".strip()
    parts = []
    if fact.measurements:
        count = tr("{count} measurements") if fact.measurements > 1 else tr("{count} measurement")
        parts.append(count.format(count=f"{fact.measurements:,}"))
    if fact.expected is not None and not fact.is_final:
        parts.append(tr("expected at the end: {value}").format(value=f"{fact.expected:,.4g} {unit}".strip()))
    if target.by_sample is not None:
        parts.append(tr("by sample {sample}").format(sample=f"{target.by_sample:,}"))
    if fact.overridden:
        parts.append(tr("the run was told to go on"))
    return TargetLine(
        quantity=quantity, bound=bound, reached=reached, verdict=fact.verdict, overridden=fact.overridden,
        evidence=_sentence(*parts, tr(ACTS[target.act])),
    )  # fmt: skip


def _sentence(*parts: str) -> str:
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def gate_sentence(asking: TargetJudged) -> str:
    """What has paused the run, for whoever is to answer."""
    quantity, unit = target_words(asking.key)
    reached = tr("not measured") if asking.reached is None else f"{asking.reached:,.4g} {unit}".strip()
    return tr(
        "A target is missed, and the run waits for your answer: {quantity} is {reached}; the target is"
        " {bound}."
    ).format(quantity=quantity, reached=reached, bound=bound_words(asking.key, asking.bound, asking.target))
