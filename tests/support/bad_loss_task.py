"""A task whose loss is one of `bad_losses`, for a run of its own."""

from __future__ import annotations

from typing import Any

import torch

from tests.numerics.probes import Probe
from tests.support.bad_losses import BAD_LOSSES
from trainer_backend.tasks import Datasets


class Task:
    """`what` names the loss."""

    def __init__(self, what: str) -> None:
        self._loss, _ = BAD_LOSSES[what]

    def model(self) -> Probe:
        """One parameter."""
        return Probe()

    def datasets(self) -> Datasets:
        """Eight samples."""
        return Datasets(train=torch.arange(8.0))

    def loss(self, model: Probe, batch: torch.Tensor) -> Any:
        """Whatever it is."""
        return self._loss(model, batch)
