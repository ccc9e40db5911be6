"""Numbers that stay on the device until they can be copied to the host without waiting.

A `.item()` after each micro-batch would keep the device idle while the host prepares the next one.
So losses and norms stay 0-d tensors; at the border they are packed and copied to the host
asynchronously, and are opened one window later, when that copy has long been done.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, TypeAlias

import torch

from trainer_backend.engine.sums import MicroBatchNumbers, Sums
from trainer_backend.engine.window import WindowResult

Instant: TypeAlias = Any
"""An instant: seconds on the host's clock, or a CUDA event."""


def instant_on(device: torch.device) -> Instant:
    """Now, on the device's own line of work."""
    if device.type != "cuda":
        return perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def seconds_between(start: Instant, end: Instant) -> float:
    """Seconds from one instant to another, both past."""
    if isinstance(start, float):
        return float(end - start)
    return float(start.elapsed_time(end)) / 1e3


class DeferredMicroBatch:
    """One micro-batch whose totals and norm are still on the device."""

    __slots__ = ("began", "ended", "norm", "norm_scale", "places", "reported", "row", "totals")

    def __init__(
        self,
        row: MicroBatchNumbers,
        totals: Sequence[torch.Tensor],
        places: Sequence[int],
        norm: torch.Tensor | None,
        norm_scale: float,
    ) -> None:
        self.row = row
        self.totals = totals
        self.places = places
        """The number of the term that each total belongs to."""
        self.norm = norm
        self.norm_scale = norm_scale
        self.reported = False
        """Whether its samples were reported before, and a replay runs them again."""
        self.began: Instant = 0.0
        self.ended: Instant = 0.0

    def scalars(self) -> list[torch.Tensor]:
        """Device scalars to copy to the host."""
        return [*self.totals, *([] if self.norm is None else [self.norm])]

    def fill(self, values: list[float], loss_scale: float) -> None:
        """Take this micro-batch's numbers from the front of `values`."""
        self.row.totals = [0.0] * len(self.row.weights)
        for place in self.places:
            self.row.totals[place] = values.pop(0)
        if self.norm is not None:
            self.row.norm = values.pop(0) * self.norm_scale / loss_scale


class HostCopy:
    """0-d tensors on their way to the host."""

    def __init__(self, scalars: Sequence[torch.Tensor]) -> None:
        packed = torch.stack([scalar.detach().double() for scalar in scalars])
        self._event: Any = None
        if packed.is_cuda:
            self._host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = packed

    def open(self) -> list[float]:
        """The numbers; waits only when the copy is not done."""
        if self._event is not None:
            self._event.synchronize()
        numbers: list[float] = self._host.tolist()
        return numbers


class DeferredWindow:
    """A window that was closed without waiting: its result, and what will complete it."""

    def __init__(
        self,
        result: WindowResult,
        sums: Sums,
        waiting: list[DeferredMicroBatch],
        norm: torch.Tensor,
        scale: torch.Tensor,
    ) -> None:
        self.result = result
        self.sums = sums
        self.waiting = waiting
        self._parcel = HostCopy([norm, scale, *(one for each in waiting for one in each.scalars())])

    def open(self) -> tuple[float, float]:
        """The window's gradient norm and the loss scale it ran under; rows and sums are filled."""
        norm, scale, *values = self._parcel.open()
        fill(self.sums, self.waiting, values, scale)
        return norm, scale


def fetch(sums: Sums, waiting: list[DeferredMicroBatch], loss_scale: float) -> None:
    """Fill rows and sums now: one wait for a whole window."""
    if waiting:
        fill(sums, waiting, HostCopy([one for each in waiting for one in each.scalars()]).open(), loss_scale)


def fill(sums: Sums, waiting: list[DeferredMicroBatch], values: list[float], loss_scale: float) -> None:
    """Numbers into their rows, and rows into the sums."""
    for each in waiting:
        each.fill(values, loss_scale)
        for index, weight in enumerate(each.row.weights):
            if weight > 0.0:
                sums.totals[index] += each.row.totals[index]
