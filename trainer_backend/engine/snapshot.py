"""What a window may change before its optimizer step, kept so that the window can be replayed."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from trainer_backend.engine.private_api import copy_each, places_of_buffers


class _SlowState:
    """A global generator that few models use and that takes 15 to 70 µs to read.

    It is read at the first windows and at every 16th; at each one as soon as it was seen to change.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self._read = read
        self._write = write
        self._state: Any = None
        self._windows = 0
        self._used = False

    def take(self) -> None:
        """Read the generator's state at a window's start, where that is due."""
        if self._used or self._windows < 2 or self._windows % 16 == 0:
            state = self._read()
            self._used = self._used or (self._state is not None and not _equal(state, self._state))
            self._state = state
        self._windows += 1

    def restore(self) -> None:
        """Back to the window's start."""
        if self._state is not None:
            self._write(self._state)


class Snapshot:
    """The model's buffers (BatchNorm's running mean …) and every RNG, as they were at a window's start.

    Buffers are found through their modules each time, since a forward may assign a new tensor.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self._device = device
        self._places = places_of_buffers(model)
        self._held: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = []
        self._copies: list[torch.Tensor] = []
        self._torch_state: torch.Tensor | None = None
        self._device_state: torch.Tensor | None = None
        self._python = _SlowState(random.getstate, random.setstate)
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else _SlowState(numpy.random.get_state, numpy.random.set_state)

    def take(self) -> None:
        """Remember this moment. Copies go into memory that is kept from window to window."""
        held = [
            (place, name, buffer)
            for place in self._places
            if place
            for name, buffer in place.items()
            if buffer is not None
        ]
        if held or self._held:
            self._copy(held)
        self._torch_state = torch.get_rng_state()
        self._python.take()
        if self._numpy is not None:
            self._numpy.take()
        if self._device.type == "cuda":
            self._device_state = torch.cuda.get_rng_state(self._device)
        elif self._device.type == "mps":
            self._device_state = torch.mps.get_rng_state()

    def restore(self) -> None:
        """Go back to that moment, buffers and RNGs."""
        self.restore_buffers()
        if self._torch_state is not None:
            torch.set_rng_state(self._torch_state)
            self._python.restore()
        if self._numpy is not None:
            self._numpy.restore()
        if self._device_state is not None:
            if self._device.type == "cuda":
                torch.cuda.set_rng_state(self._device_state, self._device)
            else:
                torch.mps.set_rng_state(self._device_state)

    def restore_buffers(self) -> None:
        """Only the buffers: a skipped window leaves no NaN in a running mean."""
        with torch.no_grad():
            for (place, name, buffer), copy in zip(self._held, self._copies, strict=True):
                buffer.copy_(copy)
                place[name] = buffer

    def restore_buffers_where(self, flag: torch.Tensor) -> None:
        """The same without a host sync, where the 0-d bool `flag` on the device is set."""
        with torch.no_grad():
            for (place, name, _), copy in zip(self._held, self._copies, strict=True):
                now = place.get(name)
                if now is not None and now.shape == copy.shape:
                    now.copy_(torch.where(flag.to(copy.device), copy, now))

    def restore_non_finite_buffers(self) -> None:
        """Buffers that a micro-batch without weight has made NaN or infinite are as at the window's start.

        BatchNorm's running statistics see every forward, also one whose samples do not count. No host sync.
        """
        with torch.no_grad():
            for (place, name, _), copy in zip(self._held, self._copies, strict=True):
                now = place.get(name)
                if now is not None and now.is_floating_point() and now.shape == copy.shape:
                    now.copy_(torch.where(torch.isfinite(now).all() | ~torch.isfinite(copy).all(), now, copy))

    def _copy(self, held: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]]) -> None:
        buffers = [buffer for _, _, buffer in held]
        fits = len(buffers) == len(self._copies) and all(
            buffer.shape == copy.shape and buffer.dtype == copy.dtype and buffer.device == copy.device
            for buffer, copy in zip(buffers, self._copies, strict=True)
        )
        if not fits:
            self._copies = [buffer.detach().clone() for buffer in buffers]
        elif buffers:
            with torch.no_grad():
                copy_each(self._copies, buffers)
        self._held = held


def _equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two states are the same; numpy's holds an array."""
    return all(
        bool((a == b).all()) if hasattr(a, "shape") else a == b for a, b in zip(one, other, strict=True)
    )
