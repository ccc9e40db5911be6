"""Where micro-batches come from: a map-style data set by index, or an iterable one by counting.

Both give the same thing, `take`: the next micro-batch from a position, and the position behind it.
The size is asked each time; what workers had prepared in another size is thrown away and read
again, so that no sample is lost or repeated.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import warnings
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

import msgspec
import torch
from torch.utils.data import DataLoader

from trainer_backend.data.order import ALONE, Cut, DataPosition, Share, cuts, epoch_order
from trainer_backend.data.randomness import Draws, mixed
from trainer_backend.data.reading import (
    _COLLATE,
    Collate,
    IterableReader,
    MapReader,
    StatefulIterableReader,
    as_it_is,
    ignore_interrupts,
)
from trainer_backend.engine import Collated
from trainer_backend.errors import GradaccError


class Taken(msgspec.Struct, frozen=True):
    """A micro-batch, the epoch it lies in, and the position behind it."""

    batch: Collated | None
    """None where another rank reads it."""
    epoch: int
    behind: DataPosition


class MicroBatchSource(Protocol):
    """Micro-batches in the run's order, from any position on."""

    length: int | None
    """Samples in an epoch, where known."""

    def take(
        self, position: DataPosition, size: int, *, epoch: int | None, share: Share = ALONE
    ) -> Taken | None:
        """The next micro-batch of at most `size`; None at the run's end, or when it is not of `epoch`.

        `share`: where there are several ranks, what is read here.
        """
        ...

    def state(self, position: DataPosition) -> DataPosition:
        """`position` with what the loader needs to take it up quickly."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class MapSource:
    """A map-style data set: any position can be taken up at once."""

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401 - any data set
        collate: Collate,
        *,
        seed: int,
        shuffle: bool,
        num_workers: int,
        epochs: int | None,
        max_samples: int | None,
        pin_memory: bool,
    ) -> None:
        self.length: int | None = len(dataset)
        self._length = self.length
        if self._length == 0:
            raise GradaccError("The training data is empty: its length is 0. Look at the task's datasets().")
        self._reader = MapReader(dataset, collate, seed=seed)
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs
        self._max_samples = max_samples
        self._order: tuple[int, torch.Tensor] | None = None
        self._planned: deque[Cut] = deque()
        self._ahead: Iterator[Any] | None = None
        self._ahead_size = 0
        self._plan: Iterator[Cut] = iter(())
        self._loader: DataLoader[Any] | None = None
        if num_workers:
            self._loader = DataLoader(
                self._reader,
                batch_size=None,
                sampler=self,
                num_workers=num_workers,
                collate_fn=as_it_is,
                worker_init_fn=ignore_interrupts,
                persistent_workers=True,
                pin_memory=pin_memory,
                generator=torch.Generator().manual_seed(mixed(seed, 2)),
            )

    def cuts(self, position: DataPosition, size: int) -> Iterator[Cut]:
        """The micro-batches from `position` to the run's end."""
        for cut in cuts(position, length=self._length, size=size, limit=self._max_samples):
            if self._epochs is not None and cut.epoch >= self._epochs:
                return
            yield cut

    def take(
        self, position: DataPosition, size: int, *, epoch: int | None, share: Share = ALONE
    ) -> Taken | None:
        """See `MicroBatchSource`."""
        cut = next(self.cuts(position, size), None)
        if cut is None or (epoch is not None and cut.epoch != epoch):
            return None
        behind = DataPosition(epoch=cut.epoch, offset=cut.stop, consumed=position.consumed + cut.samples)
        if not share.is_mine:
            return Taken(None, cut.epoch, behind)
        batch, indices = self._read(cut, position, size, share)
        return Taken(Collated(batch, indices=tuple(indices), samples=cut.samples), cut.epoch, behind)

    def _read(self, cut: Cut, position: DataPosition, size: int, share: Share) -> tuple[Any, tuple[int, ...]]:
        if self._loader is None:
            return self._reader[cut, self._indices(cut)]
        if self._ahead is None or self._ahead_size != size or not self._planned or self._planned[0] != cut:
            self._planned.clear()
            self._plan = share.pick(self.cuts(position, size))
            self._ahead_size = size
            self._ahead = iter(self._loader)
        batch, indices = next(self._ahead)
        self._planned.popleft()
        return batch, indices

    def __iter__(self) -> Iterator[tuple[Cut, list[int]]]:
        """For the loader, as its sampler: what its workers shall read ahead."""
        for cut in self._plan:
            self._planned.append(cut)
            yield cut, self._indices(cut)

    def __len__(self) -> int:
        """For the loader, which wants to know; nobody counts by it."""
        return self._length

    def _indices(self, cut: Cut) -> list[int]:
        if self._order is None or self._order[0] != cut.epoch:
            order = epoch_order(self._length, seed=self._seed, epoch=cut.epoch, shuffle=self._shuffle)
            self._order = (cut.epoch, order)
        indices: list[int] = self._order[1][cut.start : cut.stop].tolist()
        return indices

    def state(self, position: DataPosition) -> DataPosition:
        """See `MicroBatchSource`: (epoch, offset) says it all."""
        return position

    def close(self) -> None:
        """See `MicroBatchSource`."""
        end_workers(self._ahead)
        self._ahead = None
        self._loader = None


class IterableSource:
    """An iterable data set: samples come one by one, so that a micro-batch may have any size.

    With torchdata installed, a data set's own `state_dict` is used to take a position up; without,
    the samples before it are read and thrown away.
    """

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401 - any iterable
        collate: Collate,
        *,
        seed: int,
        num_workers: int,
        epochs: int | None,
        max_samples: int | None,
    ) -> None:
        self.length: int | None = len(dataset) if hasattr(dataset, "__len__") else None
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._workers = num_workers
        self._epochs = epochs
        self._max_samples = max_samples
        self._samples: Iterator[Any] | None = None
        self._loader: Any = None
        self._place: tuple[int, int] | None = None
        self._draws = Draws(collate)

    def take(
        self, position: DataPosition, size: int, *, epoch: int | None, share: Share = ALONE
    ) -> Taken | None:
        """See `MicroBatchSource`."""
        left = None if self._max_samples is None else self._max_samples - position.consumed
        if left == 0:
            return None
        want = size if left is None else min(size, left)
        samples = self._read(position, want)
        if not samples:
            if position.offset == 0:
                raise GradaccError(
                    f"The training data gave no sample in epoch {position.epoch + 1}. An iterable data set"
                    " must give its samples again each time it is iterated."
                )
            position = DataPosition(epoch=position.epoch + 1, consumed=position.consumed)
            if (self._epochs is not None and position.epoch >= self._epochs) or epoch is not None:
                return None
            return self.take(position, size, epoch=epoch, share=share)
        if epoch is not None and position.epoch != epoch:
            raise AssertionError("an epoch ends with an empty read")
        behind = DataPosition(
            epoch=position.epoch,
            offset=position.offset + len(samples),
            consumed=position.consumed + len(samples),
        )
        if not share.is_mine:
            return Taken(None, position.epoch, behind)
        indices = tuple(range(position.offset, behind.offset))
        with self._draws.borrowed():
            self._draws.seed(mixed(self._seed, position.epoch, position.offset, _COLLATE))
            batch = self._collate(samples)
        return Taken(Collated(batch, indices=indices, samples=len(samples)), position.epoch, behind)

    def _read(self, position: DataPosition, want: int) -> list[Any]:
        if self._epochs is not None and position.epoch >= self._epochs:
            return []
        if self._samples is None or self._place != (position.epoch, position.offset):
            self._open(position)
        assert self._samples is not None
        samples = list(islice(self._samples, want))
        self._place = (position.epoch, position.offset + len(samples))
        return samples

    def _open(self, position: DataPosition) -> None:
        """Start the epoch of `position` and come to its offset."""
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(position.epoch)
        stateful = hasattr(self._dataset, "state_dict") and hasattr(self._dataset, "load_state_dict")
        kind = StatefulIterableReader if stateful else IterableReader
        reader = kind(self._dataset, seed=self._seed, epoch=position.epoch)
        generator = torch.Generator().manual_seed(mixed(self._seed, position.epoch, 2))
        with warnings.catch_warnings():
            # torchdata 0.11 tells torch so by a name that torch 2.14 calls deprecated.
            warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
            self._loader = _loader_class()(
                reader,
                batch_size=None,
                num_workers=self._workers,
                collate_fn=as_it_is,
                worker_init_fn=ignore_interrupts if self._workers else None,
                generator=generator,
            )
        skip = position.offset
        if position.loader is not None and hasattr(self._loader, "load_state_dict"):
            self._loader.load_state_dict(position.loader)
            skip = 0
        self._samples = iter(self._loader)
        for _ in islice(self._samples, skip):
            pass

    def state(self, position: DataPosition) -> DataPosition:
        """See `MicroBatchSource`; without the loader's own state when it cannot be written as JSON."""
        ahead = self._place != (position.epoch, position.offset) or self._samples is None
        if ahead or not hasattr(self._loader, "state_dict") or not hasattr(self._dataset, "state_dict"):
            return msgspec.structs.replace(position, loader=None)
        state = self._loader.state_dict()
        try:
            if json.loads(json.dumps(state)) != state:
                state = None
        except (TypeError, ValueError):
            state = None
        return msgspec.structs.replace(position, loader=state)

    def close(self) -> None:
        """See `MicroBatchSource`."""
        end_workers(self._samples)
        self._samples = None
        self._loader = None


def end_workers(iterator: Any) -> None:  # noqa: ANN401 - a loader's iterator, or None
    """End a loader's workers now. Left to its destructor, that waits for the last traceback to be freed."""
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()


def _loader_class() -> Any:  # noqa: ANN401 - torchdata's is no subclass to mypy
    """torchdata's StatefulDataLoader where it is installed, else torch's loader."""
    if importlib.util.find_spec("torchdata") is None:
        return DataLoader
    return importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
