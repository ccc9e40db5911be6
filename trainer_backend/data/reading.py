"""From a data set to collated micro-batches: in this process, or in loader workers. Picklable."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch.utils.data import IterableDataset, TensorDataset, default_collate, get_worker_info

from trainer_backend.data.order import Cut
from trainer_backend.data.randomness import Draws, is_random, mixed

Collate: TypeAlias = Callable[[list[Any]], Any]
_COLLATE = 1 << 40
"""Told apart from any index: what `collate` draws is seeded by the micro-batch's place."""


class MapReader(torch.utils.data.Dataset[Any]):
    """Reads whole micro-batches of a map-style data set by (cut, indices)."""

    def __init__(self, dataset: Any, collate: Collate, *, seed: int) -> None:  # noqa: ANN401 - any data set
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._random = is_random(dataset)
        self._many = getattr(dataset, "__getitems__", None) if not self._random else None
        own_collate = type(dataset) is TensorDataset and collate is not default_collate
        self._random_collate = self._random or own_collate  # a TensorDataset promises nothing of that
        plain = type(dataset) is TensorDataset and not own_collate
        self._tensors = dataset.tensors if plain else None
        self._draws = Draws(dataset, collate)

    def __getitem__(self, wanted: tuple[Cut, list[int]]) -> tuple[Any, tuple[int, ...]]:
        """A collated micro-batch and the indices of its samples."""
        cut, indices = wanted
        if self._tensors is not None:  # one gather a tensor: what stacking its samples would give
            return [tensor[indices] for tensor in self._tensors], tuple(indices)
        if not self._random_collate:
            return self._collate(self._plain_samples(indices)), tuple(indices)
        with self._draws.borrowed():
            if self._random:
                samples = [self._sample(cut.epoch, index) for index in indices]
            else:
                samples = self._plain_samples(indices)
            self._draws.seed(mixed(self._seed, cut.epoch, cut.start, _COLLATE))
            return self._collate(samples), tuple(indices)

    def _plain_samples(self, indices: list[int]) -> list[Any]:
        """Of a data set that draws nothing."""
        return self._many(indices) if self._many else [self._dataset[index] for index in indices]

    def _sample(self, epoch: int, index: int) -> Any:  # noqa: ANN401 - any sample
        self._draws.seed(mixed(self._seed, epoch, index))
        return self._dataset[index]


class IterableReader(IterableDataset[Any]):
    """One epoch of an iterable data set, each sample drawn with randomness of its own."""

    def __init__(self, dataset: Any, *, seed: int, epoch: int) -> None:  # noqa: ANN401 - any iterable
        super().__init__()
        self.dataset = dataset
        self.count = 0
        """Samples that this worker has given."""
        self._seed = seed
        self._epoch = epoch
        self._going_on = False
        self._draws = Draws(dataset)

    def __iter__(self) -> Iterator[Any]:
        """Its samples in order."""
        worker = get_worker_info()
        place = 0 if worker is None else worker.id
        if not self._going_on:
            self.count = 0
        self._going_on = False
        with self._draws.borrowed():
            self._draws.seed(mixed(self._seed, self._epoch, place, _COLLATE))
            samples = iter(self.dataset)
        while True:
            with self._draws.borrowed():
                self._draws.seed(mixed(self._seed, self._epoch, place, self.count))
                try:
                    sample = next(samples)
                except StopIteration:
                    return
            self.count += 1
            yield sample


class StatefulIterableReader(IterableReader):
    """The same for a data set that can tell and take up its own place."""

    def state_dict(self) -> dict[str, Any]:
        """Where the reader stands, for a checkpoint."""
        return {"count": self.count, "dataset": self.dataset.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on reading where a checkpoint's reader stood."""
        self.count = state["count"]
        self._going_on = True
        self.dataset.load_state_dict(state["dataset"])


def ignore_interrupts(worker_id: int) -> None:
    """In a loader worker: Ctrl-C in a terminal reaches the whole group, and the trainer decides."""
    del worker_id
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def as_it_is(sample: Any) -> Any:  # noqa: ANN401 - any sample
    """No collation: micro-batches are put together where their size is known."""
    return sample
