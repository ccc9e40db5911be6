"""Micro-batches from data sets of every kind: in order, from any position, with randomness of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from trainer_backend.data.order import DataPosition
from trainer_backend.data.randomness import seed_all
from trainer_backend.data.stream import Stream, is_iterable, make_stream
from trainer_backend.errors import GradaccError


class Numbered(torch.utils.data.Dataset[torch.Tensor]):
    """Each sample: its index, and a number of each generator."""

    def __init__(self, length: int = 23) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002, S311
        return torch.tensor([float(index), *drawn], dtype=torch.float64)


class Counting(torch.utils.data.IterableDataset[torch.Tensor]):
    """Numbers from 0; `read` counts what was really read."""

    def __init__(self, length: int = 23) -> None:
        super().__init__()
        self.read = 0
        self._length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(self._length):
            self.read += 1
            yield torch.tensor([float(index), float(torch.rand(()))], dtype=torch.float64)


class Stateful(Counting):
    """The same, and it can take up its place."""

    def __init__(self, length: int = 23) -> None:
        super().__init__(length)
        self.place = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        start, self.place = self.place, 0
        for index in range(start, self._length):
            self.read += 1
            self.place = index + 1
            yield torch.tensor([float(index), float(torch.rand(()))], dtype=torch.float64)
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        """Its place."""
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take it up."""
        self.place = state["place"]


def stream_of(dataset: Any, *, workers: int = 0, epochs: int | None = 2, **options: Any) -> Stream:
    """A stream over a data set."""
    given: dict[str, Any] = {
        "seed": 11, "shuffle": True, "num_workers": workers, "epochs": epochs, "max_samples": None,
        "tail": "step", "device": torch.device("cpu"),
    }  # fmt: skip
    return make_stream(dataset, default_collate, **(given | options))


def rows(stream: Stream, *windows: tuple[int, int]) -> list[list[float]]:
    """All samples of some windows, in order."""
    found: list[list[float]] = []
    for steps, size in windows:
        for batch in stream.window(steps, size):
            found += batch.batch.tolist()
    return found


def everything(stream: Stream, steps: int = 3, size: int = 2) -> list[list[float]]:
    """All samples to the end."""
    found: list[list[float]] = []
    while more := rows(stream, (steps, size)):
        found += more
    stream.close()
    return found


def test_workers_and_sizes_change_no_sample() -> None:
    """Two workers in micro-batches of 5 give what one process gives in twos: indices and augmentation."""
    plain = everything(stream_of(Numbered()))
    assert len(plain) == 46
    assert [row[0] for row in plain[:23]] != [row[0] for row in plain[23:]]
    assert everything(stream_of(Numbered(), workers=2), steps=2, size=5) == plain
    assert everything(stream_of(Numbered()), steps=1, size=23) == plain


class OwnNumbers(Numbered):
    """Augments with generators of its own, one of them deep in a transform."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = np.random.default_rng(5)
        self.transform = SimpleNamespace(steps=[SimpleNamespace(numbers=random.Random(5))])  # noqa: S311

    def __getitem__(self, index: int) -> torch.Tensor:
        """(number, what it drew)."""
        drawn = self.numbers.random() + self.transform.steps[0].numbers.random()
        return torch.tensor([float(index), drawn], dtype=torch.float64)


def test_generators_that_a_data_set_holds_give_the_same_under_any_workers() -> None:
    """They are seeded by the sample's place too, and stand afterwards as before in this process."""
    data = OwnNumbers()
    before = data.numbers.bit_generator.state
    plain = everything(stream_of(data))
    assert data.numbers.bit_generator.state == before
    assert len({row[1] for row in plain}) == len(plain)
    assert everything(stream_of(OwnNumbers(), workers=2), steps=2, size=5) == plain


@pytest.mark.parametrize("workers", [0, 2])
def test_a_size_that_changes_between_windows_loses_nothing(workers: int) -> None:
    """What workers had read ahead in the old size is read again in the new one."""
    stream = stream_of(Numbered(), workers=workers)
    found = rows(stream, (2, 2), (3, 4), (1, 3), (2, 1), (4, 2), (9, 7), (9, 7))
    stream.close()
    assert found == everything(stream_of(Numbered()))


@pytest.mark.parametrize("kind", [Numbered, Counting, Stateful])
@pytest.mark.parametrize("workers", [0, 1])
def test_any_position_can_be_taken_up(kind: Any, workers: int) -> None:
    """Saved as JSON in the middle of the second epoch, and gone on from there by another stream."""
    first = stream_of(kind(), workers=workers)
    before = rows(first, *([(3, 2)] * 6))
    saved = msgspec.json.encode(first.saved_position())
    first.close()
    second = stream_of(kind(), workers=workers)
    second.position = msgspec.json.decode(saved, type=DataPosition)
    assert second.position.epoch == 1
    assert before + everything(second) == everything(stream_of(kind(), workers=workers))


def noisy(samples: list[Any]) -> torch.Tensor:
    """A collate that draws, as augmentation of whole micro-batches does."""
    rows_bf = torch.stack([sample[0] for sample in samples])
    return rows_bf + torch.rand(rows_bf.shape, dtype=rows_bf.dtype)


def test_a_collate_that_draws_gives_the_same_under_any_workers() -> None:
    """Also over a TensorDataset, which itself draws nothing."""
    data = torch.utils.data.TensorDataset(torch.arange(23.0, dtype=torch.float64)[:, None])
    options: dict[str, Any] = {
        "seed": 1, "shuffle": True, "epochs": 1, "max_samples": None, "tail": "step",
        "device": torch.device("cpu"),
    }  # fmt: skip
    found = []
    for workers in (0, 2):
        torch.manual_seed(workers)
        stream = make_stream(data, noisy, num_workers=workers, **options)
        found.append(rows(stream, *([(3, 2)] * 4)))
        stream.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", [Numbered, Counting, Stateful])
def test_a_length_that_ends_inside_a_window_ends_after_the_last_whole_one(kind: Any) -> None:
    """With tail = drop: two windows of 8 of 20 samples, and then the data is over, which is no fault."""
    stream = stream_of(kind(), epochs=None, tail="drop", max_samples=20)
    assert len(rows(stream, (4, 2), (4, 2), (4, 2), (4, 2))) == 16
    assert stream.position.consumed == 16
    stream.close()


def test_a_data_set_that_knows_its_place_reads_nothing_twice() -> None:
    """With torchdata its own state is used; without state the samples before are read again."""
    for kind, read in ((Stateful, 23 - 18), (Counting, 23)):
        first = stream_of(kind(), epochs=1)
        rows(first, *([(3, 2)] * 3))
        position = first.saved_position()
        data = kind()
        second = stream_of(data, epochs=1)
        second.position = position
        everything(second)
        assert data.read == read


def test_reading_leaves_the_trainers_generators_alone() -> None:
    """Dropout draws the same whether samples are read in this process or by workers."""
    seed_all(3)
    expected = (torch.rand(3).tolist(), random.random(), np.random.rand())  # noqa: NPY002, S311
    for data in (Numbered(), Counting()):
        stream = stream_of(data)
        seed_all(3)
        everything(stream)
        assert (torch.rand(3).tolist(), random.random(), np.random.rand()) == expected  # noqa: NPY002, S311


def test_the_indices_of_a_micro_batch_are_its_samples() -> None:
    """For facts that name samples."""
    stream = stream_of(Numbered(), shuffle=True)
    for batch in stream.window(4, 3):
        assert list(batch.indices) == [int(row[0]) for row in batch.batch.tolist()]
        assert batch.samples == len(batch.indices)


def test_tensors_in_one_gather_are_what_stacked_samples_would_be() -> None:
    """A TensorDataset is read at once: the same types, shapes and values as through its samples."""
    data = torch.utils.data.TensorDataset(torch.randn(23, 4), torch.arange(23), torch.rand(23, 2, 2).half())
    fast = list(stream_of(data).window(6, 4))
    slow = list(stream_of(torch.utils.data.Subset(data, range(23))).window(6, 4))
    assert [batch.indices for batch in fast] == [batch.indices for batch in slow]
    for one, other in zip(fast, slow, strict=True):
        assert type(one.batch) is type(other.batch)
        assert all(map(torch.equal, one.batch, other.batch))
        assert [tensor.dtype for tensor in one.batch] == [tensor.dtype for tensor in other.batch]


@pytest.mark.parametrize("data", [Numbered(0), Counting(0)])
def test_data_without_a_sample_is_a_sentence(data: Any) -> None:
    """Not an endless search for one."""
    with pytest.raises(GradaccError, match=r"is empty|no sample"):
        rows(stream_of(data, epochs=None), (1, 1))


def test_what_is_no_data_set_is_a_sentence() -> None:
    """With its type."""
    with pytest.raises(GradaccError, match="The training data is int"):
        is_iterable(5)
    assert is_iterable(iter([1]))
    assert not is_iterable([1, 2])
