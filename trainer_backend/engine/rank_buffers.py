"""A model's buffers on several ranks: each sees its own micro-batches, and all go on from one state.

Over a window a floating buffer (BatchNorm's running mean ...) becomes  start + mean of the ranks' changes,
one of whole numbers (its count of batches)  start + their sum. What no rank changed is not touched.
"""

from __future__ import annotations

from typing import Final

import torch

from trainer_backend.engine.ranks import Ranks
from trainer_backend.engine.snapshot import HeldBuffer, Snapshot

FIRST: Final = 2
EVERY: Final = 32
"""Windows after which buffers are compared with what they were: the first ones, and every so many."""


class RankBuffers:
    """Finds the buffers that forwards change, and brings them together after each window."""

    def __init__(self, ranks: Ranks, snapshot: Snapshot) -> None:
        self._ranks = ranks
        self._snapshot = snapshot
        self._windows = 0
        self._changing: list[int] = []
        """Numbers of the buffers that some rank was seen to change, in all ranks' order."""

    def begin(self) -> None:
        """A window begins."""
        self._windows += 1

    def _new(self) -> list[int]:
        known = set(self._changing)
        pairs = enumerate(zip(self._snapshot.held, self._snapshot.copies, strict=True))
        return [
            number for number, (held, copy) in pairs if number not in known and _has_changed(held.now, copy)
        ]

    def count_new(self) -> int:
        """Buffers that changed in this window, and were not known to: looked for now and then.

        By their content, since BatchNorm's own kernel leaves no trace in a tensor's version.
        """
        is_due = self._windows <= FIRST or self._windows % EVERY == 0
        return len(self._new()) if is_due else 0

    def agree(self) -> None:
        """Take up what changed on any rank. Collective."""
        found = sorted({number for numbers in self._ranks.gather(self._new()) for number in numbers})
        self._changing += [number for number in found if number not in self._changing]

    def average(self) -> None:
        """Bring the ranks' buffers together. Collective where some buffer changes."""
        if not self._changing:
            return
        pairs = [(self._snapshot.held[number], self._snapshot.copies[number]) for number in self._changing]
        flat = torch.cat([_change(held, copy) for held, copy in pairs])
        work = self._ranks.add(flat)
        with self._ranks.talking():
            work.wait()
        sums = torch.split(flat, [copy.numel() for _, copy in pairs])
        with torch.no_grad():
            for (held, copy), summed in zip(pairs, sums, strict=True):
                now = held.now
                if now is None or now.shape != copy.shape:
                    continue
                change = summed.view(copy.shape)
                if now.is_floating_point():
                    now.copy_(copy.double() + change / self._ranks.size)
                else:
                    now.copy_(copy + change.to(copy.dtype))


def _has_changed(now: torch.Tensor | None, copy: torch.Tensor) -> bool:
    """Whether a buffer that can be added up holds something else than at the window's start."""
    if now is None or now.shape != copy.shape or now.dtype == torch.bool or now.is_complex():
        return False
    return not torch.equal(now, copy)


def _change(held: HeldBuffer, copy: torch.Tensor) -> torch.Tensor:
    """What this rank's window did to a buffer, flat in fp64; zeros where it has another shape now."""
    now = held.now
    if now is None or now.shape != copy.shape:
        return torch.zeros(copy.numel(), dtype=torch.float64, device=copy.device)
    return (now.detach().double() - copy.double()).reshape(-1)
