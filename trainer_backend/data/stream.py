"""Windows of micro-batches in order, over epochs, from any position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import torch
from torch.utils.data import IterableDataset

from trainer_backend.data.order import ALONE, DataPosition, Share
from trainer_backend.data.reading import Collate
from trainer_backend.data.sources import IterableSource, MapSource, MicroBatchSource
from trainer_backend.engine import Collated
from trainer_backend.errors import GradaccError


class Stream:
    """The run's training data. `position` is where the next window starts."""

    def __init__(
        self, source: MicroBatchSource, *, tail: Literal["step", "carry", "drop"], share: Share = ALONE
    ) -> None:
        self._source = source
        self._tail = tail
        self._share = share
        self.position = DataPosition()

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples in an epoch, where known."""
        return self._source.length

    def window(self, steps: int, size: int) -> Iterator[Collated]:
        """The micro-batches of one window: `steps` of `size`; nothing at all when the data is over.

        Fewer at an epoch's end (tail = step) or at the run's; the last one may be short. Of several ranks
        each gets its own, and all come to the same position.
        """
        if self._tail == "drop":
            yield from self._whole_window(steps, size)
            return
        epoch: int | None = None
        for index in range(steps):
            taken = self._source.take(self.position, size, epoch=epoch, share=self._share_at(index, steps))
            if taken is None:
                return
            if self._tail == "step":
                epoch = taken.epoch
            self.position = taken.behind
            if taken.batch is not None:
                yield taken.batch

    def _share_at(self, index: int, steps: int) -> Share:
        """What this rank reads at place `index` of a window of `steps`."""
        if self._share.ranks == 1:
            return self._share
        ends = self._tail != "carry"
        return msgspec.structs.replace(self._share, index=index, of=steps, ends_with_epoch=ends)

    def _whole_window(self, steps: int, size: int) -> list[Collated]:
        """Exactly `steps` micro-batches of one epoch; what is left of an epoch before them is dropped."""
        dropped = 0
        while True:
            start, batches, many = self.position, list[Collated](), 0
            epoch: int | None = None
            while many < steps:
                share = self._share_at(many, steps)
                taken = self._source.take(self.position, size, epoch=epoch, share=share)
                if taken is None:
                    break
                epoch, self.position = taken.epoch, taken.behind
                many += 1
                if taken.batch is not None:
                    batches.append(taken.batch)
            if many == steps or not many:
                return batches
            if start.consumed and self._source.take(self.position, size, epoch=None) is None:
                # The run's own end (max_samples) lies inside this window: the last whole one was the last.
                self.position = start
                return []
            self.position = msgspec.structs.replace(self.position, consumed=start.consumed)
            dropped += 1
            if start.consumed == 0 or dropped > 2:  # the rest of an epoch may be dropped, a whole one not
                raise GradaccError(
                    f"accumulation.tail = drop leaves nothing to train on: an epoch has less than N = {steps}"
                    f" micro-batches of {size}. Use a smaller N or micro-batch, or tail = step."
                )

    def first(self, size: int) -> Iterator[Collated]:
        """The coming micro-batch, to be looked at; it comes again in its window."""
        taken = self._source.take(self.position, size, epoch=None)
        if taken is not None and taken.batch is not None:
            yield taken.batch

    def saved_position(self) -> DataPosition:
        """The position for a checkpoint, with the loader's own state."""
        return self._source.state(self.position)

    def close(self) -> None:
        """End the loader's workers."""
        self._source.close()


def is_iterable(dataset: Any) -> bool:  # noqa: ANN401 - any data set
    """Whether samples can only be taken in order. Raises GradaccError for what is no data set."""
    if isinstance(dataset, IterableDataset):
        return True
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return False
    if hasattr(dataset, "__iter__"):
        return True
    raise GradaccError(
        f"The training data is {type(dataset).__name__}; it must have __len__ and __getitem__, or __iter__."
    )


def make_stream(  # noqa: PLR0913 - what a recipe says of its data
    dataset: Any,  # noqa: ANN401 - any data set
    collate: Collate,
    *,
    seed: int,
    shuffle: bool,
    num_workers: int,
    epochs: int | None,
    max_samples: int | None,
    tail: Literal["step", "carry", "drop"],
    device: torch.device,
    share: Share = ALONE,
) -> Stream:
    """Training data in the run's order. Raises GradaccError when it is none, or empty."""
    if is_iterable(dataset):
        source: MicroBatchSource = IterableSource(
            dataset, collate, seed=seed, num_workers=num_workers, epochs=epochs, max_samples=max_samples
        )
    else:
        source = MapSource(
            dataset,
            collate,
            seed=seed,
            shuffle=shuffle,
            num_workers=num_workers,
            epochs=epochs,
            max_samples=max_samples,
            pin_memory=device.type == "cuda",
        )
    return Stream(source, tail=tail, share=share)
