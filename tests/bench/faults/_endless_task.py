"""A small model over more samples than anybody has time for."""

from __future__ import annotations

import time
from typing import Final

import torch

from trainer_backend.tasks import Datasets, LossTerm

MICRO_BATCH_S: Final = 0.003
"""About how long one takes, so that the soak leaves the machine to others."""


class Points(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points of two classes."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(16) + index % 2, torch.tensor(index % 2)


class Task:
    """What `soak` trains."""

    def model(self) -> torch.nn.Module:
        """Enough of a state that its checkpoints are no trifle."""
        return torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))

    def datasets(self) -> Datasets:
        """No validation."""
        return Datasets(train=Points())

    def loss(self, model: torch.nn.Module, batch: list[torch.Tensor]) -> LossTerm:
        """Cross-entropy."""
        time.sleep(MICRO_BATCH_S)
        points, classes = batch
        return LossTerm(
            torch.nn.functional.cross_entropy(model(points), classes, reduction="sum"), len(classes)
        )
