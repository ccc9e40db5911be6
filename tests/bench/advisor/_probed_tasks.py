"""Tasks whose plans are measured: a convolutional net and a transformer, large ones and quick ones."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.bench.models import Blocks, token_loss
from trainer_backend.tasks import Batch, Datasets, LossTerm

RECIPE: Final = """
[run]
name = "plan"
device = "cpu"
max_samples = 4096
[task]
kind = "custom"
entry = "tests.bench.advisor._probed_tasks:{entry}"
[task.options]
{options}
[accumulation]
micro_batch_size = 1
effective_batch_size = {effective_batch}
[optimizer]
learning_rate = 0.001
"""


class Pictures:
    """A convolutional net on square pictures."""

    def __init__(self, width: int, side: int, count: int = 256) -> None:
        self._width, self._side, self._count = width, side, count

    def model(self) -> nn.Module:
        """Six convolutions, halved twice."""
        layers: list[nn.Module] = []
        before = 3
        for place in range(6):
            stride = 2 if place in (2, 4) else 1
            layers += [nn.Conv2d(before, self._width, 3, stride, 1), nn.GroupNorm(4, self._width), nn.ReLU()]
            before = self._width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))

    def datasets(self) -> Datasets:
        """Noise and its labels."""
        rows = torch.randn(self._count, 3, self._side, self._side)
        return Datasets(train=TensorDataset(rows, torch.arange(self._count) % 10))

    def loss(self, model: nn.Module, batch: Batch) -> LossTerm:
        """Cross-entropy, summed."""
        x, y = batch
        return LossTerm(functional.cross_entropy(model(x), y, reduction="sum"), len(y))


class Tokens:
    """A transformer on bytes."""

    def __init__(self, layers: int, width: int, length: int, count: int = 256) -> None:
        self._layers, self._width, self._length, self._count = layers, width, length, count

    def model(self) -> nn.Module:
        """Pre-norm blocks."""
        return Blocks(self._layers, self._width)

    def datasets(self) -> Datasets:
        """Random bytes."""
        return Datasets(train=TensorDataset(torch.randint(0, 256, (self._count, self._length + 1))))

    def loss(self, model: nn.Module, batch: Batch) -> LossTerm:
        """Of the next byte."""
        return token_loss(model, batch[0])


def written(folder: Path, entry: str, effective_batch: int, **options: int) -> Path:
    """A recipe file for one of the tasks."""
    path = folder / f"{entry}-{'-'.join(map(str, options.values()))}.toml"
    lines = "\n".join(f"{key} = {value}" for key, value in options.items())
    path.write_text(RECIPE.format(entry=entry, options=lines, effective_batch=effective_batch), "utf-8")
    return path
