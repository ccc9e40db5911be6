"""Which samples come in which order: pure functions of (seed, epoch), and the cut in micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import torch

from trainer_backend.data.randomness import mixed


class DataPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where the next sample lies. Saved in every checkpoint."""

    epoch: int = 0
    offset: int = 0
    """Samples of this epoch that were consumed."""
    consumed: int = 0
    """Samples consumed over all epochs; what `tail = "drop"` leaves out is not counted."""
    loader: dict[str, Any] | None = None
    """An iterable data set's own state, where its loader keeps one."""


class Cut(msgspec.Struct, frozen=True):
    """One micro-batch: samples start … stop - 1 of an epoch's order."""

    epoch: int
    start: int
    stop: int

    @property
    def samples(self) -> int:
        """How many there are."""
        return self.stop - self.start


class Share(msgspec.Struct, frozen=True):
    """Which micro-batches of a window one rank reads: those whose number leaves `rank` over `ranks`."""

    rank: int = 0
    ranks: int = 1
    of: int = 1
    """Micro-batches of a whole window."""
    index: int = 0
    """The number in its window of the micro-batch that comes next."""
    ends_with_epoch: bool = True
    """Whether a window ends where an epoch does."""

    @property
    def is_mine(self) -> bool:
        """Whether the next micro-batch is this rank's."""
        return self.index % self.ranks == self.rank

    def pick(self, coming: Iterable[Cut]) -> Iterator[Cut]:
        """This rank's own of the micro-batches that come."""
        if self.ranks == 1:
            yield from coming
            return
        index, epoch = self.index, -1
        for cut in coming:
            if index == self.of or (self.ends_with_epoch and epoch not in (-1, cut.epoch)):
                index = 0
            epoch = cut.epoch
            if index % self.ranks == self.rank:
                yield cut
            index += 1


ALONE: Final = Share()


def epoch_order(length: int, *, seed: int, epoch: int, shuffle: bool) -> torch.Tensor:
    """The indices of one epoch, int64 of shape (length,)."""
    if not shuffle:
        return torch.arange(length)
    generator = torch.Generator().manual_seed(mixed(seed, epoch, 1))
    return torch.randperm(length, generator=generator)


def cuts(position: DataPosition, *, length: int, size: int, limit: int | None) -> Iterator[Cut]:
    """Micro-batches of `size` from `position` on, epoch after epoch, for ever or for `limit` samples.

    The last of an epoch, and the last of all, may be short. None crosses an epoch's end.
    """
    epoch, offset, consumed = position.epoch, position.offset, position.consumed
    while limit is None or consumed < limit:
        if offset >= length:
            epoch, offset = epoch + 1, 0
        stop = min(offset + size, length)
        if limit is not None:
            stop = min(stop, offset + limit - consumed)
        yield Cut(epoch, offset, stop)
        consumed += stop - offset
        offset = stop
