"""How much two right answers may differ, so that rounding accuses nobody."""

from __future__ import annotations

from typing import Final

import msgspec

from trainer_backend.verify.compare import SMALL_LAYER, GradientDifference
from trainer_backend.verify.report import LIMITS

CAPS: Final = {"fp64": 1e-9, "fp32": 1e-3, "bf16": 0.3, "fp16": 0.3}
"""A floor above this is no rounding: chance, memory or the order of samples is at work."""
_EPS: Final = {"fp64": 2.0**-52, "fp32": 2.0**-23, "bf16": 2.0**-8, "fp16": 2.0**-11}
_LAYER_SLACK: Final = {"fp64": 1000.0, "fp32": 100.0, "bf16": 10.0, "fp16": 10.0}
"""A single tensor may be worse than the whole by this factor: its own sums may cancel more."""
_ONE_FOLD: Final = 1.5
_FLOOR: Final = 4.0
_NOISE: Final = 10.0
CANCELLED: Final = 1e-3
"""The error is held against at least this share of what the micro-batches' gradients add up to unsigned."""


class Limits(msgspec.Struct, frozen=True):
    """What is allowed in one precision, for the whole gradient and for each tensor.

    `grade`: the precision whose limits hold; fp32's for an fp64 run that rounds to fp32 inside.
    """

    grade: str
    one_fold_error: float
    floor: float
    """The larger of repeat and order."""
    noise: dict[str, float]
    """By tensor: what right answers were seen to differ by, absolute."""
    loss_noise: float = 0.0
    """What the losses of right answers were seen to differ by, absolute."""

    @property
    def whole(self) -> float:
        """Relative L2 error that the whole gradient is allowed."""
        floor = self.floor if self.floor <= CAPS[self.grade] else 0.0
        one_fold = self.one_fold_error if self.one_fold_error <= 1.0 else 0.0
        return max(LIMITS[self.grade], _ONE_FOLD * one_fold, _FLOOR * floor)

    @property
    def number(self) -> float:
        """Relative error that a reported loss or norm is allowed."""
        return max(100 * _EPS[self.grade], self.whole)

    def loss_holds(self, got: float | None, wanted: float | None, scale: float) -> bool:
        """Whether a reported loss is right. `scale`: what its parts add up to unsigned."""
        if got is None or wanted is None:
            return got is wanted
        return abs(got - wanted) <= max(self.number * max(scale, abs(wanted)), _NOISE * self.loss_noise)

    def bad_layers(self, difference: GradientDifference, scale: float, *, also: float = 0.0) -> set[str]:
        """Tensors whose error is more than rounding. `scale`: the whole gradient's norm.

        `also`: a relative error that is allowed besides, such as clipping's own.
        """
        least = max(64 * _EPS[self.grade] * scale, 0.0)
        relative = LIMITS[self.grade] * _LAYER_SLACK[self.grade]
        is_rounding = self.floor <= CAPS[self.grade]
        return {
            layer.name
            for layer in difference.layers
            if not layer.difference
            <= max(
                relative * max(layer.norm, SMALL_LAYER * difference.norm),
                least,
                also * layer.norm,
                _NOISE * self.noise.get(layer.name, 0.0) if is_rounding else 0.0,
            )
        }


def noise_of(*differences: GradientDifference) -> dict[str, float]:
    """By tensor, the largest difference among right answers."""
    noise: dict[str, float] = {}
    for difference in differences:
        for layer in difference.layers:
            noise[layer.name] = max(noise.get(layer.name, 0.0), layer.difference)
    return noise
