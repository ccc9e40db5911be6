"""One sample's randomness: Python's, NumPy's, torch's and its makers' own, seeded by (seed, epoch, index).

So augmentation is the same in every worker layout and after every resume. In the trainer's own
process the generators are borrowed: the model's dropout goes on as if no sample had been read.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from trainer_backend.engine.own_generators import OwnGenerator, own_generators

_MASK: Final = (1 << 64) - 1


def mixed(*numbers: int) -> int:
    """A 64-bit number from several, by the finaliser of splitmix64 (Steele et al. 2014)."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def seed_all(value: int) -> None:
    """Seed the CPU's generators of Python, torch and, where it is loaded, NumPy."""
    random.seed(value)
    torch.default_generator.manual_seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)


@contextmanager
def borrowed() -> Iterator[None]:
    """Inside, the CPU's generators may be seeded and used; afterwards they stand as before."""
    python = random.getstate()
    own = torch.get_rng_state()
    numpy = sys.modules.get("numpy")
    # Another bit generator for the while: copying NumPy's state costs twenty times as much.
    kept: Any = None if numpy is None else numpy.random.get_bit_generator()
    if numpy is not None:
        numpy.random.set_bit_generator(_spare(numpy))
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(own)
        if numpy is not None:
            numpy.random.set_bit_generator(kept)


_spares: list[Any] = []


def _spare(numpy: Any) -> Any:  # noqa: ANN401 - NumPy may be absent
    if not _spares:
        _spares.append(numpy.random.MT19937(0))
    return _spares[0]


class Draws:
    """What a sample or a micro-batch may draw from: the global generators, and those that its makers hold.

    A data set, a transform or a collate with a generator of its own is so seeded by the sample's place too,
    and not by what was read before it in the same process.
    """

    def __init__(self, *owners: Any) -> None:  # noqa: ANN401 - any objects
        self._owners = owners
        self._own: list[OwnGenerator] | None = None

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Inside, the generators may be seeded and used; in the trainer they then stand as before."""
        if self._own is None:  # in the process that reads: workers have copies of their own
            self._own = list(own_generators(*self._owners))
        if torch.utils.data.get_worker_info() is not None:
            yield
            return
        states = [own.get_state() for own in self._own]
        try:
            with borrowed():
                yield
        finally:
            for own, state in zip(self._own, states, strict=True):
                own.set_state(state)

    def seed(self, value: int) -> None:
        """Seed every generator."""
        seed_all(value)
        for number, own in enumerate(self._own or ()):
            own.seed(mixed(value, number))

    def __getstate__(self) -> dict[str, Any]:
        """For a loader's worker, which looks for its own copies."""
        return {"_owners": self._owners, "_own": None}


def is_random(dataset: Any) -> bool:  # noqa: ANN401 - any data set
    """Whether reading a sample may draw: no for a TensorDataset, or where `uses_randomness = False`."""
    if type(dataset) is torch.utils.data.TensorDataset:
        return False
    return bool(getattr(dataset, "uses_randomness", True))
