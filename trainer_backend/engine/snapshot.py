"""What a window may change before its optimizer step, kept so that the window can be replayed."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


class Snapshot:
    """The model's buffers (BatchNorm's running mean …) and every RNG, as they were at a window's start."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._buffers: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._torch_state: torch.Tensor | None = None
        self._device_state: torch.Tensor | None = None
        self._python_state: Any = None
        self._numpy_state: Any = None

    def take(self) -> None:
        """Remember this moment. Copies into memory that is kept from window to window."""
        buffers = list(self._model.buffers())
        if len(buffers) != len(self._buffers) or any(
            a is not b or a.shape != c.shape
            for a, b, c in zip(buffers, self._buffers, self._copies, strict=True)
        ):
            self._buffers = buffers
            self._copies = [buffer.detach().clone() for buffer in buffers]
        elif buffers:
            with torch.no_grad():
                torch._foreach_copy_(self._copies, self._buffers)
        self._torch_state = torch.get_rng_state()
        self._python_state = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy_state = None if numpy is None else numpy.random.get_state()
        if self._device.type == "cuda":
            self._device_state = torch.cuda.get_rng_state(self._device)
        elif self._device.type == "mps":
            self._device_state = torch.mps.get_rng_state()

    def restore(self) -> None:
        """Go back to that moment, buffers and RNGs."""
        self.restore_buffers()
        if self._torch_state is not None:
            torch.set_rng_state(self._torch_state)
            random.setstate(self._python_state)
        if self._numpy_state is not None:
            sys.modules["numpy"].random.set_state(self._numpy_state)
        if self._device_state is not None:
            if self._device.type == "cuda":
                torch.cuda.set_rng_state(self._device_state, self._device)
            else:
                torch.mps.set_rng_state(self._device_state)

    def restore_buffers(self) -> None:
        """Only the buffers: a skipped window leaves no NaN in a running mean."""
        if self._buffers:
            with torch.no_grad():
                torch._foreach_copy_(self._buffers, self._copies)

    def restore_buffers_where(self, flag: torch.Tensor) -> None:
        """The same without a host sync, where the 0-d bool `flag` is set."""
        with torch.no_grad():
            for buffer, copy in zip(self._buffers, self._copies, strict=True):
                buffer.copy_(torch.where(flag, copy, buffer))
