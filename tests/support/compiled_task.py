"""A small net over rows of two widths, so that a compiled model meets a new shape on the way."""

from __future__ import annotations

import torch

from trainer_backend.tasks import Datasets, LossTerm


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """(s, 4) fp64; the first eight have s = 3, the others s = 5."""

    uses_randomness = False

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3 if index < 8 else 5, 4, generator=generator, dtype=torch.float64)


class Task:
    """Mean square over samples."""

    def model(self) -> torch.nn.Module:
        """4 -> 2, the same each time."""
        torch.manual_seed(0)
        layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
        return torch.nn.Sequential(*layers).double()

    def datasets(self) -> Datasets:
        """Rows of two widths."""
        return Datasets(train=Rows())

    def loss(self, model: torch.nn.Module, x: torch.Tensor) -> LossTerm:
        """The sum of squares, over the number of samples."""
        return LossTerm(model(x).square().sum(), len(x))
