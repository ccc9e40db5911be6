"""A small task with dropout, BatchNorm and noise, which steers its own run at fixed micro-batches.

FAULTS_ASKS in the environment says which of its two commands it sends (1, 2, 3: both); none while a run is
resumed.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any, Final

import torch

from trainer_backend.inbox import send
from trainer_backend.protocol import AnyCommand, SetAccumulation, SetLearningRate
from trainer_backend.tasks import Datasets, LossTerm

ASK_AT: Final = (5, 11)
"""The micro-batches, counted over the process, in which a command is sent."""
PATIENCE_S: Final = 5.0


class Noisy(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points of two classes, moved by chance each time they are read."""

    def __len__(self) -> int:
        return 26

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.linspace(-1.0, 1.0, 6) * (1 + index / 26) + torch.randn(6), torch.tensor(index % 2)


class Task:
    """What `_trials` trains."""

    def __init__(self) -> None:
        self._asks = int(os.environ.get("FAULTS_ASKS", "0"))
        self._losses = 0

    def model(self) -> torch.nn.Module:
        """Buffers that training changes, and a generator that it draws from."""
        return torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2)
        )

    def datasets(self) -> Datasets:
        """Both noisy."""
        return Datasets(train=Noisy(), validation=Noisy())

    def loss(self, model: torch.nn.Module, batch: list[torch.Tensor]) -> LossTerm:
        """Cross-entropy; before it a command, where one is due."""
        if model.training:
            self._losses += 1
            if self._asks & 1 and self._losses == ASK_AT[0]:
                ask(SetAccumulation(steps=2))
            if self._asks & 2 and self._losses == ASK_AT[1]:
                ask(SetLearningRate(value=0.02))
        points, classes = batch
        return LossTerm(
            torch.nn.functional.cross_entropy(model(points), classes, reduction="sum"), len(classes)
        )


def ask(command: AnyCommand) -> None:
    """Send as another process would, and wait until the trainer has answered."""
    exempt: Any = ctypes.CDLL(None).faults_exempt
    inbox, said = Path(os.environ["FAULTS_UNDER"]) / "inbox", Path(os.environ["FAULTS_SENT"])
    exempt(1)
    send(inbox, command)
    with said.open("a", encoding="ascii") as file:  # who is killed before that was never told it was sent
        file.write(f"{command.id}\n")
    exempt(0)
    give_up_at = time.monotonic() + PATIENCE_S
    while (inbox / f"{command.id}.json").exists() and time.monotonic() < give_up_at:
        time.sleep(0.002)
