"""What to do about BatchNorm, which sees one micro-batch at a time whatever N is."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

BatchNormPolicy = Literal["keep", "adjust-momentum", "freeze", "group-norm"]


def treat_batch_norm(model: nn.Module, policy: BatchNormPolicy, accumulation_steps: int) -> nn.Module:
    """Apply a policy to every BatchNorm layer of `model`, in place; gives the model.

    adjust-momentum: N updates with m' = 1 - (1 - m)^(1/N) forget as much as one update with m.
    """
    match policy:
        case "keep":
            pass
        case "adjust-momentum":
            for layer in _layers(model):
                if layer.momentum is not None:
                    layer.momentum = 1 - (1 - layer.momentum) ** (1 / accumulation_steps)
        case "freeze":
            for layer in _layers(model):
                _freeze(layer)
        case "group-norm":
            for parent in list(model.modules()):
                _replace_children(parent)
    return model


def _layers(model: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


def _freeze(layer: _BatchNorm) -> None:
    layer.eval()
    layer.train = lambda mode=True: layer  # type: ignore[method-assign]  # noqa: ARG005 - `model.train()` must not wake it


def _replace_children(parent: nn.Module) -> None:
    for name, layer in list(parent.named_children()):
        if isinstance(layer, _BatchNorm):
            setattr(parent, name, _as_group_norm(layer))


def _as_group_norm(layer: _BatchNorm) -> nn.Module:
    groups = math.gcd(32, layer.num_features)
    norm = nn.GroupNorm(groups, layer.num_features, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        with torch.no_grad():
            norm.weight.copy_(layer.weight)
            norm.bias.copy_(layer.bias)
    # Some backbones put their activation into the norm layer itself (timm's BatchNormAct2d).
    after = [
        getattr(layer, name) for name in ("drop", "act") if isinstance(getattr(layer, name, None), nn.Module)
    ]
    return nn.Sequential(norm, *after) if after else norm
