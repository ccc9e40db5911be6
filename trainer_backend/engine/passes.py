"""Forward and backward of a window's micro-batches, replayed in smaller ones when memory runs out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch

from trainer_backend.engine.agreement import Agreement
from trainer_backend.engine.batches import Piece
from trainer_backend.engine.denominators import LargerWeightSeen, OwnBufferNeeded
from trainer_backend.engine.memory import free, is_out_of_memory
from trainer_backend.engine.micro_batches import Loss, MicroBatches, ReportMicroBatch
from trainer_backend.engine.norms import total_norm
from trainer_backend.engine.precision import LossScaler, Masters
from trainer_backend.engine.seeding import Seeding
from trainer_backend.engine.snapshot import Snapshot
from trainer_backend.engine.sums import Sums
from trainer_backend.engine.terms import check_weight
from trainer_backend.engine.window import Feed
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import NonFiniteSeen, OutOfMemoryRecovered

Failure: TypeAlias = Literal["forward", "backward", "again"]
"""Why an attempt at a window is undone: out of memory there, or it must start again otherwise."""
NonFiniteMicroBatch: TypeAlias = tuple[int, Literal["loss", "gradient"], float]
"""Micro-batch in the window, what was not finite, and its value."""


class Passes:
    """Runs micro-batches; what they add up to lies in the leaves' `.grad`, in buffers and in `Sums`."""

    def __init__(  # noqa: PLR0913 - handed on by name
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        *,
        device: torch.device,
        autocast: contextlib.AbstractContextManager[Any] | None,
        masters: Masters | None,
        scaler: LossScaler | None,
        report: ReportMicroBatch | None,
        own_gradients: bool = False,
        deferred: bool = False,
        on_batch_change: Callable[[str], None] = lambda _: None,
        owners: Sequence[Any] = (),
        seeding: Seeding | None = None,
    ) -> None:
        self.micro = MicroBatches(
            model, loss, device=device, autocast=autocast, scaler=scaler, report=report,
            own_gradients=own_gradients, deferred=deferred, on_batch_change=on_batch_change,
        )  # fmt: skip
        self.denominators = self.micro.denominators
        self.snapshot = Snapshot(model, device, owners)
        self._model = model
        self._parameters = list(model.parameters())
        self._optimizer = optimizer
        self._device = device
        self._masters = masters
        self._half_of = {} if masters is None else {master: half for half, master in masters.of.items()}
        self._scaler = scaler
        self._seeding = seeding
        self._step = 0
        self.agreed: Agreement | None = None

    # ------------------------------------------------------------------ a window's start and end

    def start(
        self, *, step: int, samples_seen: int, tokens_seen: int, sample_norms: bool, first_norm: bool
    ) -> None:
        """Window `step` begins: empty gradients, remember buffers and RNGs."""
        leaves = [leaf for group in self._optimizer.param_groups for leaf in group["params"]]
        if len(leaves) != len(self.micro.leaves) and self._masters is not None and self._masters.adopt():
            leaves = [leaf for group in self._optimizer.param_groups for leaf in group["params"]]
            self._half_of = {master: half for half, master in self._masters.of.items()}
        self.micro.leaves = leaves
        self.clear()
        self._step = step
        self.micro.start(step, samples_seen=samples_seen, tokens_seen=tokens_seen, first_norm=first_norm)
        self.snapshot.take()
        if self._seeding is not None:
            self._seeding.begin(step)
        if sample_norms:
            self.micro.norms.attach([self._half_of.get(leaf, leaf) for leaf in self.leaves])

    @property
    def leaves(self) -> list[torch.nn.Parameter]:
        """What the optimizer updates: parameters, or their fp32 masters."""
        return self.micro.leaves

    def clear(self) -> None:
        """No gradient is left anywhere: of the optimizer's parameters, or of others in the model."""
        for leaf in self.leaves:
            leaf.grad = None
        for parameter in self._parameters:
            parameter.grad = None
        self.micro.own.clear()

    def undo(self) -> None:
        """Back to the window's start, as if no micro-batch had run."""
        self.clear()
        self.micro.norms.forget()
        self.snapshot.restore()

    # -------------------------------------------------------------------------------- the passes

    def accumulate(self, feed: Feed, recovered: Callable[[OutOfMemoryRecovered], None]) -> Sums:
        """All micro-batches of `feed`, each sample once; smaller micro-batches when memory runs out."""
        replay = False
        while True:
            scale = None if self._scaler is None else self._scaler.scale
            self.denominators.begin(self._counted_ahead(feed), scale, replay=replay)
            replay = True
            sums = Sums(len(self.denominators.names))
            self.micro.waiting = []
            failed = self._attempt(feed, sums)
            if failed is None:
                self.micro.window_done()
                return sums
            ceiling = 0 if failed == "again" else self._half(feed.pieces[len(sums.rows)])
            self.undo()
            if failed != "again":
                free(self._device)
                before = max(piece.samples for piece in feed.pull_all())
                many = len(feed.pieces)
                feed.shrink(ceiling)
                recovered(self._recovery(failed, before, ceiling, many, feed))

    def _attempt(self, feed: Feed, sums: Sums) -> Failure | None:
        """One try at the window; None when it went through. What was caught is forgotten, frames and all."""
        try:
            self._run_all(feed, sums)
        except (OwnBufferNeeded, LargerWeightSeen):
            return "again"
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or self.micro.phase == "data":
                raise
            return self.micro.phase
        return None

    def _run_all(self, feed: Feed, sums: Sums) -> None:
        """Each micro-batch of `feed` once."""
        while (piece := self._next(feed, len(sums.rows))) is not None:
            if self._seeding is not None:  # looked at here: it is what N repeats
                self._seed(len(sums.rows))
            self.micro.run(sums, piece)

    @property
    def is_seeded(self) -> bool:
        """Whether micro-batches draw by their place in the run."""
        return self._seeding is not None

    def keep_generators(self) -> None:
        """From here on micro-batches draw as the generators stand."""
        self._seeding = None

    def _seed(self, index: int) -> None:
        """Micro-batch `index` of this process draws what it would draw anywhere else."""
        if self._seeding is not None:
            self._seeding.at(index)

    def _next(self, feed: Feed, index: int) -> Piece | None:
        self.micro.phase = "data"
        return feed.at(index)

    def _counted_ahead(self, feed: Feed) -> dict[str, float] | None:
        """D of each term over all micro-batches, where `weights` counts several terms."""
        if not feed.counts_weights:
            return None
        first = feed.at(0)
        names = {*self.denominators.names, *((first and first.weights) or ())}
        if len(names) < 2:
            return None
        return counted_weights(feed)

    # ------------------------------------------------------------------------- the window's border

    def merge_own(self, reference: float, weights: Sequence[float]) -> None:
        """Add the terms with buffers of their own to `.grad`, each by D_ref/D_t."""
        if self.denominators.ahead is not None:
            return
        for index in sorted(self.denominators.own):
            weight = weights[index] if index < len(weights) else 0.0
            if weight <= 0:
                continue
            for leaf, buffer in zip(self.leaves, self.micro.own.of(index, self.leaves), strict=True):
                if buffer is None:
                    continue
                buffer.mul_(reference / weight)
                leaf.grad = buffer if leaf.grad is None else leaf.grad.add_(buffer)
        self.micro.own.clear()

    def window_over(self) -> None:
        """The window was consumed, applied or not."""

    def restored(self) -> None:
        """Names, c and buffers are those of a checkpoint."""

    def seen_by_all(self, seen: tuple[NonFiniteSeen, ...]) -> tuple[NonFiniteSeen, ...]:
        """The non-finite values of the whole window."""
        return seen

    # ------------------------------------------------------------------------------ out of memory

    def _half(self, piece: Piece) -> int:
        """Samples a micro-batch may have after `piece` did not fit."""
        if piece.samples <= 1:
            message = (
                f"Out of memory on {self._device} with a single sample in the micro-batch"
                f"{_named(piece)}: it cannot be made smaller. Use shorter samples, activation "
                "checkpointing, bf16, or a smaller model."
            )
            raise GradaccError(message)
        return piece.samples // 2

    def _recovery(
        self, phase: Literal["forward", "backward"], before: int, after: int, many: int, feed: Feed
    ) -> OutOfMemoryRecovered:
        return OutOfMemoryRecovered(
            step=self._step,
            phase=phase,
            micro_batch_size_before=before,
            micro_batch_size=after,
            accumulation_steps_before=many,
            accumulation_steps=len(feed.pieces),
            effective_batch=sum(piece.samples for piece in feed.pieces),
            device=str(self._device),
        )

    def recovery_of_step(self, sums: Sums) -> OutOfMemoryRecovered:
        """The optimizer's step was made again, one parameter at a time; micro-batches stay as they are."""
        size, many = sums.largest, sums.micro_batches
        return OutOfMemoryRecovered(
            step=self._step,
            phase="optimizer",
            micro_batch_size_before=size,
            micro_batch_size=size,
            accumulation_steps_before=many,
            accumulation_steps=many,
            effective_batch=sums.samples,
            device=str(self._device),
        )

    # -------------------------------------------------------------------------------- forensics

    def culprits(self, feed: Feed) -> list[NonFiniteMicroBatch]:
        """Which micro-batches are not finite: each is run again alone. Leaves the window undone."""
        self.undo()
        found: list[NonFiniteMicroBatch] = []
        for index, piece in enumerate(feed.pull_all()):
            self._seed(index)
            row = self.micro.alone(piece)
            norm = total_norm([*self.micro.gradients(), *self.micro.own.gradients()]).item()
            if not row.is_finite():
                loss = row.loss()
                found.append((index, "loss", math.nan if loss is None else loss))
            elif not math.isfinite(norm):
                found.append((index, "gradient", norm))
            self.clear()
        self.undo()
        return found


def counted_weights(feed: Feed) -> dict[str, float]:
    """The sum of each term's weights over all micro-batches, as `weights` counts them."""
    counted: dict[str, float] = {}
    for piece in feed.pull_all():
        for name, weight in (piece.weights or {}).items():
            counted[name] = counted.get(name, 0.0) + check_weight(name, weight)
    return counted


def _named(piece: Piece) -> str:
    """The first sample's number in brackets, where the loader told it."""
    return f" (sample {piece.indices[0]})" if piece.indices else ""
