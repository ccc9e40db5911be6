"""Gradients of replicated ranks, added up in buckets while the last micro-batch's backward still runs.

A bucket is about 25 MiB of gradients in one buffer; two are on their way at most, so that they need
50 MiB and no copy of all. Their order is the same on all ranks: that in which the gradients became ready
in the first window on rank 0. Every rank starts every bucket exactly once a window, at the latest in
`finish`, with zeros where it has no gradient: what one micro-batch did not use can neither be left out
nor be waited for. (torch's DistributedDataParallel under `no_sync` leaves such a parameter unreduced.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch

from trainer_backend.engine.private_api import copy_each
from trainer_backend.engine.ranks import Ranks

BUCKET_BYTES: Final = 25 * 2**20
IN_FLIGHT: Final = 2
"""Buckets on their way at once."""


class _Part(NamedTuple):
    """Some elements of a leaf's gradient; all of it unless the leaf is larger than a bucket."""

    leaf: int
    start: int
    stop: int


class _Bucket:
    """Parts of one dtype that are added up together."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.parts = list(parts)
        self.missing: set[int] = set()
        """Leaves whose gradient is not ready yet."""
        self.flat: torch.Tensor | None = None
        self.work: Any = None


class Buckets:
    """Adds the leaves' `.grad` up over the ranks. All ranks have the same leaves, in the same order."""

    def __init__(self, ranks: Ranks, *, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._ranks = ranks
        self._bucket_bytes = bucket_bytes
        self._leaves: list[torch.Tensor] = []
        self._buckets: list[_Bucket] = []
        self._places: list[list[_Bucket]] = []
        """The buckets that each leaf lies in."""
        self._recorded: list[int] | None = []
        """Leaves in the order in which they became ready; None once the order is settled."""
        self._flying: list[_Bucket] = []
        self._spare: list[torch.Tensor] = []
        """Buffers that have landed, for the buckets to come: a new one for each would peak higher."""
        self._next = 0
        self._handles: list[Any] = []
        self._arrived: list[int] = []
        self._late: set[int] = set()
        """Leaves whose gradient came in several parts once: never taken to be ready before the border."""
        self.is_spoiled = False
        """Whether a gradient went on growing after its bucket had started."""

    @property
    def has_started(self) -> bool:
        """Whether some gradients are on their way, or hold the sum over the ranks already."""
        return self._next > 0

    # ------------------------------------------------------------------------- an attempt at a window

    def begin(self, leaves: Sequence[torch.Tensor]) -> None:
        """A window, or its replay, begins: no bucket has started."""
        if len(leaves) != len(self._leaves) or any(
            one is not other for one, other in zip(leaves, self._leaves, strict=True)
        ):
            self._leaves = list(leaves)
            self._recorded = []
            self._arrange(list(range(len(leaves)))[::-1])
        self._next = 0
        self.is_spoiled = False
        self._arrived = [0] * len(self._leaves)
        for bucket in self._buckets:
            bucket.missing = {part.leaf for part in bucket.parts}

    def arm(self, sources: Sequence[torch.Tensor]) -> None:
        """The last micro-batch comes: start each bucket when its gradients are ready.

        `sources[i]` is the parameter whose backward fills leaf i's `.grad`: itself, or its half copy.
        """

        def hook_of(index: int) -> Callable[[torch.Tensor], None]:
            return lambda _: self._ready(index)

        self._handles = [
            source.register_post_accumulate_grad_hook(hook_of(index))  # type: ignore[no-untyped-call]
            for index, source in enumerate(sources)
            if source.requires_grad and source.is_leaf
        ]

    def disarm(self) -> None:
        """The last micro-batch is over."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def finish(self) -> None:
        """Start what has not started, and wait for all. Collective, and so is every attempt."""
        self.disarm()
        while self._next < len(self._buckets):
            self._start()
        while self._flying:
            self._land(self._flying.pop(0))
        self._spare.clear()

    def settle_order(self) -> None:
        """After a window that went through: take rank 0's order for those to come. Collective once."""
        if self._recorded is None:
            return
        recorded = self._ranks.gather(self._recorded)[0]
        if not recorded:  # rank 0 had no micro-batch: the next window will tell
            return
        self._recorded = None
        never = [index for index in range(len(self._leaves)) if index not in set(recorded)]
        self._arrange([*recorded, *never])

    # ------------------------------------------------------------------------------------ inside

    def _arrange(self, order: Sequence[int]) -> None:
        """Put the leaves into buckets in this order."""
        self._buckets = []
        filling: dict[torch.dtype, tuple[list[_Part], int]] = {}
        for index in order:
            leaf = self._leaves[index]
            for part in self._parts_of(index):
                size_bytes = (part.stop - part.start) * leaf.element_size()
                parts, filled_bytes = filling.get(leaf.dtype, ([], 0))
                if parts and filled_bytes + size_bytes > self._bucket_bytes:
                    self._buckets.append(_Bucket(parts))
                    parts, filled_bytes = [], 0
                filling[leaf.dtype] = ([*parts, part], filled_bytes + size_bytes)
        self._buckets += [_Bucket(parts) for parts, _ in filling.values() if parts]
        self._places = [[] for _ in self._leaves]
        for bucket in self._buckets:
            for index in {part.leaf for part in bucket.parts}:
                self._places[index].append(bucket)

    def _parts_of(self, index: int) -> list[_Part]:
        leaf = self._leaves[index]
        most = max(1, self._bucket_bytes // leaf.element_size())
        if leaf.numel() <= most or not leaf.is_contiguous():
            return [_Part(index, 0, leaf.numel())]
        edges = [*range(0, leaf.numel(), most), leaf.numel()]
        return [_Part(index, low, high) for low, high in itertools.pairwise(edges)]

    def _ready(self, index: int) -> None:
        """A gradient was added to, in the last micro-batch's backward."""
        self._arrived[index] += 1
        if self._arrived[index] > 1:
            self._late.add(index)
            if any(bucket in self._buckets[: self._next] for bucket in self._places[index]):
                self.is_spoiled = True
            for bucket in self._places[index]:
                bucket.missing.add(index)
            return
        if self._recorded is not None:
            self._recorded.append(index)
            return
        if index in self._late:
            return
        for bucket in self._places[index]:
            bucket.missing.discard(index)
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._start()

    def _start(self) -> None:
        """Send the next bucket on its way."""
        if len(self._flying) >= IN_FLIGHT:
            self._land(self._flying.pop(0))
        bucket = self._buckets[self._next]
        bucket.flat = self._filled(bucket)  # may run out of memory, and is tried again in `finish`
        bucket.work = self._ranks.add(bucket.flat)
        self._next += 1
        self._flying.append(bucket)

    def _filled(self, bucket: _Bucket) -> torch.Tensor:
        """The bucket's gradients, then one number a part: 1 where this rank has a gradient."""
        first = self._leaves[bucket.parts[0].leaf]
        sizes = [part.stop - part.start for part in bucket.parts]
        flat = self._buffer(sum(sizes) + len(sizes), first)
        *places, present = torch.split(flat, [*sizes, len(sizes)])
        gradients = [self._leaves[part.leaf].grad for part in bucket.parts]
        present.copy_(torch.tensor([float(gradient is not None) for gradient in gradients]))
        taken: list[tuple[torch.Tensor, torch.Tensor]] = []
        for part, place, gradient in zip(bucket.parts, places, gradients, strict=True):
            if gradient is None:
                place.zero_()
            else:
                taken.append((place, _elements(gradient, part)))
        if taken:
            copy_each([place for place, _ in taken], [elements for _, elements in taken])
        return flat

    def _buffer(self, numel: int, like: torch.Tensor) -> torch.Tensor:
        """So many numbers to be written over, from a buffer that has landed where one is large enough."""
        for place, spare in enumerate(self._spare):
            if spare.numel() >= numel and (spare.dtype, spare.device) == (like.dtype, like.device):
                return self._spare.pop(place)[:numel]
        return torch.empty(numel, dtype=like.dtype, device=like.device)

    def _land(self, bucket: _Bucket) -> None:
        """Wait for a bucket, and put its sums where the gradients are."""
        assert bucket.flat is not None
        with self._ranks.talking():
            bucket.work.wait()
        sizes = [part.stop - part.start for part in bucket.parts]
        *sums, present = torch.split(bucket.flat, [*sizes, len(sizes)])
        landed, bucket.flat, bucket.work = bucket.flat, None, None
        lacking = [self._leaves[part.leaf].grad is None for part in bucket.parts]
        anywhere = present.tolist() if any(lacking) else [1.0] * len(sizes)
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for part, summed, ranks_with_one in zip(bucket.parts, sums, anywhere, strict=True):
            leaf = self._leaves[part.leaf]
            if leaf.grad is None:
                if not ranks_with_one:  # nobody has one: the optimizer passes over it
                    continue
                leaf.grad = torch.zeros_like(leaf)
            elif not leaf.grad.is_contiguous() and part.stop - part.start < leaf.numel():
                leaf.grad = leaf.grad.contiguous()
            if part.stop - part.start == leaf.numel():
                targets.append(leaf.grad)
                sources.append(summed.view(leaf.shape))
            else:
                targets.append(leaf.grad.view(-1)[part.start : part.stop])
                sources.append(summed)
        if targets:
            with torch.no_grad():
                copy_each(targets, sources)
        self._spare.append(landed)

    def forget(self) -> None:
        """Ranks are lost: nothing is waited for."""
        self.disarm()
        self._flying.clear()
        self._spare.clear()


def _elements(gradient: torch.Tensor, part: _Part) -> torch.Tensor:
    flat = gradient.detach().reshape(-1)
    return flat if part.stop - part.start == flat.numel() else flat[part.start : part.stop]


def add_up(
    ranks: Ranks, leaves: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Sum gradients that lie beside the leaves' own over the ranks, one a leaf. Collective."""
    kept = [leaf.grad for leaf in leaves]
    for leaf, gradient in zip(leaves, gradients, strict=True):
        leaf.grad = gradient
    try:
        buckets = Buckets(ranks)
        buckets.begin(leaves)
        buckets.finish()
        return [leaf.grad for leaf in leaves]
    finally:
        for leaf, gradient in zip(leaves, kept, strict=True):
            leaf.grad = gradient
