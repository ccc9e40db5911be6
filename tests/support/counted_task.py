"""The probe's task whose samples have tokens: sample i has i % 3 + 1, all of them valid."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

from trainer_backend.tasks import Datasets, LossTerm


class Task:
    """w = 0, loss = -sum(w * y), y_i = 10 ** i, weight = samples. `counts`: whether tokens are told."""

    def __init__(self, *, length: int = 12, counts: bool = True) -> None:
        self._length = length
        if counts:
            self.count = _count

    def model(self) -> torch.nn.Module:
        """One number."""
        return torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)

    def datasets(self) -> Datasets:
        """Powers of ten, and the number of tokens of each."""
        index = torch.arange(self._length)
        return Datasets(train=TensorDataset(10.0 ** (index % 12).double(), index % 3 + 1))

    def loss(self, model: torch.nn.Module, batch: list[torch.Tensor]) -> LossTerm:
        """Minus the sum, over the number of samples."""
        y, _ = batch
        return LossTerm(-model(y[:, None]).sum(), len(y))


def _count(batch: list[torch.Tensor]) -> tuple[int, int]:
    y, tokens = batch
    return len(y), int(tokens.sum())
