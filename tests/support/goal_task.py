"""A task whose evaluations give the numbers that a test wrote down, in this order."""

from __future__ import annotations

import time

import torch

from trainer_backend.tasks import Datasets, LossTerm


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Sample i is the number i."""

    uses_randomness = False

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index))


class Task:
    """One weight; training adds up the samples that were seen, evaluation gives `losses` in turn.

    `seen`: a file that gets the samples of each micro-batch, a line each.
    """

    def __init__(
        self, *, losses: list[float], length: int = 40, duration_s: float = 0.0, seen: str = ""
    ) -> None:
        self._losses, self._length, self._duration_s, self._seen = losses, length, duration_s, seen
        self._evaluations = 0

    def model(self) -> torch.nn.Module:
        """One weight."""
        return torch.nn.Linear(1, 1, bias=False)

    def datasets(self) -> Datasets:
        """The numbers, and one to evaluate on."""
        return Datasets(train=Numbers(self._length), validation=Numbers(1))

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> LossTerm:
        """The weight times 1, over the number of samples; in evaluation what the test wrote down."""
        if model.training:
            time.sleep(self._duration_s)
            if self._seen:
                with open(self._seen, "a", encoding="utf-8") as file:  # noqa: PTH123 - a line at a time
                    file.write(" ".join(str(int(value)) for value in batch.tolist()) + "\n")
            return LossTerm(model(torch.ones(len(batch), 1)).sum(), len(batch))
        return LossTerm(torch.tensor(self._value() * len(batch)), len(batch))

    def evaluate(self, model: torch.nn.Module, batch: torch.Tensor) -> dict[str, LossTerm]:
        """Accuracy is one minus the loss."""
        del model
        value = self._value()
        self._evaluations += 1
        return {"accuracy": LossTerm(torch.tensor((1 - value) * len(batch)), len(batch))}

    def _value(self) -> float:
        return float(self._losses[min(self._evaluations, len(self._losses) - 1)])
