"""What a pretrained network expects of a picture's values, and what a network without a past gets."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from trainer_backend.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normalization:
    """(value − mean) / std for each channel, of values from 0 to 1; `scale` first for networks of 0 … 255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1.0
    reverse: bool = False
    """Blue comes first (BGR)."""

    def words(self) -> str:
        """Its figures in one line."""
        mean, std = (", ".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        order = ", BGR" if self.reverse else ""
        return f"mean {mean}; deviation {std}{order}"

    def apply(self, image_chw: torch.Tensor) -> torch.Tensor:
        """The picture as the network expects it, fp32 (c, h, w)."""
        channels = image_chw.shape[0]
        ordered = image_chw.flip(0) if self.reverse else image_chw
        return (ordered * self.scale - _per_channel(self.mean, channels)) / _per_channel(self.std, channels)

    def undo(self, image_chw: torch.Tensor) -> torch.Tensor:
        """From 0 to 1 again, for people to look at."""
        channels = image_chw.shape[0]
        values = (
            image_chw * _per_channel(self.std, channels) + _per_channel(self.mean, channels)
        ) / self.scale
        return values.flip(0) if self.reverse else values


def _per_channel(values: tuple[float, ...], channels: int) -> torch.Tensor:
    """(c, 1, 1): stated ones, or their mean where the picture has other channels than the network had."""
    if len(values) != channels:
        values = (sum(values) / len(values),) * channels
    return torch.tensor(values)[:, None, None]


def checked_range(values: tuple[float, float] | None) -> tuple[float, float] | None:
    """`data.value_range`, whose ends differ. Raises UsageError."""
    if values is not None and not values[0] < values[1]:
        message = f"data.value_range = [{values[0]:g}, {values[1]:g}]: the second must be above the first."
        raise UsageError(message)
    return values


def stated(mean: tuple[float, ...], std: tuple[float, ...], channels: int) -> Normalization | None:
    """As the recipe writes it; None when it does not. Raises UsageError."""
    if not mean and not std:
        return None
    if len(mean) != channels or len(std) != channels:
        message = (
            f"task.mean has {len(mean)} values and task.std {len(std)}, but task.channels = {channels}."
            " Give one of each for every channel."
        )
        raise UsageError(message)
    return Normalization(mean=mean, std=std)


def of_timm(config: dict[str, Any]) -> Normalization:
    """From a timm model's `pretrained_cfg`."""
    return Normalization(mean=tuple(map(float, config["mean"])), std=tuple(map(float, config["std"])))


def of_encoder(parameters: dict[str, Any]) -> Normalization | None:
    """From segmentation_models_pytorch's `get_preprocessing_params`; None where it says nothing."""
    if parameters.get("mean") is None or parameters.get("std") is None:
        return None
    high = (parameters.get("input_range") or (0, 1))[1]
    return Normalization(
        mean=tuple(map(float, parameters["mean"])),
        std=tuple(map(float, parameters["std"])),
        scale=float(high),
        reverse=parameters.get("input_space") == "BGR",
    )
