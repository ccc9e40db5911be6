"""How large updates are beside their weights, and which parameters get no gradient: now and then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from trainer_backend.engine.deferred import HostCopy

MOST_TENSORS: Final = 8
MOST_NUMBERS: Final = 2**21
"""Copied before a measured update: 8 MB in fp32."""
UNREACHED_AFTER: Final = 8
"""Measured windows after which a parameter without any gradient is called unreached."""


class UpdateSizes:
    """Compares some weight matrices before and after an update; nothing waits for the device.

    `ratio` is the largest |new - old| / |old| of the newest update whose numbers have come home.
    """

    def __init__(self) -> None:
        self.unreached: tuple[str, ...] | None = None
        """Names without a gradient in all measured windows; None until there were enough."""
        self.parameters = 0
        self._names: set[str] | None = None
        self._windows = 0
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._coming: HostCopy | None = None

    def begin(self, leaves: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """All micro-batches of a measured window have run; the update comes."""
        named = list(leaves)
        self._note_unreached(named)
        matrices = [leaf for _, leaf in named if leaf.dim() >= 2 and leaf.grad is not None]
        step = max(1, len(matrices) // MOST_TENSORS)
        room = MOST_NUMBERS
        self._before = []
        for leaf in matrices[::step]:
            if leaf.numel() <= room and type(leaf.data) is torch.Tensor:
                room -= leaf.numel()
                self._before.append((leaf, leaf.detach().clone()))

    def end(self) -> None:
        """The update is made (or skipped: then it has size 0)."""
        ratios = []
        for leaf, before in self._before:
            size = torch.linalg.vector_norm(before)
            change = torch.linalg.vector_norm(leaf.detach() - before)
            ratios.append(torch.where(size > 0, change / size, torch.zeros_like(size)).float())
        self._before = []
        self._coming = HostCopy([torch.stack(ratios).max()]) if ratios else None

    def take(self) -> float | None:
        """The newest ratio, once; None when none was measured or its update was skipped."""
        coming, self._coming = self._coming, None
        ratio = coming.open()[0] if coming is not None else 0.0
        return ratio if ratio > 0 else None

    def _note_unreached(self, named: list[tuple[str, torch.nn.Parameter]]) -> None:
        if self._windows >= UNREACHED_AFTER:
            return
        empty = {name for name, leaf in named if leaf.requires_grad and leaf.grad is None}
        self._names = empty if self._names is None else self._names & empty
        self._windows += 1
        if self._windows == UNREACHED_AFTER:
            self.unreached = tuple(name for name, _ in named if name in self._names)
            self.parameters = len(named)
