"""A task whose loss is NaN from a chosen update on, for as long as a file lies there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trainer_backend.tasks import Datasets, LossTerm


class Points(torch.utils.data.Dataset[torch.Tensor]):
    """Numbers that count upwards."""

    uses_randomness = False

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index))


class Task:
    """After `updates` of this process the loss is NaN while `while_there` is there."""

    def __init__(self, *, updates: int = 0, while_there: str = "") -> None:
        self._most = updates
        self._while_there = Path(while_there)
        self._updates = 0

    def model(self) -> torch.nn.Module:
        """Two weights."""
        return torch.nn.Linear(2, 1)

    def datasets(self) -> Datasets:
        """Few."""
        return Datasets(train=Points())

    def optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW that counts."""
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        optimizer.register_step_post_hook(self._stepped)
        return optimizer

    def _stepped(self, *_: Any) -> None:
        self._updates += 1

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> LossTerm:
        """The squares, or NaN."""
        total = model(batch).square().sum()
        if self._updates >= self._most and self._while_there.is_file():
            total = total * float("nan")
        return LossTerm(total, len(batch))
