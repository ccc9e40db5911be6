"""Collated batches on the host: their size, their place on a device, and how they are cut in parts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import torch

from trainer_backend.errors import GradaccError
from trainer_backend.tasks import Batch

Returned = TypeVar("Returned")
Split: TypeAlias = Callable[[Batch, int], Sequence[Batch]]
CountSamples: TypeAlias = Callable[[Batch], tuple[int, int]]
CountWeights: TypeAlias = Callable[[Batch], Mapping[str, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class Collated:
    """A collated batch with what its loader knows of it.

    `indices`: the samples' numbers in the data set, named when a value is not finite.
    `samples`, `tokens`: None is counted by the engine (`count`, else the first dimension).
    """

    batch: Batch
    indices: tuple[int, ...] = ()
    samples: int | None = None
    tokens: int | None = None


class Piece:
    """One micro-batch of a window: its batch on the host, its counts, its weights where known ahead."""

    __slots__ = ("batch", "indices", "samples", "tokens", "weights")

    def __init__(
        self,
        batch: Batch,
        samples: int,
        tokens: int | None,
        indices: tuple[int, ...],
        weights: Mapping[str, float] | None,
    ) -> None:
        self.batch = batch
        self.samples = samples
        self.tokens = tokens
        self.indices = indices
        self.weights = weights


def tensors_of(batch: Batch, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in a batch with the path that names it, such as `["image"]` or `[0]`."""
    match batch:
        case torch.Tensor():
            yield path, batch
        case Mapping():
            for key, entry in batch.items():
                yield from tensors_of(entry, f"{path}[{key!r}]")
        case list() | tuple():
            for index, entry in enumerate(batch):
                yield from tensors_of(entry, f"{path}[{index}]")
        case _ if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
            for field in dataclasses.fields(batch):
                yield from tensors_of(getattr(batch, field.name), f"{path}.{field.name}")


def size(batch: Batch) -> int:
    """Samples in a batch: the first dimension of its first tensor that has one; 1 when none has."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    for _, tensor in tensors_of(batch):
        if tensor.dim():
            return tensor.shape[0]
    return 1


def to_device(batch: Batch, device: torch.device) -> Batch:
    """`batch` with every tensor on `device`; the host's own copy is kept by the caller."""
    return mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))


def mapped(batch: Batch, change: Callable[[Any], Any], whole: Callable[[Any], Any] | None = None) -> Batch:
    """`batch` rebuilt with `change` of each tensor, and `whole` of each list or tuple of plain values."""
    match batch:
        case torch.Tensor():
            return change(batch)
        case Mapping():
            changed = {key: mapped(entry, change, whole) for key, entry in batch.items()}
            return changed if type(batch) is dict else type(batch)(changed)  # type: ignore[call-arg]
        case list() | tuple():
            if whole is not None and not any(True for _ in tensors_of(batch)):
                return whole(batch)
            entries = [mapped(entry, change, whole) for entry in batch]
            return type(batch)(*entries) if hasattr(batch, "_fields") else type(batch)(entries)
        case _ if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
            return dataclasses.replace(
                batch,
                **{
                    field.name: mapped(getattr(batch, field.name), change, whole)
                    for field in dataclasses.fields(batch)
                    if field.init
                },
            )
        case _:
            return batch


def split(batch: Batch, parts: int) -> list[Batch]:
    """`batch` cut in `parts` nearly equal ones along the first dimension of its tensors.

    Lists of plain values that are as long as the batch are cut with it; anything else is shared.
    Raises `GradaccError` when the tensors do not agree on the number of samples.
    """
    sizes = {name or "the batch": tensor.shape[0] for name, tensor in tensors_of(batch) if tensor.dim()}
    if not sizes:
        message = (
            f"A batch of type {type(batch).__name__} cannot be split: it holds no tensor with a first "
            "dimension. Give the task a method split(batch, parts) that returns a list of batches."
        )
        raise GradaccError(message)
    total = next(iter(sizes.values()))
    odd = [f"{name} has {rows}" for name, rows in sizes.items() if rows != total]
    if odd:
        message = (
            f"A batch of {total} samples cannot be split: {odd[0]} rows. Give the task a method "
            "split(batch, parts) that returns a list of batches."
        )
        raise GradaccError(message)
    edges = [total * part // parts for part in range(parts + 1)]
    return [_cut(batch, low, high, total) for low, high in itertools.pairwise(edges) if high > low]


def _cut(batch: Batch, low: int, high: int, total: int) -> Batch:
    """Samples `low` to `high` of `total`."""

    def rows_of_tensor(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[low:high] if tensor.dim() else tensor

    def rows_of_values(rows: Any) -> Any:  # noqa: ANN401 - a list or tuple of plain values
        return rows[low:high] if len(rows) == total else rows

    return mapped(batch, rows_of_tensor, rows_of_values)


class Reader:
    """Makes pieces of what a loader hands out, and cuts pieces that are above the ceiling."""

    def __init__(
        self, *, count: CountSamples | None, weights: CountWeights | None, split: Split | None
    ) -> None:
        self._count = count
        self._weights = weights
        self.counts_weights = weights is not None
        self._split = split or globals()["split"]

    def piece(self, given: Batch) -> Piece:
        """A micro-batch with its samples and tokens counted, and its weights where they are counted ahead."""
        wrapped = given if type(given) is Collated else Collated(given)
        batch, samples, tokens = wrapped.batch, wrapped.samples, wrapped.tokens
        if samples is None or (tokens is None and self._count is not None):
            counted = self._count(mapped(batch, _itself)) if self._count is not None else (size(batch), None)
            samples = counted[0] if samples is None else samples
            tokens = counted[1] if tokens is None else tokens
        # Rebuilt, so that what user code takes out of its container stays in ours.
        weights = None if self._weights is None else self._weights(mapped(batch, _itself))
        return Piece(batch, samples, tokens, wrapped.indices, weights)

    def cut(self, piece: Piece, ceiling: int) -> list[Piece]:
        """`piece` in parts of at most `ceiling` samples; itself when it is small enough."""
        if piece.samples <= ceiling:
            return [piece]
        parts = list(self._split(mapped(piece.batch, _itself), -(-piece.samples // ceiling)))
        if len(parts) < 2:
            message = (
                f"A micro-batch of {piece.samples} samples could not be split: split(batch, parts) "
                f"returned {len(parts)} part(s). It must return at least two."
            )
            raise GradaccError(message)
        pieces = [self.piece(part) for part in parts]
        if sum(part.samples for part in pieces) != piece.samples:
            message = (
                f"A micro-batch of {piece.samples} samples was split into parts that hold "
                f"{sum(part.samples for part in pieces)}: each sample must be in exactly one part. "
                "Look at the task's split(batch, parts) and count(batch)."
            )
            raise GradaccError(message)
        return list(_with_indices(pieces, piece.indices))


def _with_indices(pieces: Iterable[Piece], indices: tuple[int, ...]) -> Iterator[Piece]:
    """The pieces of one micro-batch, each with its own run of the sample indices."""
    start = 0
    for piece in pieces:
        piece.indices = indices[start : start + piece.samples]
        start += piece.samples
        yield piece


class HandOut:
    """Lends retained micro-batches to user code, so that a replay finds them as they were.

    Containers are rebuilt: `batch.pop("labels")` takes nothing away. On a CPU the first window lends
    clones and compares their content afterwards, since writes through `.numpy()` and `.data` leave no
    trace. A loss that changes its batch gets clones for good, and `on_change` hears of it once; one that
    begins to later is refused, told by the tensors' versions. Other devices get copies anyway.
    """

    def __init__(self, device: torch.device, on_change: Callable[[str], None]) -> None:
        self._device = device
        self._on_change = on_change
        self._state: Literal["moves", "compares", "trusts", "clones"] = (
            "compares" if device.type == "cpu" else "moves"
        )

    def window_done(self) -> None:
        """The first window that went through has shown what the loss does."""
        if self._state == "compares":
            self._state = "trusts"

    def run(self, batch: Batch, use: Callable[[Batch], Returned]) -> Returned:
        """What `use` makes of the batch. Raises `GradaccError` when it changes what it was lent."""
        match self._state:
            case "moves":
                return use(to_device(batch, self._device))
            case "clones":
                return use(mapped(batch, torch.Tensor.clone))
            case "compares":
                return self._compared(batch, use)
            case "trusts":
                tensors: list[torch.Tensor] = []
                lent = _rebuilt(batch, tensors)
                before = [tensor._version for tensor in tensors]  # noqa: SLF001 - torch's count of writes
                returned = use(lent)
                if before != [tensor._version for tensor in tensors]:  # noqa: SLF001
                    raise GradaccError(
                        "The loss changed its batch in place, which it had not done in the first window, so"
                        " this window could not be run again as it was. Change a copy: use .clone() first."
                    )
                return returned

    def _compared(self, batch: Batch, use: Callable[[Batch], Returned]) -> Returned:
        lent = mapped(batch, torch.Tensor.clone)
        clones = list(tensors_of(lent))  # found before the loss may take them out of their container
        returned = use(lent)
        for (_, kept), (path, clone) in zip(tensors_of(batch), clones, strict=True):
            if not _same_content(kept, clone):
                self._state = "clones"
                self._on_change(path)
                break
        return returned


def _rebuilt(batch: Batch, tensors: list[torch.Tensor]) -> Batch:
    """`batch` in containers of its own; its tensors are added to `tensors`. Each micro-batch pays for it."""
    kind = type(batch)
    if kind is torch.Tensor:
        tensors.append(batch)
        return batch
    if kind is dict:
        return {key: _rebuilt(entry, tensors) for key, entry in batch.items()}
    if kind is list:
        return [_rebuilt(entry, tensors) for entry in batch]
    tensors += [tensor for _, tensor in tensors_of(batch)]
    return mapped(batch, _itself)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _same_content(one: torch.Tensor, other: torch.Tensor) -> bool:
    """The same numbers; NaN is NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(one, other):
        return True
    return (
        one.is_floating_point()
        and torch.equal(one.isnan(), other.isnan())
        and torch.equal(one.nan_to_num(), other.nan_to_num())
    )
