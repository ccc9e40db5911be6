"""A task that draws from every generator there is, and that can be killed at a chosen moment.

Augmentation draws from Python's, NumPy's and torch's generators, the model has dropout and BatchNorm.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer_backend.inbox import send
from trainer_backend.protocol import AnyCommand, SetAccumulation, SetLearningRate, Stop
from trainer_backend.tasks import Datasets, LossTerm


class Augmented(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points of two classes, moved by chance each time they are read."""

    def __len__(self) -> int:
        return 62

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        base = torch.linspace(-1.0, 1.0, 8) * (1.0 + index / 62)
        moved = base + 0.1 * torch.randn(8) + random.random() + float(np.random.rand())  # noqa: NPY002, S311
        return moved, torch.tensor(index % 2)


class Model(torch.nn.Sequential):
    """Kills its process when it is asked for its state the `kill_saving`-th time."""

    kill_saving = 0
    saved = 0

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As any module's."""
        self.saved += 1
        if self.saved == self.kill_saving:
            die()
        return super().state_dict(*args, **kwargs)


def die() -> None:
    """As by kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


class Task:
    """At which call of the loss to ask or to stop; at which loss, step or save to die; 0 is never."""

    def __init__(
        self,
        *,
        inbox: str,
        ask_at: int = 0,
        stop_at: int = 0,
        stop_now_at: int = 0,
        kill_loss: int = 0,
        kill_step: int = 0,
        kill_saving: int = 0,
    ) -> None:
        self._inbox = Path(inbox)
        self._ask_at = ask_at
        self._stop_at = stop_at
        self._stop_now_at = stop_now_at
        self._kill_loss = kill_loss
        self._kill_step = kill_step
        self._kill_saving = kill_saving
        self._losses = 0
        self._steps = 0

    def model(self) -> torch.nn.Module:
        """Dropout, and buffers that training changes."""
        model = Model(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2)
        )
        model.kill_saving = self._kill_saving
        return model

    def optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW that may die in a step."""
        optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
        optimizer.register_step_post_hook(self._stepped)
        return optimizer

    def _stepped(self, *_: Any) -> None:
        self._steps += 1
        if self._steps == self._kill_step:
            die()

    def datasets(self) -> Datasets:
        """Augmented both."""
        return Datasets(train=Augmented(), validation=Augmented())

    def loss(self, model: torch.nn.Module, batch: list[torch.Tensor]) -> LossTerm:
        """Cross-entropy."""
        points, classes = batch
        if model.training:
            self._losses += 1
            if self._losses == self._ask_at:
                # Another N and learning rate, from the next window on.
                self._ask(SetAccumulation(steps=2, learning_rate_rule="sqrt"))
                self._ask(SetLearningRate(value=0.02))
            if self._losses == self._stop_at:
                self._ask(Stop())
            if self._losses == self._stop_now_at:
                self._ask(Stop(now=True))
            if self._losses == self._kill_loss:
                die()
        total = torch.nn.functional.cross_entropy(model(points), classes, reduction="sum")
        return LossTerm(total, len(classes))

    def _ask(self, command: AnyCommand) -> None:
        """Send a command, and wait until it is answered: its file is taken away."""
        sent = send(self._inbox, command)
        deadline = time.monotonic() + 20
        while (self._inbox / f"{sent}.json").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
