"""Forward and backward of a window's micro-batches, replayed in smaller ones when memory runs out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import torch

from trainer_backend.engine.batches import Piece
from trainer_backend.engine.denominators import MAX_TERMS, LargerWeightSeen, OwnBufferNeeded
from trainer_backend.engine.memory import free, is_out_of_memory
from trainer_backend.engine.micro_batches import Loss, MicroBatches, ReportMicroBatch
from trainer_backend.engine.norms import total_norm
from trainer_backend.engine.precision import LossScaler, Masters
from trainer_backend.engine.private_api import multiply_each
from trainer_backend.engine.ranks import Ranks
from trainer_backend.engine.snapshot import Snapshot
from trainer_backend.engine.sums import Sums
from trainer_backend.engine.terms import check_weight
from trainer_backend.engine.window import Feed
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import OutOfMemoryRecovered

NO_CEILING: Final = 2**52
"""What a rank says whose memory sufficed: more samples than any micro-batch has, and exact in fp64."""
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
        ranks: Ranks,
        report: ReportMicroBatch | None,
        own_gradients: bool = False,
        deferred: bool = False,
        on_batch_change: Callable[[str], None] = lambda _: None,
        owners: Sequence[Any] = (),
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
        self._ranks = ranks
        self._step = 0
        self._agreed_names: tuple[str, ...] = ()
        """The terms' names as all ranks have them, in one order."""
        self._counted_names: tuple[str, ...] = ()
        """The same of what `weights` counts."""

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
            failed, ceiling = self._agreed(failed, feed, len(sums.rows))
            if failed is None:
                self.micro.window_done()
                return sums
            self.undo()
            if failed != "again":
                free(self._device)
                before = max(piece.samples for piece in feed.pull_all())
                many = len(feed.pieces)
                feed.shrink(ceiling)
                recovered(self._recovery(failed, before, ceiling, many, feed))

    def _attempt(self, feed: Feed, sums: Sums) -> Literal["forward", "backward", "again"] | None:
        """One try at the window; None when it went through. What was caught is forgotten, frames and all."""
        try:
            with self._not_synchronised():
                while (piece := self._next(feed, len(sums.rows))) is not None:
                    self.micro.run(sums, piece)
        except (OwnBufferNeeded, LargerWeightSeen):
            return "again"
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or self.micro.phase == "data":
                raise
            return self.micro.phase
        return None

    def _not_synchronised(self) -> contextlib.AbstractContextManager[Any]:
        """Under DDP each rank's gradients stay its own until the border has agreed on the window."""
        if isinstance(self._model, torch.nn.parallel.DistributedDataParallel):
            context: contextlib.AbstractContextManager[Any] = self._model.no_sync()
            return context
        return contextlib.nullcontext()

    def _next(self, feed: Feed, index: int) -> Piece | None:
        self.micro.phase = "data"
        return feed.at(index)

    def _counted_ahead(self, feed: Feed) -> dict[str, float] | None:
        """D of each term over all micro-batches and ranks, where `weights` counts several terms."""
        if not feed.counts_weights:
            return None
        first = feed.at(0)
        names = {*self.denominators.names, *((first and first.weights) or ())}
        if not self._ranks.max([float(len(names) > 1)])[0]:
            return None
        counted: dict[str, float] = {}
        for piece in feed.pull_all():
            for name, weight in (piece.weights or {}).items():
                counted[name] = counted.get(name, 0.0) + check_weight(name, weight)
        if self._ranks.size == 1:
            return counted
        if self._ranks.max([float(not counted.keys() <= set(self._counted_names))])[0]:
            self._counted_names = self._ranks.names([*self._counted_names, *counted])
        sums = self._ranks.sum([counted.get(name, 0.0) for name in self._counted_names])
        return dict(zip(self._counted_names, sums, strict=True))

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

    def join(self, sums: Sums, feed: Feed) -> None:
        """Add all ranks' weights, totals, counts and gradients, under one c."""
        many = len(self.denominators.names)
        sums.widen(many)
        own = (sums.samples + feed.left_out_samples, sums.tokens + feed.left_out_tokens)
        *both, samples, tokens = self._ranks.sum([*sums.weights, *sums.totals, *own])
        sums.weights, sums.totals = both[:many], both[many:]
        # What this rank left out is added again where samples are counted, so that all come to the same.
        sums.samples = int(samples) - feed.left_out_samples
        sums.tokens = int(tokens) - feed.left_out_tokens
        c = self.denominators.c
        common = self._ranks.max([c or 0.0])
        rescale = c / common[0] if c and common[0] else 1.0
        self.denominators.agree(common[0] or None)
        gathered = [leaf.grad for leaf in self.leaves]
        self._add(gathered, rescale)
        for leaf, gradient in zip(self.leaves, gathered, strict=True):
            leaf.grad = gradient
        if self.denominators.ahead is None:
            for index in sorted(self.denominators.own):
                self._add(self.micro.own.of(index, self.leaves), rescale)

    def _add(self, gathered: list[torch.Tensor | None], rescale: float) -> None:
        """The sum over ranks, in place, after this rank's c is exchanged for the common one."""
        own = [gradient for gradient in gathered if gradient is not None]
        if own and rescale != 1.0:
            multiply_each(own, rescale)
        self._ranks.add_gradients(self.leaves, gathered)

    # ------------------------------------------------------------------------------ out of memory

    def _agreed(
        self, failed: Literal["forward", "backward", "again"] | None, feed: Feed, index: int
    ) -> tuple[Literal["forward", "backward", "again"] | None, int]:
        """What all ranks do next, and the ceiling in samples when memory ran out somewhere."""
        ceiling = 0
        if failed in ("forward", "backward"):
            ceiling = self._half(feed.pieces[index])
        if self._ranks.size == 1:
            return failed, ceiling
        renumbered = self._agree_names()
        masks = [float(term in self.denominators.own) for term in range(MAX_TERMS)]
        again_here = failed == "again" or renumbered
        out, small, again, *masks = self._ranks.max(
            [float(ceiling > 0), -float(ceiling or NO_CEILING), float(again_here), *masks]
        )
        own = {term for term, mask in enumerate(masks) if mask}
        # A rank that met a new pair of weights in its first micro-batch has its buffer; others have not.
        again = again or self._ranks.max([float(bool(own - self.denominators.own) and bool(feed.pieces))])[0]
        self.denominators.own = own
        if out:
            return failed if failed in ("forward", "backward") else "forward", int(-small)
        return ("again" if again else None), 0

    def _agree_names(self) -> bool:
        """Number the terms alike on all ranks; whether this rank's attempt had numbered them otherwise."""
        mine = self.denominators.names
        if not self._ranks.max([float(mine != self._agreed_names)])[0]:
            return False
        self._agreed_names = self._ranks.names([*self._agreed_names, *mine])
        return self.denominators.agree_names(self._agreed_names)

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
        size, many = max((row.piece.samples for row in sums.rows), default=0), len(sums.rows)
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
            with self._not_synchronised():
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


def _named(piece: Piece) -> str:
    """The first sample's number in brackets, where the loader told it."""
    return f" (sample {piece.indices[0]})" if piece.indices else ""
