"""A model's buffers on several ranks: each sees its own micro-batches, and all go on from one state.

Over a window a floating buffer (BatchNorm's running mean ...) becomes  start + mean of the ranks' changes,
one of whole numbers (its count of batches)  start + their sum. What no rank changed is not touched.
"""

from __future__ import annotations

import torch

from trainer_backend.engine.ranks import Ranks
from trainer_backend.engine.snapshot import HeldBuffer, Snapshot


class RankBuffers:
    """Finds the buffers that forwards change, and brings them together after each window."""

    def __init__(self, ranks: Ranks, snapshot: Snapshot) -> None:
        self._ranks = ranks
        self._snapshot = snapshot
        self._versions: list[int] = []
        self._changing: list[int] = []
        """Numbers of the buffers that some rank was seen to change, in all ranks' order."""

    def begin(self) -> None:
        """A window, or its replay, begins."""
        self._versions = [held.buffer._version for held in self._snapshot.held]  # noqa: SLF001 - torch's count

    def _new(self) -> list[int]:
        known = set(self._changing)
        return [
            number
            for number, (held, version) in enumerate(zip(self._snapshot.held, self._versions, strict=True))
            if number not in known
            and (held.now is not held.buffer or held.buffer._version != version)  # noqa: SLF001 - likewise
            and held.buffer.dtype != torch.bool
            and not held.buffer.is_complex()
        ]

    def count_new(self) -> int:
        """Buffers that changed in this window, and were not known to."""
        return len(self._new())

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


def _change(held: HeldBuffer, copy: torch.Tensor) -> torch.Tensor:
    """What this rank's window did to a buffer, flat in fp64; zeros where it has another shape now."""
    now = held.now
    if now is None or now.shape != copy.shape:
        return torch.zeros(copy.numel(), dtype=torch.float64, device=copy.device)
    return (now.detach().double() - copy.double()).reshape(-1)
