"""Validation: sums and weights over (part of) the held-out data, with the averaged weights if there are.

It draws from generators of its own, so training goes on as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count, islice
from time import perf_counter
from typing import Any

import torch

from trainer_backend.data.order import Cut
from trainer_backend.data.randomness import mixed, seed_all
from trainer_backend.data.reading import Collate, MapReader
from trainer_backend.data.stream import is_iterable
from trainer_backend.engine import Accumulator
from trainer_backend.engine.batches import to_device
from trainer_backend.engine.memory import free, is_out_of_memory
from trainer_backend.engine.precision import Precision, autocast
from trainer_backend.engine.ranks import Ranks
from trainer_backend.engine.snapshot import Snapshot
from trainer_backend.engine.terms import read_terms
from trainer_backend.protocol import EvaluationMeasured
from trainer_backend.tasks import LossTerm, Task
from trainer_backend.tasks.making import batch_counter, collate_of, method

_EVALUATION = 3
"""Told apart from other uses of the run's seed."""


class Evaluator:
    """The held-out data of one run, and how it is measured."""

    def __init__(
        self,
        task: Task,
        dataset: Any,  # noqa: ANN401 - any data set
        accumulator: Accumulator,
        *,
        seed: int,
        precision: Precision,
        max_samples: int | None,
    ) -> None:
        self._task = task
        self._dataset = dataset
        self._accumulator = accumulator
        self._collate: Collate = collate_of(task)
        self._count = batch_counter(task)
        self._metrics = method(task, "evaluate")
        self._summarize = method(task, "summarize")
        self._seed = mixed(seed, _EVALUATION)
        self._precision = precision
        self._max_samples = max_samples
        self._size: int | None = None
        self._share = (0, 1)
        """Which batches this process takes: those whose number leaves the first over the second."""

    def measure(self, size: int, *, between: Callable[[], None]) -> EvaluationMeasured:
        """One pass in batches of `size`, smaller where memory runs out. `between` may raise to end it."""
        started = perf_counter()
        size = size if self._size is None else min(size, self._size)
        sums, samples = self._pass_that_fits(size, between)
        means = {
            name: total / weight if weight else math.nan for name, (total, weight) in sums.losses.items()
        }
        metrics = {name: total / weight for name, (total, weight) in sums.metrics.items() if weight}
        if len(means) > 1:
            metrics |= means
        if self._summarize is not None:
            metrics = self._summarize(metrics)
        accumulator = self._accumulator
        return EvaluationMeasured(
            step=accumulator.step,
            samples_seen=accumulator.samples_seen,
            tokens_seen=accumulator.tokens_seen,
            loss=sum(means.values()) if samples and means else None,
            metrics=metrics,
            samples=samples,
            duration_s=perf_counter() - started,
        )

    def _pass_that_fits(self, size: int, between: Callable[[], None]) -> tuple[_Sums, int]:
        while True:
            try:
                return self._pass(size, between)
            except (RuntimeError, MemoryError) as error:
                if size == 1 or not is_out_of_memory(error):
                    raise
            free(self._accumulator.device)
            size //= 2
            self._size = size

    def _pass(self, size: int, between: Callable[[], None]) -> tuple[_Sums, int]:
        accumulator, sums, seen = self._accumulator, _Sums(), 0
        forward = autocast(self._precision, accumulator.device)
        with undisturbed(accumulator.model, accumulator.device), accumulator.averaged(), torch.no_grad():
            accumulator.model.eval()
            for batch, samples in self._batches(size):
                between()
                on_device = to_device(batch, accumulator.device)
                with forward or nullcontext():
                    sums.add(sums.losses, read_terms(self._task.loss(accumulator.model, on_device)))
                    if self._metrics is not None:
                        sums.add_metrics(self._metrics(accumulator.model, on_device))
                seen += samples
        return sums, seen

    def _batches(self, size: int) -> Iterator[tuple[Any, int]]:
        """Collated batches in the data's own order, the same ones each time."""
        if is_iterable(self._dataset):
            seed_all(self._seed)
            samples = iter(islice(iter(self._dataset), self._max_samples))
            for number in count():
                if not (chunk := list(islice(samples, size))):
                    return
                if self._is_mine(number):
                    yield self._collate(chunk), len(chunk)
        length = len(self._dataset)
        length = length if self._max_samples is None else min(length, self._max_samples)
        reader = MapReader(self._dataset, self._collate, seed=self._seed)
        for number, start in enumerate(range(0, length, size)):
            if not self._is_mine(number):
                continue
            stop = min(start + size, length)
            yield reader[Cut(0, start, stop), list(range(start, stop))][0], stop - start

    def _is_mine(self, number: int) -> bool:
        rank, ranks = self._share
        return number % ranks == rank


class RankedEvaluator(Evaluator):
    """The same on several ranks: each takes its share of the batches, and all get the common sums."""

    def __init__(self, *args: Any, ranks: Ranks, **options: Any) -> None:  # noqa: ANN401 - those of Evaluator
        super().__init__(*args, **options)
        self._ranks = ranks
        self._share = (ranks.rank, ranks.size)

    def _pass_that_fits(self, size: int, between: Callable[[], None]) -> tuple[_Sums, int]:
        """Collective."""
        while True:
            found: tuple[_Sums, int] | None = None
            raised: BaseException | None = None
            try:
                found = self._pass(size, between)
            except BaseException as error:  # noqa: BLE001 - raised once the others know
                if size == 1 or not is_out_of_memory(error):
                    raised = error
            self._ranks.settle(raised)
            everyone = self._ranks.gather(found)
            if None not in everyone:
                return _together(everyone)
            free(self._accumulator.device)
            size //= 2
            self._size = size


class _Sums:
    """Totals and weights by name."""

    def __init__(self) -> None:
        self.losses: dict[str, tuple[float, float]] = {}
        self.metrics: dict[str, tuple[float, float]] = {}

    def add(self, into: dict[str, tuple[float, float]], terms: Any) -> None:  # noqa: ANN401 - terms
        """Some terms of one batch."""
        for term in terms:
            into[term.name] = _added(into.get(term.name), term)

    def add_metrics(self, found: Any) -> None:  # noqa: ANN401 - the user's own
        """What `evaluate` returned: terms, or a mapping of names to them."""
        terms = found.items() if hasattr(found, "items") else ((term.name, term) for term in found)
        for name, term in terms:
            self.metrics[name] = _added(self.metrics.get(name), term)


def _together(parts: list[tuple[_Sums, int]]) -> tuple[_Sums, int]:
    """What all ranks measured, added up in their order."""
    whole = _Sums()
    for sums, _ in parts:
        for into, found in ((whole.losses, sums.losses), (whole.metrics, sums.metrics)):
            for name, (total, weight) in found.items():
                before = into.get(name, (0.0, 0.0))
                into[name] = (before[0] + total, before[1] + weight)
    return whole, sum(samples for _, samples in parts)


def _added(before: tuple[float, float] | None, term: LossTerm) -> tuple[float, float]:
    """Total and weight with one term more; without weight nothing counts, whatever its total holds."""
    total, weight = before or (0.0, 0.0)
    own = float(term.weight)
    return (total + float(term.total), weight + own) if own else (total, weight)


@contextmanager
def undisturbed(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Afterwards the generators, buffers and training modes of all modules are what they were."""
    modes = [(module, module.training) for module in model.modules()]
    before = Snapshot(model, device)
    before.take()
    try:
        yield
    finally:
        before.restore()
        for module, training in modes:
            module.training = training
