"""Forward and backward of a window's micro-batches, replayed in smaller ones when memory runs out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, Literal, TypeAlias

import torch

from trainer_backend.engine.batches import Piece, to_device
from trainer_backend.engine.denominators import MAX_TERMS, Denominators, OwnBufferNeeded, OwnBuffers
from trainer_backend.engine.late import Mark, Waiting, bring_home, mark, seconds_between
from trainer_backend.engine.memory import free, is_out_of_memory
from trainer_backend.engine.norms import MicroBatchNorms, total_norm
from trainer_backend.engine.precision import LossScaler, Masters
from trainer_backend.engine.ranks import Ranks
from trainer_backend.engine.snapshot import Snapshot
from trainer_backend.engine.sums import Row, Sums
from trainer_backend.engine.terms import check_weight, host_weight, read_terms
from trainer_backend.engine.window import Feed
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import MicroBatchMeasured, OutOfMemoryRecovered
from trainer_backend.tasks import Batch, LossTerm

Loss: TypeAlias = Callable[[torch.nn.Module, Batch], LossTerm | Iterable[LossTerm]]
Phase: TypeAlias = Literal["data", "forward", "backward"]
_run_backward = torch.autograd.Variable._execution_engine.run_backward
"""What `Tensor.backward` calls after checks of the seed's shape that cost 15 µs a micro-batch."""

Culprit: TypeAlias = tuple[int, Literal["loss", "gradient"], float]
"""Micro-batch in the window, what was not finite, and its value."""


class Passes:
    """Runs micro-batches; what they add up to lies in the leaves' `.grad`, in buffers and in `Sums`."""

    def __init__(
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
        tell: Callable[[MicroBatchMeasured], None] | None,
        own_gradients: bool = False,
        late: bool = False,
    ) -> None:
        self.denominators = Denominators(device)
        self.own = OwnBuffers()
        self.norms = MicroBatchNorms()
        self.snapshot = Snapshot(model, device)
        self.leaves: list[torch.nn.Parameter] = []
        """What the optimizer updates: parameters, or their fp32 masters."""
        self._model = model
        self._optimizer = optimizer
        self._loss = loss
        self._device = device
        self._on_host = device.type == "cpu"
        self._autocast = autocast
        self._half_of = {} if masters is None else {master: half for half, master in masters.of.items()}
        self._scaler = scaler
        self._ranks = ranks
        self._tell = tell
        self._parameters = list(model.parameters())
        self._own_gradients = own_gradients
        self._late = late
        self.waiting: list[Waiting] = []
        """This window's micro-batches whose numbers are still on the device."""
        self._plain = self._on_host and autocast is None
        self._step = 0
        self._phase: Phase = "data"
        self._told_samples = 0
        self._first_norm = False
        self._samples_before = 0
        self._tokens_before = 0

    # ------------------------------------------------------------------ a window's start and end

    def start(
        self, *, step: int, samples_seen: int, tokens_seen: int, sample_norms: bool, first_norm: bool
    ) -> None:
        """Window `step` begins: empty gradients, remember buffers and RNGs."""
        self.leaves = [leaf for group in self._optimizer.param_groups for leaf in group["params"]]
        self.clear()
        self._step = step
        self._first_norm = first_norm
        self.snapshot.take()
        self._told_samples = 0
        self._samples_before, self._tokens_before = samples_seen, tokens_seen
        if sample_norms:
            self.norms.attach([self._half_of.get(leaf, leaf) for leaf in self.leaves])

    def clear(self) -> None:
        """No gradient is left anywhere: of the optimizer's parameters, or of others in the model."""
        for leaf in self.leaves:
            leaf.grad = None
        for parameter in self._parameters:
            parameter.grad = None
        self.own.clear()

    def undo(self) -> None:
        """Back to the window's start, as if no micro-batch had run."""
        self.clear()
        self.norms.forget()
        self.snapshot.restore()

    def gradients(self) -> list[torch.Tensor]:
        """What has gathered, of those leaves that got any."""
        return [gradient for leaf in self.leaves if (gradient := leaf.grad) is not None]

    # -------------------------------------------------------------------------------- the passes

    def accumulate(self, feed: Feed, recovered: Callable[[OutOfMemoryRecovered], None]) -> Sums:
        """All micro-batches of `feed`, each sample once; smaller micro-batches when memory runs out."""
        while True:
            self.denominators.begin(
                self._counted_ahead(feed), None if self._scaler is None else self._scaler.scale
            )
            sums = Sums(len(self.denominators.names))
            self.waiting = []
            failed = self._attempt(feed, sums)
            failed, ceiling = self._agreed(failed, feed, len(sums.rows))
            if failed is None:
                return sums
            self.undo()
            if failed != "own buffer":
                free(self._device)
                before = max(piece.samples for piece in feed.pull_all())
                many = len(feed.pieces)
                feed.shrink(ceiling)
                recovered(self._recovery(failed, before, ceiling, many, feed))

    def _attempt(self, feed: Feed, sums: Sums) -> Literal["forward", "backward", "own buffer"] | None:
        """One try at the window; None when it went through. What was caught is forgotten, frames and all."""
        try:
            with self._not_synchronised():
                while (piece := self._next(feed, len(sums.rows))) is not None:
                    self._micro_batch(sums, piece)
        except OwnBufferNeeded:
            return "own buffer"
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or self._phase == "data":
                raise
            return self._phase
        return None

    def _not_synchronised(self) -> contextlib.AbstractContextManager[Any]:
        """Under DDP each rank's gradients stay its own until the border has agreed on the window."""
        if isinstance(self._model, torch.nn.parallel.DistributedDataParallel):
            context: contextlib.AbstractContextManager[Any] = self._model.no_sync()  # type: ignore[no-untyped-call]
            return context
        return contextlib.nullcontext()

    def _next(self, feed: Feed, index: int) -> Piece | None:
        self._phase = "data"
        return feed.at(index)

    def _counted_ahead(self, feed: Feed) -> list[float] | None:
        """D of each term over all micro-batches and ranks, where `weights` counts several terms."""
        if not feed.counts_weights:
            return None
        names = self.denominators.names
        first = feed.at(0)
        if first is not None and first.weights is not None:
            names = names or tuple(first.weights)
            several = len(first.weights) > 1 and all(name in first.weights for name in names)
        else:
            several = False
        sums = [0.0] * MAX_TERMS
        if several:
            for piece in feed.pull_all():
                for index, name in enumerate(names):
                    sums[index] += check_weight(name, (piece.weights or {}).get(name, 0.0))
        if self._ranks.size > 1:
            *sums, anyone = self._ranks.sum([*sums, float(several)])
            several = anyone > 0
        return sums if several else None

    def _micro_batch(self, sums: Sums, piece: Piece) -> None:
        """Forward and backward of one micro-batch. The usual case is kept short: it is what N repeats."""
        started = mark(self._device) if self._late else perf_counter()
        self._phase = "forward"
        returned = self._loss(self._model, piece.batch) if self._plain else self._forward(piece)
        if type(returned) is list and len(returned) == 1:
            returned = returned[0]
        seed = self.denominators.usual_seed(returned)
        if seed is None:
            self._any_terms(sums, piece, read_terms(returned), started)
            return
        weight = float(returned.weight)  # type: ignore[union-attr]  # a LossTerm has a seed
        if piece.weights is not None:
            self.denominators.check_counted((weight,), piece.weights)
        self._phase = "backward"
        _run_backward(
            (returned.total,),  # type: ignore[union-attr]
            (seed,),
            False,
            False,
            (),
            allow_unreachable=True,
            accumulate_grad=True,
        )
        if self._late:
            self._leave(sums, piece, [weight], [returned], started)  # type: ignore[list-item]
            return
        total = returned.total.item()  # type: ignore[union-attr]
        norm = self._norm_of(weight, first=not sums.rows) if self._norms_wanted(sums) else None
        sums.weights[0] += weight
        sums.totals[0] += total
        self._count(sums, piece, [weight], [total], norm, started)

    def _forward(self, piece: Piece) -> LossTerm | Iterable[LossTerm]:
        """The loss, on the device and in autocast."""
        batch = piece.batch if self._on_host else to_device(piece.batch, self._device)
        with self._autocast or contextlib.nullcontext():
            return self._loss(self._model, batch)

    def _any_terms(self, sums: Sums, piece: Piece, terms: tuple[LossTerm, ...], started: Mark) -> None:
        """The rest of a micro-batch, for any terms and for the first of a run: all is checked."""
        weights = [self._weight_of(term, piece) for term in terms]
        self.denominators.accept(terms, weights)
        if piece.weights is not None:
            self.denominators.check_counted(weights, piece.weights)
        self._phase = "backward"
        self._backward(terms, weights)
        if self._late:
            self._leave(sums, piece, weights, terms, started)
            return
        totals = [term.total.item() for term in terms]
        norm = self._norm_of(weights[0], first=not sums.rows) if self._norms_wanted(sums) else None
        sums.add(weights, totals)
        self._count(sums, piece, weights, totals, norm, started)

    def _own_first(self, sums: Sums) -> None:
        """A recorded graph writes over the gradients it gave autograd: keep copies of the window's first."""
        if self._own_gradients and not sums.rows:
            for leaf in self.leaves:
                leaf.grad = None if leaf.grad is None else leaf.grad.clone()

    def _norms_wanted(self, sums: Sums) -> bool:
        return self.norms.active or (self._first_norm and not sums.rows)

    def _count(
        self,
        sums: Sums,
        piece: Piece,
        weights: list[float],
        totals: list[float],
        norm: float | None,
        started: Mark,
    ) -> None:
        """Keep the micro-batch's numbers, and tell them unless a replay has run its samples again."""
        self._own_first(sums)
        row = self._row(sums, piece, weights, totals, norm)
        if sums.samples > self._told_samples:
            self._told_samples = sums.samples
            if self._tell is not None:
                self._tell(row.measured(self._step, perf_counter() - started))

    def _row(
        self, sums: Sums, piece: Piece, weights: list[float], totals: list[float], norm: float | None
    ) -> Row:
        if piece.tokens is None:
            piece.tokens = int(weights[0])
        sums.samples += piece.samples
        sums.tokens += piece.tokens
        row = Row(
            len(sums.rows), piece, weights, totals, norm,
            self._samples_before + sums.samples, self._tokens_before + sums.tokens,
        )  # fmt: skip
        sums.rows.append(row)
        return row

    # ---------------------------------------------------------------- numbers left on the device

    @staticmethod
    def _weight_of(term: LossTerm, piece: Piece) -> float:
        """On the host; what was counted from the host's batch saves waiting for the device."""
        on_device = isinstance(term.weight, torch.Tensor) and term.weight.device.type != "cpu"
        if on_device and piece.weights is not None and term.name in piece.weights:
            return check_weight(term.name, piece.weights[term.name])
        return host_weight(term)

    def _leave(
        self, sums: Sums, piece: Piece, weights: list[float], terms: Sequence[LossTerm], started: Mark
    ) -> None:
        """Keep a micro-batch's totals and norm where they are; they are told one window later."""
        self._own_first(sums)
        norm, scale = None, 1.0
        if self._norms_wanted(sums):
            norm, scale = self._norm_on_device(weights[0], first=not sums.rows)
        sums.add(weights, [0.0] * len(weights))
        row = self._row(sums, piece, weights, [], norm=None)
        waiting = Waiting(row, [term.total.detach() for term in terms], norm, scale)
        waiting.began, waiting.ended = started, mark(self._device)
        waiting.told = sums.samples <= self._told_samples
        self._told_samples = max(self._told_samples, sums.samples)
        self.waiting.append(waiting)

    def come_home(self, sums: Sums) -> None:
        """Wait for this window's numbers, and tell them."""
        waiting, self.waiting = self.waiting, []
        bring_home(sums, waiting, 1.0 if self._scaler is None else self._scaler.scale.item())
        self.tell(waiting, self._step)

    def tell(self, waiting: Sequence[Waiting], step: int) -> None:
        """Tell micro-batches that have come home; all of them, before what a listener raised is raised."""
        raised: BaseException | None = None
        for each in waiting:
            if each.told or self._tell is None:
                continue
            try:
                self._tell(each.row.measured(step, seconds_between(each.began, each.ended)))
            except BaseException as error:  # noqa: BLE001 - raised below; a stop must not lose the rest
                raised = raised or error
        if raised is not None:
            raise raised

    def _backward(self, terms: tuple[LossTerm, ...], weights: Sequence[float]) -> None:
        own = self.denominators.backward(terms, weights)
        for left, index in enumerate(own, start=1 - len(own)):
            seed = self.denominators.seed(index, terms[index].total.dtype)
            self.own.backward(index, terms[index], seed, self.leaves, retain_graph=left < 0)

    def _norm_of(self, weight: float, *, first: bool) -> float | None:
        """Norm of the gradient of this micro-batch's own mean; None when not sampled or without weight."""
        norm, scale = self._norm_on_device(weight, first=first)
        if norm is None:
            return None
        return norm.item() * scale / (1.0 if self._scaler is None else self._scaler.scale.item())

    def _norm_on_device(self, weight: float, *, first: bool) -> tuple[torch.Tensor | None, float]:
        """The same where it is, and what it is to be multiplied by (over the loss scale).

        The first micro-batch's is free: `.grad` holds it alone.
        """
        if self.denominators.own or weight == 0.0:
            self.norms.forget()
            return None, 1.0
        norm = self.norms.take() if self.norms.active else None
        if norm is None and first and not self.norms.active:
            norm = total_norm(self.gradients())
        return norm, (self.denominators.c or 1.0) / weight

    # ------------------------------------------------------------------------- the window's border

    def merge_own(self, reference: float, weights: Sequence[float]) -> None:
        """Add the terms with buffers of their own to `.grad`, each by D_ref/D_t."""
        for index in sorted(self.denominators.own):
            weight = weights[index] if index < len(weights) else 0.0
            if weight <= 0:
                continue
            for leaf, buffer in zip(self.leaves, self.own.of(index, self.leaves), strict=True):
                if buffer is None:
                    continue
                buffer.mul_(reference / weight)
                leaf.grad = buffer if leaf.grad is None else leaf.grad.add_(buffer)
        self.own.clear()

    def join(self, sums: Sums) -> None:
        """Add all ranks' weights, totals and gradients, under one c."""
        many = len(sums.weights)
        pad = [0.0] * (MAX_TERMS - many)
        both = [*sums.weights, *pad, *sums.totals, *pad]
        both = self._ranks.sum(both)
        c = self.denominators.c
        common = self._ranks.max([c or 0.0, float(many)])
        many = int(common[1])
        sums.weights, sums.totals = list(both[:many]), list(both[MAX_TERMS : MAX_TERMS + many])
        rescale = c / common[0] if c and common[0] else 1.0
        self.denominators.agree(common[0] or None)
        gathered = [leaf.grad for leaf in self.leaves]
        self._add(gathered, rescale)
        for leaf, gradient in zip(self.leaves, gathered, strict=True):
            leaf.grad = gradient
        for index in sorted(self.denominators.own):
            self._add(self.own.of(index, self.leaves), rescale)

    def _add(self, gathered: list[torch.Tensor | None], rescale: float) -> None:
        """The sum over ranks, in place, after this rank's c is exchanged for the common one."""
        own = [gradient for gradient in gathered if gradient is not None]
        if own and rescale != 1.0:
            torch._foreach_mul_(own, rescale)
        self._ranks.add_gradients(self.leaves, gathered)

    # ------------------------------------------------------------------------------ out of memory

    def _agreed(
        self, failed: Literal["forward", "backward", "own buffer"] | None, feed: Feed, index: int
    ) -> tuple[Literal["forward", "backward", "own buffer"] | None, int]:
        """What all ranks do next, and the ceiling in samples when memory ran out somewhere."""
        ceiling = 0
        if failed in ("forward", "backward"):
            ceiling = self._half(feed.pieces[index])
        if self._ranks.size == 1:
            return failed, ceiling
        masks = [float(term in self.denominators.own) for term in range(MAX_TERMS)]
        out, small, again, *masks = self._ranks.max(
            [float(ceiling > 0), -float(ceiling or 2**52), float(failed == "own buffer"), *masks]
        )
        self.denominators.own = {term for term, mask in enumerate(masks) if mask}
        if out:
            return failed if failed in ("forward", "backward") else "forward", int(-small)
        return ("own buffer" if again else None), 0

    def _half(self, piece: Piece) -> int:
        """Samples a micro-batch may have after `piece` did not fit."""
        if piece.samples <= 1:
            raise GradaccError(
                f"Out of memory on {self._device} with a single sample in the micro-batch"
                f"{_named(piece)}: it cannot be made smaller. Use shorter samples, activation "
                "checkpointing, bf16, or a smaller model."
            )
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

    def culprits(self, feed: Feed) -> list[Culprit]:
        """Which micro-batches are not finite: each is run again alone. Leaves the window undone."""
        self.undo()
        found: list[Culprit] = []
        told, self._told_samples = self._told_samples, 2**62
        late, self._late = self._late, False
        for index, piece in enumerate(feed.pull_all()):
            sums = Sums(len(self.denominators.names))
            with self._not_synchronised():
                self._micro_batch(sums, piece)
            row = sums.rows[0]
            norm = total_norm(self.gradients()).item()
            if not row.is_finite():
                found.append((index, "loss", row.loss() or math.nan))
            elif not math.isfinite(norm):
                found.append((index, "gradient", norm))
            self.clear()
        self._told_samples, self._late = told, late
        self.undo()
        return found


def _named(piece: Piece) -> str:
    """ " (sample 7)" where the loader told."""
    return f" (sample {piece.indices[0]})" if piece.indices else ""
