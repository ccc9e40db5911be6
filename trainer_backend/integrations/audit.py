"""What a trainer really does with its micro-batches: pure judgement of what was measured.

A *unit* is what the loss is a mean over: a token or a sample. Its *coefficient* is the derivative of
what the trainer steps on by that unit's own loss. A window is right when every unit's is 1 / D, D being
the window's units: then the update is that of one large batch.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from trainer_backend.protocol import Scalar

TOLERANCE: Final = 1e-3
"""Relative; far above rounding, far below any fault worth a word."""

Level = Literal["right", "note", "fault"]


class SeenMicroBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch, as it entered a window."""

    units: int
    coefficient: float
    """Of each unit's loss; 0 where there is none."""
    auxiliary: float | None = None
    """Derivative by the micro-batch's auxiliary loss; None where there is none."""
    host_syncs: int | None = None
    duration_s: float = 0.0
    """To the start of the next one, or to the optimizer's step; 0 where that cannot be told."""
    bare_s: float | None = None
    """Its forward and backward alone; None where it was not measured."""


class SeenWindow(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one optimizer step of another trainer."""

    micro_batches: tuple[SeenMicroBatch, ...]
    asked: int
    """N that the trainer was given."""
    stale: bool
    """Whether gradients were there before its first micro-batch."""
    schedule_steps: int | None
    """How often the schedule moved since the step before; None without one."""

    @property
    def units(self) -> int:
        """The window's denominator D."""
        return sum(entry.units for entry in self.micro_batches)

    @property
    def weight(self) -> float:
        """Sum of coefficients; right is 1."""
        return sum(entry.units * entry.coefficient for entry in self.micro_batches)


class AuditFinding(msgspec.Struct, frozen=True):
    """One thing that was found; worded from its code and values."""

    code: str
    level: Level
    values: dict[str, Scalar] = {}


def judge(
    windows: Sequence[SeenWindow],
    *,
    auxiliary_ratio: float | None = None,
    raw_micro_batch_s: float | None = None,
) -> list[AuditFinding]:
    """Everything that can be said of these windows, faults first.

    `auxiliary_ratio`: what the model's auxiliary loss shall be multiplied by.
    `raw_micro_batch_s`: a bare forward and backward of the same batches, where none was measured in the run.
    """
    used = [window for window in windows if window.units]
    if not used:
        return [AuditFinding("nothing-seen", "note")]
    findings = [
        *_weights(used),
        *_tails(used),
        *_stale(used),
        *_schedule(used),
        *_auxiliary(used, auxiliary_ratio),
        *_syncs(used),
        *_overhead(used, raw_micro_batch_s),
    ]
    order = {"fault": 0, "note": 1, "right": 2}
    return sorted(findings, key=lambda finding: order[finding.level])


def _whole(windows: Sequence[SeenWindow]) -> list[SeenWindow]:
    """Windows that have all of their micro-batches."""
    return [window for window in windows if len(window.micro_batches) == window.asked]


def _weights(windows: Sequence[SeenWindow]) -> list[AuditFinding]:
    whole = _whole(windows) or list(windows)
    worst = max(whole, key=lambda window: abs(window.weight - 1))
    spread = max((_spread(window), index) for index, window in enumerate(whole))
    findings = []
    if abs(worst.weight - 1) > TOLERANCE:
        count = len(worst.micro_batches)
        if abs(worst.weight - count) <= TOLERANCE * count and count > 1:
            findings.append(AuditFinding("not-divided", "fault", {"steps": count}))
        else:
            findings.append(
                AuditFinding("divisor-wrong", "fault", {"weight": worst.weight, "units": worst.units})
            )
    if spread[0] > TOLERANCE:
        ragged = whole[spread[1]]
        shares = [entry.units * entry.coefficient for entry in ragged.micro_batches if entry.units]
        code = "mean-of-means" if _same(shares) else "units-weigh-unequally"
        findings.append(AuditFinding(code, "fault", {"ratio": 1 + spread[0]}))
    if not findings:
        findings.append(AuditFinding("equal-weights", "right", {"windows": len(whole)}))
    return findings


def _spread(window: SeenWindow) -> float:
    """Largest over smallest coefficient, less 1."""
    coefficients = [entry.coefficient for entry in window.micro_batches if entry.units]
    low, high = min(coefficients), max(coefficients)
    return high / low - 1 if low > 0 else float("inf")


def _same(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= TOLERANCE * max(abs(value) for value in values)


def _tails(windows: Sequence[SeenWindow]) -> list[AuditFinding]:
    tails = [window for window in windows if len(window.micro_batches) < window.asked]
    if not tails:
        return []
    worst = max(tails, key=lambda window: abs(window.weight - 1))
    count = len(worst.micro_batches)
    if abs(worst.weight - 1) <= TOLERANCE:
        return [AuditFinding("tail-right", "right", {"windows": len(tails)})]
    values: dict[str, Scalar] = {"micro_batches": count, "steps": worst.asked, "weight": worst.weight}
    by_n = abs(worst.weight - count / worst.asked) <= TOLERANCE
    return [AuditFinding("tail-divided-by-n" if by_n else "tail-wrong", "fault", values)]


def _stale(windows: Sequence[SeenWindow]) -> list[AuditFinding]:
    stale = sum(window.stale for window in windows)
    return [AuditFinding("stale-gradients", "fault", {"windows": stale})] if stale else []


def _schedule(windows: Sequence[SeenWindow]) -> list[AuditFinding]:
    steps = [window.schedule_steps for window in windows[1:] if window.schedule_steps is not None]
    if not steps:
        return []
    usual = statistics.mode(steps)
    if usual == 1:
        return [AuditFinding("schedule-per-step", "right")]
    if usual == 0:
        return [AuditFinding("schedule-still", "note")]
    return [AuditFinding("schedule-per-micro-batch", "fault", {"moves": usual})]


def _auxiliary(windows: Sequence[SeenWindow], ratio: float | None) -> list[AuditFinding]:
    if not ratio:
        return []
    sums = [
        sum(entry.auxiliary for entry in window.micro_batches if entry.auxiliary is not None) / ratio
        for window in _whole(windows)
        if any(entry.auxiliary is not None for entry in window.micro_batches)
    ]
    if not sums:
        return [AuditFinding("auxiliary-not-used", "note")]
    worst = max(sums, key=lambda total: abs(total - 1))
    if abs(worst - 1) <= TOLERANCE:
        return [AuditFinding("auxiliary-right", "right")]
    return [AuditFinding("auxiliary-times", "fault", {"times": worst})]


def _syncs(windows: Sequence[SeenWindow]) -> list[AuditFinding]:
    counts = [e.host_syncs for window in windows for e in window.micro_batches if e.host_syncs is not None]
    if not counts:
        return []
    usual = statistics.median(counts)
    return [AuditFinding("host-syncs", "note" if usual else "right", {"count": usual})]


def _overhead(windows: Sequence[SeenWindow], raw_s: float | None) -> list[AuditFinding]:
    """By the medians of micro-batches whose duration and bare time are both known."""
    seen = [entry for window in windows for entry in window.micro_batches if entry.duration_s]
    pairs = [(e.duration_s, bare) for e in seen if (bare := raw_s if e.bare_s is None else e.bare_s)]
    if not pairs:
        return []
    more_s = statistics.median(duration - bare for duration, bare in pairs)
    ratio = statistics.median(duration / bare for duration, bare in pairs)
    values: dict[str, Scalar] = {"microseconds": more_s * 1e6, "ratio": ratio}
    return [AuditFinding("overhead", "note", values)]


# ------------------------------------------------------------------------------------- words

SENTENCES: Final[dict[str, str]] = {
    "nothing-seen": "No window with a loss was seen. Let the trainer take a few optimizer steps.",
    "equal-weights": "Every unit weighs 1 / D in its window: the update is that of the large batch.",
    "not-divided": "The sum of {steps} micro-batches is not divided: the gradient is {steps} times too large."
    " Divide the loss by the window's units, or the learning rate means something else for each N.",
    "divisor-wrong": "A window's units weigh {weight:.4g} in sum where 1 is right ({units} units)."
    " The trainer counts other units than the loss does: count those that have a label after the shift.",
    "mean-of-means": "Each micro-batch weighs the same although they have different numbers of units: a"
    " unit in a short one weighs up to {ratio:.3g} times as much. Sum the losses, and"
    " divide by the window's units.",
    "units-weigh-unequally": "Units of one window weigh up to {ratio:.3g} times as much as others."
    " Sum the losses, and divide by the window's units.",
    "tail-right": "The last window of an epoch, shorter than N, is divided by its own weight.",
    "tail-divided-by-n": "The last window of an epoch has {micro_batches} micro-batches but is divided by N ="
    " {steps}: its update is {weight:.3g} of what it should be. Drop the tail, or let N divide the epoch.",
    "tail-wrong": "The last window of an epoch ({micro_batches} of {steps} micro-batches) weighs {weight:.3g}"
    " where 1 is right. Drop the tail, or choose N that divides the epoch.",
    "stale-gradients": "{windows} windows began with gradients left from before. Zero them after each step.",
    "schedule-per-step": "The learning rate's schedule moves once per optimizer step.",
    "schedule-still": "The learning rate's schedule did not move. Call its step() after each optimizer step.",
    "schedule-per-micro-batch": "The schedule moves {moves} times per optimizer step: warm-up and decay are"
    " over {moves} times too early. Call its step() once after each optimizer"
    " step.",
    "auxiliary-not-used": "The model has an auxiliary loss, but it does not enter the gradient."
    " Ask the model for it (output_router_logits = true).",
    "auxiliary-right": "The auxiliary loss weighs what the model asks for.",
    "auxiliary-times": "The auxiliary loss weighs {times:.3g} times what the model asks for."
    " Divide it by N, or multiply router_aux_loss_coef by 1 / {times:.3g}.",
    "host-syncs": "{count:g} waits of the host for the device per micro-batch: item(), float(), bool().",
    "overhead": "A micro-batch takes {microseconds:.0f} µs more than its bare forward and backward"
    " ({ratio:.3g} x).",
}


def sentence(finding: AuditFinding) -> str:
    """A finding in plain words, with what to do."""
    return SENTENCES[finding.code].format(**finding.values)


def report(findings: Sequence[AuditFinding]) -> str:
    """All findings, a line each."""
    marks = {"fault": "FAULT", "note": "note", "right": "right"}
    return "\n".join(f"{marks[finding.level]:5}  {sentence(finding)}" for finding in findings)
