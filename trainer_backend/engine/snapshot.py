"""What a window may change before its optimizer step, kept so that the window can be replayed."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch

from trainer_backend.engine.own_generators import OwnGenerator, own_generators
from trainer_backend.engine.private_api import copy_each, places_of_buffers

_TWISTER_BYTES: Final = 624 * 4 + 4
"""The words of a Mersenne Twister's state and its place among them."""


class _GlobalState:
    """A process-wide generator, read at each window's start where it may have been used since.

    NumPy's takes 40 µs to read, so its raw memory is compared first (0.3 µs). Once it was used it is read
    at every window: a cached second normal number changes nothing in that memory.
    """

    def __init__(
        self,
        read: Callable[[], Any],
        write: Callable[[Any], None],
        fingerprint: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        self._read = read
        self._write = write
        self._fingerprint = fingerprint
        self._known: bytes | None = None
        self._state: Any = None
        self._used = False

    def take(self) -> None:
        """Read the generator's state at a window's start, where that is due."""
        known = None if self._used else self._fingerprint()
        if known is None or known != self._known:
            self._used = self._used or self._known is not None
            self._state, self._known = self._read(), known

    def restore(self) -> None:
        """Back to the window's start."""
        if self._state is not None:
            self._write(self._state)


def _numpy_fingerprint(numpy: Any) -> Callable[[], bytes | None]:  # noqa: ANN401 - an optional library
    """Reads the memory of NumPy's legacy generator: a Mersenne Twister's 624 words and its place."""

    def read() -> bytes | None:
        generator = numpy.random.get_bit_generator()
        if type(generator) is not numpy.random.MT19937:
            return None
        address = generator.ctypes.state_address
        return bytes((ctypes.c_char * _TWISTER_BYTES).from_address(getattr(address, "value", address)))

    return read


class HeldBuffer(NamedTuple):
    """A buffer as it was at a window's start, and where it hangs."""

    place: dict[str, torch.Tensor | None]
    name: str
    buffer: torch.Tensor

    @property
    def now(self) -> torch.Tensor | None:
        """What hangs there now: a forward may assign a new tensor."""
        return self.place.get(self.name)


class Snapshot:
    """The model's buffers (BatchNorm's running mean …) and every RNG, as they were at a window's start.

    Buffers are found through their modules each time, since a forward may assign a new tensor.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device, owners: Sequence[Any] = ()) -> None:
        """`owners`: what else may hold generators that a window draws from, such as the task."""
        self._device = device
        self._model = model
        self._owners = owners
        self._windows = 0
        self._generators: list[OwnGenerator] = []
        """Of the model and the owners: looked for at windows 0, 1, 2, 4, 8 …, and at every 1024th."""
        self._own: list[tuple[OwnGenerator, Any]] = []
        self.held: list[HeldBuffer] = []
        """The buffers at the window's start."""
        self.copies: list[torch.Tensor] = []
        """What each of them held then."""
        self._torch_state: torch.Tensor | None = None
        self._device_state: torch.Tensor | None = None
        self._python = _GlobalState(random.getstate, random.setstate)
        self._numpy: _GlobalState | None = None

    def take(self) -> None:
        """Remember this moment. Copies go into memory that is kept from window to window."""
        held = [
            HeldBuffer(place, name, buffer)
            for place in places_of_buffers(self._model)  # each time: a module may have been added
            if place
            for name, buffer in place.items()
            if buffer is not None
        ]
        if held or self.held:
            self._copy(held)
        self._torch_state = torch.get_rng_state()
        windows = self._windows
        if windows & (windows - 1) == 0 or windows % 1024 == 0:
            self._generators = list(own_generators(self._model, *self._owners))
        self._windows += 1
        self._own = [(own, own.get_state()) for own in self._generators]
        self._python.take()
        self._take_numpy()
        if self._device.type == "cuda":
            self._device_state = torch.cuda.get_rng_state(self._device)
        elif self._device.type == "mps":
            self._device_state = torch.mps.get_rng_state()

    def _take_numpy(self) -> None:
        numpy = sys.modules.get("numpy")  # user code may import it after the first window
        if numpy is None:
            return
        if self._numpy is None:
            legacy = numpy.random
            self._numpy = _GlobalState(legacy.get_state, legacy.set_state, _numpy_fingerprint(numpy))
        self._numpy.take()

    def restore(self) -> None:
        """Go back to that moment, buffers and RNGs."""
        self.restore_buffers()
        if self._torch_state is not None:
            torch.set_rng_state(self._torch_state)
            self._python.restore()
        for own, state in self._own:
            own.set_state(state)
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
            for (place, name, buffer), copy in zip(self.held, self.copies, strict=True):
                buffer.copy_(copy)
                place[name] = buffer

    def restore_buffers_where(self, flag: torch.Tensor) -> None:
        """The same without a host sync, where the 0-d bool `flag` on the device is set."""
        with torch.no_grad():
            for (place, name, _), copy in zip(self.held, self.copies, strict=True):
                now = place.get(name)
                if now is not None and now.shape == copy.shape:
                    now.copy_(torch.where(flag.to(copy.device), copy, now))

    def restore_non_finite_buffers(self) -> None:
        """Buffers that a micro-batch without weight has made NaN or infinite are as at the window's start.

        BatchNorm's running statistics see every forward, also one whose samples do not count. No host sync.
        """
        with torch.no_grad():
            for (place, name, _), copy in zip(self.held, self.copies, strict=True):
                now = place.get(name)
                if now is not None and now.is_floating_point() and now.shape == copy.shape:
                    now.copy_(torch.where(torch.isfinite(now).all() | ~torch.isfinite(copy).all(), now, copy))

    def _copy(self, held: list[HeldBuffer]) -> None:
        buffers = [buffer for _, _, buffer in held]
        fits = len(buffers) == len(self.copies) and all(
            buffer.shape == copy.shape and buffer.dtype == copy.dtype and buffer.device == copy.device
            for buffer, copy in zip(buffers, self.copies, strict=True)
        )
        if not fits:
            self.copies = [buffer.detach().clone() for buffer in buffers]
        elif buffers:
            with torch.no_grad():
                copy_each(self.copies, buffers)
        self.held = held
