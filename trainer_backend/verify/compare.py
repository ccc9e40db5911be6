"""Two gradients side by side: relative error, scale and direction, whole and by parameter tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec
import torch

Gradient: TypeAlias = Mapping[str, torch.Tensor | None]
"""By parameter name; None is zero."""
SMALL_LAYER: Final = 1e-6
"""A layer's error is held against at least this share of the whole gradient's norm."""


class LayerDifference(msgspec.Struct, frozen=True):
    """One tensor: norms and inner product in fp64."""

    name: str
    difference: float
    """|g - G| of this tensor."""
    norm: float
    """|G| of this tensor."""
    other_norm: float
    product: float
    """<g, G>."""


class GradientDifference(msgspec.Struct, frozen=True):
    """How far a gradient g lies from the reference G: relative error, ratio and cosine."""

    error: float
    alpha: float | None
    cosine: float | None
    norm: float
    """|G|."""
    other_norm: float
    """|g|."""
    layers: tuple[LayerDifference, ...]

    def layer_error(self, layer: LayerDifference) -> float:
        """Relative error of one tensor; a gradient that is truly zero accuses nobody."""
        return ratio(layer.difference, max(layer.norm, SMALL_LAYER * self.norm))


def ratio(numerator: float, denominator: float) -> float:
    """numerator / denominator; 0 / 0 is 0, and anything else over 0 is infinite."""
    if denominator > 0:
        return numerator / denominator
    return 0.0 if numerator == 0 else math.nan if math.isnan(numerator) else math.inf


def compare(got: Gradient, reference: Gradient, *, at_least: float = 0.0) -> GradientDifference:
    """Hold `got` against `reference`. `at_least`: the error's denominator is no smaller than this."""
    layers = tuple(_layer(name, got.get(name), right) for name, right in reference.items())
    difference = math.sqrt(math.fsum(layer.difference**2 for layer in layers))
    norm = math.sqrt(math.fsum(layer.norm**2 for layer in layers))
    other = math.sqrt(math.fsum(layer.other_norm**2 for layer in layers))
    product = math.fsum(layer.product for layer in layers)
    return GradientDifference(
        error=ratio(difference, max(norm, at_least)),
        alpha=product / norm**2 if norm else None,
        cosine=product / (norm * other) if norm and other else None,
        norm=norm,
        other_norm=other,
        layers=layers,
    )


def _layer(name: str, got: torch.Tensor | None, right: torch.Tensor | None) -> LayerDifference:
    if got is None and right is None:
        return LayerDifference(name, 0.0, 0.0, 0.0, 0.0)
    one = None if got is None else dense(got)
    two = None if right is None else dense(right)
    if one is None or two is None:
        alone = one if two is None else two
        assert alone is not None
        norm = alone.norm().item()
        return LayerDifference(name, norm, 0.0 if two is None else norm, 0.0 if one is None else norm, 0.0)
    one = one.to(two.device)
    return LayerDifference(
        name,
        (one - two).norm().item(),
        two.norm().item(),
        one.norm().item(),
        torch.dot(one.flatten(), two.flatten()).item(),
    )


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient as dense fp64 (on the CPU where the device has no fp64)."""
    plain = gradient.detach()
    if plain.is_sparse:
        plain = plain.to_dense()
    return plain.cpu().double() if plain.device.type == "mps" else plain.double()


def distance(one: Gradient, two: Gradient) -> float:
    """|one - two| / |two|."""
    return compare(one, two).error


def added(one: dict[str, torch.Tensor | None], two: Gradient, scale: float = 1.0) -> None:
    """one += scale * two, in fp64."""
    for name, gradient in two.items():
        if gradient is None:
            continue
        present = one.get(name)
        if present is None:
            one[name] = dense(gradient) * scale
        else:
            present.add_(dense(gradient).to(present.device), alpha=scale)
