"""What a micro-batch's forward draws (dropout masks ...) depends on its place in the run, and on no rank.

So neither a restart nor another number of ranks changes it, and no generator need lie in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

_MASK: Final = (1 << 63) - 1


class Seeding:
    """Seeds the device's generator before each micro-batch.

    `of_step(step)` gives a number that is drawn from the run's seed and the window's number.
    """

    def __init__(self, device: torch.device, of_step: Callable[[int], int]) -> None:
        self._of_step = of_step
        self._generator = default_generator(device)
        self._base = 0

    def begin(self, step: int) -> None:
        """Window `step` begins."""
        self._base = self._of_step(step)

    def at(self, index: int) -> None:
        """Micro-batch `index` of the window, over all ranks, comes next."""
        self._generator.manual_seed((self._base + index) & _MASK)  # torch.manual_seed takes 50 times as long


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that operations on `device` draw from."""
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's own
        return torch.cuda.default_generators[device.index or 0]
    if device.type == "mps":
        generator: torch.Generator = torch.mps._get_default_mps_generator()  # noqa: SLF001 - torch has no other
        return generator
    return torch.default_generator
