"""A window of micro-batches: what it is fed, what is known at its border, and what it gave."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from time import perf_counter
from typing import Final

from trainer_backend.engine.batches import Piece, Reader
from trainer_backend.errors import GradaccError
from trainer_backend.noise_scale import NoiseSample
from trainer_backend.protocol import NonFiniteSeen, OptimizerStepMeasured, OutOfMemoryRecovered
from trainer_backend.tasks import Batch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WindowTotals:
    """What is known at the border, before the optimizer steps: set the learning rate from it."""

    step: int
    """This window's number, from 1."""
    micro_batches: int
    samples: int
    tokens: int
    samples_seen: int
    """Consumed by the run at this window's end."""
    tokens_seen: int


@dataclasses.dataclass(slots=True, kw_only=True)
class WindowResult:
    """One window's numbers, named as in `OptimizerStepMeasured`."""

    step: int
    updates: int
    """Updates applied so far, this one included."""
    micro_batches: int
    micro_batch_size: int
    """Samples in the largest micro-batch, as it was run."""
    samples: int
    tokens: int
    samples_seen: int
    tokens_seen: int
    weight: float
    """D of the first term, over all ranks."""
    loss: float | None
    """Sum over the terms of total / D, over all ranks; None when the window is empty."""
    terms: dict[str, float | None]
    """The same by term."""
    gradient_norm: float | None
    """L2 norm of the mean gradient, before clipping; None when the window is empty."""
    loss_scale: float | None
    skipped: str
    """"" | "empty" | "non-finite" | "loss-scale"."""
    duration_s: float
    data_wait_s: float
    out_of_memory: tuple[OutOfMemoryRecovered, ...] = ()
    non_finite: tuple[NonFiniteSeen, ...] = ()
    noise: NoiseSample | None = None
    """What its micro-batches' norms tell of the gradient noise; None where they were not all measured."""
    known: bool = True
    """False while loss, terms, norm, loss scale, updates and skipped are still on the device."""
    _listeners: list[Callable[[], None]] = dataclasses.field(default_factory=list, repr=False)

    def measured(self, *, accumulation_steps: int, learning_rate: float) -> OptimizerStepMeasured:
        """The window as the journal has it, once its numbers are known.

        `accumulation_steps`: N as it was asked; a tail has fewer micro-batches.
        """
        own = {name: getattr(self, name) for name in _MEASURED}
        return OptimizerStepMeasured(
            accumulation_steps=accumulation_steps,
            learning_rate=learning_rate,
            samples_per_s=self.samples / self.duration_s,
            tokens_per_s=self.tokens / self.duration_s,
            **own,
        )

    def when_known(self, listener: Callable[[], None]) -> None:
        """Call `listener` when all numbers are there: at once on a CPU, one window later on a GPU."""
        if self.known:
            listener()
        else:
            self._listeners.append(listener)

    def complete(self) -> None:
        """All numbers are there now."""
        self.known = True
        while self._listeners:
            self._listeners.pop(0)()


_MEASURED: Final = frozenset(OptimizerStepMeasured.__struct_fields__) & {
    field.name for field in dataclasses.fields(WindowResult)
}
"""What a window and its row in the journal both have, under the same name."""


class NoBatchError(GradaccError):
    """A window got no batch at all, on any rank: nothing was consumed."""


class NonFiniteError(GradaccError):
    """Training must not go on: a policy of "halt", or too many windows in a row.

    `code`: "non-finite-halt" (nothing was consumed: state and counters are those before the window)
    or "non-finite-in-a-row" (`result` is the last window's). `seen`: the facts, already given.
    """

    def __init__(
        self, sentence: str, *, code: str, seen: tuple[NonFiniteSeen, ...], result: WindowResult | None
    ) -> None:
        super().__init__(sentence)
        self.code = code
        self.seen = seen
        self.result = result


class Feed:
    """A window's micro-batches: pulled one ahead, retained on the host for a replay."""

    def __init__(self, batches: Iterable[Batch], reader: Reader, ceiling: int | None) -> None:
        self.pieces: list[Piece] = []
        self.wait_s = 0.0
        self.counts_weights = reader.counts_weights
        self.left_out_samples = 0
        self.left_out_tokens = 0
        self._source = iter(batches)
        self._reader = reader
        self._ceiling = ceiling
        self._ended = False

    def at(self, index: int) -> Piece | None:
        """Micro-batch `index`, and the one after it is pulled; None behind the last."""
        while not self._ended and len(self.pieces) < index + 2:
            self._pull()
        return self.pieces[index] if index < len(self.pieces) else None

    def is_last(self, index: int) -> bool:
        """Whether no micro-batch comes behind `index`, which was asked for before."""
        return self._ended and len(self.pieces) == index + 1

    def _pull(self) -> None:
        started = perf_counter()
        try:
            given = next(self._source)
        except StopIteration:
            self._ended = True
            return
        finally:
            self.wait_s += perf_counter() - started
        piece = self._reader.piece(given)
        self.pieces += [piece] if self._ceiling is None else self._reader.cut(piece, self._ceiling)

    def pull_all(self) -> list[Piece]:
        """Read all micro-batches of the window and keep them."""
        while not self._ended:
            self._pull()
        return self.pieces

    def shrink(self, ceiling: int) -> None:
        """Cut every micro-batch to at most `ceiling` samples; each sample stays in exactly one."""
        self._ceiling = ceiling
        self.pieces = [part for piece in self.pull_all() for part in self._reader.cut(piece, ceiling)]

    def halve_alone(self) -> None:
        """Cut the window's only micro-batch in two, so that two gradients can be compared; else nothing."""
        first = self.at(0)
        if first is not None and len(self.pieces) == 1 and first.samples > 1:
            self.shrink(-(-first.samples // 2))

    def without(self, culprits: Collection[int]) -> None:
        """Leave micro-batches out of the replay; their samples count as consumed."""
        for piece in (self.pull_all()[index] for index in culprits):
            self.left_out_samples += piece.samples
            self.left_out_tokens += piece.tokens or 0
        self.pieces = [piece for index, piece in enumerate(self.pull_all()) if index not in culprits]
