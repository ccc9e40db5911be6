"""A task that pauses its run in each window, so that a test may look at a live run that stands still."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from trainer_backend.inbox import send
from trainer_backend.protocol import Pause
from trainer_backend.tasks import Datasets, LossTerm

PATIENCE_S = 0.15
"""The inbox is looked into every 50 ms, but not while a run is loading and its loss is tried."""


class Weight(torch.nn.Module):
    """One number, which each update changes: so a new value is a new window."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))


class Task:
    """Learns to be small; 22 samples, so that windows of an epoch's end are short."""

    def __init__(self, *, inbox: str) -> None:
        self._inbox = Path(inbox)
        self._seen: float | None = None

    def model(self) -> Weight:
        """The parameter."""
        return Weight()

    def datasets(self) -> Datasets:
        """Ones."""
        return Datasets(train=[torch.ones((), dtype=torch.float64)] * 22)

    def loss(self, model: Weight, batch: torch.Tensor) -> LossTerm:
        """The parameter times each sample; asks for a pause in a window's first micro-batch."""
        now = float(model.w)
        if now != self._seen:
            self._seen = now
            sent = self._inbox / f"{send(self._inbox, Pause(asked_by='the task'))}.json"
            deadline = time.monotonic() + PATIENCE_S
            while sent.exists() and time.monotonic() < deadline:
                time.sleep(0.002)
            if sent.exists():  # the run is loading: ask again
                self._seen = None
        return LossTerm((model.w * batch).sum(), len(batch))
