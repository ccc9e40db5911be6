"""The probe of the formulas' text: one parameter, and every window's mean told by its digits.

w = 0, loss = -sum(w * y), weight = number of y, SGD at learning rate 1 in fp64. So the gradient norm of
a window is the mean of the y that entered it: with y_i = 10 ** i, its digits name the samples.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from trainer_backend.inbox import send
from trainer_backend.protocol import AnyCommand, SetAccumulation, SetMicroBatchSize, Stop
from trainer_backend.tasks import Datasets, LossTerm


class Weight(torch.nn.Module):
    """One number."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """The product w * y."""
        return self.w * y


class Powers(torch.utils.data.Dataset[torch.Tensor]):
    """y_i = 10 ** (i % 12), so that a digit stays exact in fp64."""

    uses_randomness = False

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(10.0 ** (index % 12), dtype=torch.float64)


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    """The same without a length."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._powers = Powers(length)
        self._length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Its samples in order."""
        for index in range(self._length):
            yield self._powers[index]


class Task:
    """What it can be made to do, all from 1.

    `at`: the micro-batch inside which `command` is sent and answered. `fail_at`: the one that raises.
    `largest`: samples that memory holds, until `roomier_at`.
    `nan_at`: the sample whose loss is NaN, each time. `only_rank`: which of several ranks sends, fails and
    runs out of memory.
    """

    def __init__(
        self,
        *,
        length: int = 12,
        iterable: bool = False,
        duration_s: float = 0.0,
        at: int = 0,
        command: str = "",
        value: int = 0,
        inbox: str = "",
        fail_at: int = 0,
        largest: int = 0,
        roomier_at: int = 0,
        nan_at: int = 0,
        only_rank: int = -1,
    ) -> None:
        if only_rank not in {-1, int(os.environ.get("RANK", "0"))}:
            at = fail_at = largest = 0
        self._data = Stream(length) if iterable else Powers(length)
        self._duration_s = duration_s
        self._at = at
        self._command = command
        self._value = value
        self._inbox = inbox
        self._fail_at = fail_at
        self._largest = largest
        self._roomier_at = roomier_at
        self._nan_at = nan_at
        self._count = 0

    def model(self) -> Weight:
        """The parameter."""
        return Weight()

    def datasets(self) -> Datasets:
        """Powers of ten."""
        return Datasets(train=self._data, validation=Powers(3))

    def loss(self, model: Weight, batch: torch.Tensor) -> LossTerm:
        """Minus the sum, over the number of samples."""
        if model.training:
            self._count += 1
            time.sleep(self._duration_s)
            if self._count == self._at:
                self._ask()
            if self._count == self._roomier_at:
                self._largest = 0
            if self._largest and len(batch) > self._largest:
                raise torch.OutOfMemoryError("the probe has no more memory")
            if self._count == self._fail_at:
                raise ValueError("the probe fails here")
        total = -model(batch).sum()
        if model.training and self._nan_at and 10.0 ** (self._nan_at - 1) in batch.tolist():
            total = total * float("nan")
        return LossTerm(total, len(batch))

    def _ask(self) -> None:
        """Send the command, and wait until it is answered: the file is taken away."""
        inbox = Path(self._inbox)
        sent = send(inbox, _command(self._command, self._value))
        deadline = time.monotonic() + 20
        while (inbox / f"{sent}.json").exists() and time.monotonic() < deadline:
            time.sleep(0.005)


def _command(name: str, value: int) -> AnyCommand:
    match name:
        case "accumulation":
            return SetAccumulation(steps=value, asked_by="the probe")
        case "micro-batch":
            return SetMicroBatchSize(size=value, asked_by="the probe")
        case "stop":
            return Stop(asked_by="the probe")
        case "stop-now":
            return Stop(now=True, asked_by="the probe")
        case _:
            raise AssertionError(name)
