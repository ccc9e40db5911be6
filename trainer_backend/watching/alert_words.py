"""What an alert says: what was seen, since when, what can be done. One list, read by both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trainer_backend.kinds.task_warnings import worded
from trainer_backend.protocol import AlertRaised, Scalar

ALERTS: Final[dict[str, str]] = {
    "loss-spike": "Loss spike at step {step}: {value}, usually {usual} ({deviations} standard "
    "deviations). Look at the samples of this step, or clip the gradient norm.",
    "gradient-spike": "Gradient norm spike at step {step}: {value}, usually {usual} ({deviations} "
    "standard deviations). Clipping the gradient norm limits what such a step can do.",
    "loss-drift": "The loss has risen by {percent} % since step {since_step}: {value}, {usual} before. "
    "Lower the learning rate, or go back to a checkpoint before that step.",
    "gradient-drift": "The gradient norm has risen by {percent} % since step {since_step}: {value}, "
    "{usual} before. If the loss rises too, lower the learning rate.",
    "step-time-drift": "Steps take {percent} % longer since step {since_step}: {value} s, {usual} s "
    "before. Look for other programs on this machine, heat, or longer samples.",
    "step-time-spread": "Step times vary more since step {since_step}: the slowest of 20 takes {value} "
    "times the median, {usual} before. Look for other programs on this machine.",
    "memory-growth": "Memory has grown by {percent} % since step {since_step}: {value}, {usual} before. "
    "If it goes on, something keeps references: a list of losses, a cache, a data set in the workers.",
    "data-wait": "{value} of the time waits for data since step {since_step}. Use more loader workers "
    "(data.num_workers), or cheaper transforms.",
    "gpu-slowed": "GPU {device} has been slowed down by heat or a fault for {value} of the time since "
    "step {since_step} (now {temperature} °C). Check its cooling and its power supply.",
    "update-large": "Updates are {value} of the size of the weights they change at step {step}; below "
    "{usual} is usual. Lower the learning rate.",
    "no-gradient": "{count} of {of} parameters have had no gradient so far, {first} first: they are not "
    "trained. Freeze them if that is meant; else look where the forward pass leaves them out.",
}
"""Sentences by code. {names} are the alert's fields and values."""

SHARES: Final = frozenset({"data-wait", "gpu-slowed", "update-large"})
"""Alerts whose value and limit are shares."""


def alert_sentence(alert: AlertRaised, tr: Callable[[str], str] = str) -> str:
    """What an alert says."""
    values: dict[str, Scalar] = {
        "step": alert.step,
        "since_step": alert.since_step,
        "value": _quantity(alert.code, alert.value),
        "usual": _quantity(alert.code, alert.usual),
        **alert.values,
    }
    return worded(ALERTS, alert.code, values, tr)


def _quantity(code: str, value: float | None) -> Scalar:
    """A share in percent, memory in GiB, anything else as a number."""
    if value is None:
        return None
    if code in SHARES:
        return f"{100 * value:.0f} %"
    if code == "memory-growth":
        return f"{value / 2**30:.2f} GiB"
    return f"{value:.3g}"
