"""Forward and backward of one micro-batch, and its numbers. The usual case is short: it is what N repeats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, Literal, TypeAlias

import torch

from trainer_backend.engine.batches import HandOut, Piece
from trainer_backend.engine.deferred import DeferredMicroBatch, Instant, fetch, instant_on, seconds_between
from trainer_backend.engine.denominators import Denominators, OwnBuffers
from trainer_backend.engine.norms import MicroBatchNorms, total_norm
from trainer_backend.engine.precision import LossScaler
from trainer_backend.engine.private_api import backward_from
from trainer_backend.engine.sums import MicroBatchNumbers, Sums
from trainer_backend.engine.terms import OWN_BACKWARD, check_weight, host_weight, read_terms
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import MicroBatchMeasured
from trainer_backend.tasks import Batch, LossTerm

Loss: TypeAlias = Callable[[torch.nn.Module, Batch], LossTerm | Iterable[LossTerm]]
Phase: TypeAlias = Literal["data", "forward", "backward"]
ReportMicroBatch: TypeAlias = Callable[[MicroBatchMeasured], None]


class MicroBatches:
    """Runs micro-batches one by one; gradients gather in the leaves' `.grad` and in buffers of their own.

    `report` gets each one's numbers at once or, where they stay on the device (`deferred`), one window later.
    """

    def __init__(  # noqa: PLR0913 - handed on by name
        self,
        model: torch.nn.Module,
        loss: Loss,
        *,
        device: torch.device,
        autocast: contextlib.AbstractContextManager[Any] | None,
        scaler: LossScaler | None,
        report: ReportMicroBatch | None,
        own_gradients: bool,
        deferred: bool,
        on_batch_change: Callable[[str], None],
    ) -> None:
        self.denominators = Denominators(device)
        self.own = OwnBuffers()
        self.norms = MicroBatchNorms()
        self.leaves: list[torch.nn.Parameter] = []
        """What the optimizer updates: parameters, or their fp32 masters."""
        self.phase: Phase = "data"
        """Where an error comes from, if one comes."""
        self.gradients_are_own: Callable[[], bool] = lambda: True
        """Whether `.grad` holds only what this process's micro-batches gave."""
        self.waiting: list[DeferredMicroBatch] = []
        """This window's micro-batches whose numbers are still on the device."""
        self._model = model
        self._loss = loss
        self._device = device
        self._autocast = autocast
        self._hand_out = HandOut(device, on_batch_change)
        self._scaler = scaler
        self._report = report
        self._own_gradients = own_gradients
        self._deferred = deferred
        self._step = 0
        self._reported_samples = 0
        self._first_norm = False
        self._samples_before = 0
        self._tokens_before = 0

    def start(self, step: int, *, samples_seen: int, tokens_seen: int, first_norm: bool) -> None:
        """Window `step` begins; none of its samples has been reported."""
        self._step = step
        self._first_norm = first_norm
        self._reported_samples = 0
        self._samples_before, self._tokens_before = samples_seen, tokens_seen

    def window_done(self) -> None:
        """All micro-batches of a window went through."""
        self._hand_out.window_done()

    def gradients(self) -> list[torch.Tensor]:
        """What has gathered, of those leaves that got any."""
        return [gradient for leaf in self.leaves if (gradient := leaf.grad) is not None]

    def alone(self, piece: Piece) -> MicroBatchNumbers:
        """Run one micro-batch on its own; its numbers are read at once and reported to nobody."""
        report, deferred, reported = self._report, self._deferred, self._reported_samples
        self._report, self._deferred = None, False
        sums = Sums(len(self.denominators.names))
        try:
            self.run(sums, piece)
        finally:
            self._report, self._deferred, self._reported_samples = report, deferred, reported
        return sums.rows[0]

    def run(self, sums: Sums, piece: Piece) -> None:
        """Forward and backward of one micro-batch. The usual case is kept short: it is what N repeats."""
        started = instant_on(self._device) if self._deferred else perf_counter()
        self.phase = "forward"
        returned = self._hand_out.run(piece.batch, self._forward)
        if type(returned) is list and len(returned) == 1:
            returned = returned[0]
        seed = self.denominators.usual_seed(returned)
        if seed is None:
            self._any_terms(sums, piece, read_terms(returned), started)
            return
        weight = float(returned.weight)  # type: ignore[union-attr]  # a LossTerm has a seed
        if piece.weights is not None:
            self.denominators.check_counted((weight,), piece.weights)
        self.phase = "backward"
        backward_from(returned.total, seed)  # type: ignore[union-attr]
        if self._deferred:
            self._leave(sums, piece, [weight], [returned], started)  # type: ignore[list-item]
            return
        total = returned.total.item()  # type: ignore[union-attr]
        norm = self._norm_of(weight, first=not sums.rows) if self._norms_wanted(sums) else None
        sums.weights[0] += weight
        sums.totals[0] += total
        self._count(sums, piece, [weight], [total], norm, started)

    def _forward(self, batch: Batch) -> LossTerm | Iterable[LossTerm]:
        """The loss of a batch that lies on the device, in autocast."""
        if self._autocast is None:
            return self._loss(self._model, batch)
        with self._autocast:
            return self._loss(self._model, batch)

    def _any_terms(self, sums: Sums, piece: Piece, terms: tuple[LossTerm, ...], started: Instant) -> None:
        """The rest of a micro-batch, for any terms and for the first of a run: all is checked."""
        if not sums.rows and any(leaf.grad is not None for leaf in self.leaves):
            raise GradaccError(OWN_BACKWARD)
        places = self.denominators.places(terms)
        weights = self.denominators.by_number(places, [self._weight_of(term, piece) for term in terms])
        self.denominators.accept(terms, weights, later=bool(sums.rows))
        if piece.weights is not None:
            self.denominators.check_counted(weights, piece.weights)
        self.phase = "backward"
        self._backward(terms, places, weights)
        if self._deferred:
            self._leave(sums, piece, weights, terms, started, places)
            return
        totals = self.denominators.by_number(places, [term.total.item() for term in terms])
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
        started: Instant,
    ) -> None:
        """Keep the micro-batch's numbers, and report them unless a replay ran samples already reported."""
        self._own_first(sums)
        row = self._row(sums, piece, weights, totals, norm)
        if sums.samples > self._reported_samples:
            self._reported_samples = sums.samples
            if self._report is not None:
                self._report(row.measured(self._step, perf_counter() - started))

    def _row(
        self, sums: Sums, piece: Piece, weights: list[float], totals: list[float], norm: float | None
    ) -> MicroBatchNumbers:
        if piece.tokens is None:
            piece.tokens = int(weights[0])
        sums.samples += piece.samples
        sums.tokens += piece.tokens
        row = MicroBatchNumbers(
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
        self,
        sums: Sums,
        piece: Piece,
        weights: list[float],
        terms: Sequence[LossTerm],
        started: Instant,
        places: Sequence[int] = (0,),
    ) -> None:
        """Keep a micro-batch's totals and norm where they are; they are reported one window later."""
        self._own_first(sums)
        norm, scale = None, 1.0
        if self._norms_wanted(sums):
            norm, scale = self._norm_on_device(weights[0], first=not sums.rows)
        sums.add(weights, [0.0] * len(weights))
        row = self._row(sums, piece, weights, [], norm=None)
        waiting = DeferredMicroBatch(row, [term.total.detach() for term in terms], places, norm, scale)
        waiting.began, waiting.ended = started, instant_on(self._device)
        waiting.reported = sums.samples <= self._reported_samples
        self._reported_samples = max(self._reported_samples, sums.samples)
        self.waiting.append(waiting)

    def fetch_deferred(self, sums: Sums) -> None:
        """Wait for this window's numbers, and report them."""
        waiting, self.waiting = self.waiting, []
        fetch(sums, waiting, 1.0 if self._scaler is None else self._scaler.scale.item())
        self.report(waiting, self._step)

    def report(self, waiting: Sequence[DeferredMicroBatch], step: int) -> None:
        """Report micro-batches whose numbers are on the host; a listener's error is raised after the last."""
        raised: BaseException | None = None
        for each in waiting:
            if each.reported or self._report is None:
                continue
            try:
                self._report(each.row.measured(step, seconds_between(each.began, each.ended)))
            except BaseException as error:  # noqa: BLE001 - raised below; a stop must not lose the rest
                raised = raised or error
        if raised is not None:
            raise raised

    def _backward(self, terms: tuple[LossTerm, ...], places: Sequence[int], weights: Sequence[float]) -> None:
        own = self.denominators.backward(terms, places, weights)
        for left, index in enumerate(own, start=1 - len(own)):
            number = places[index]
            seed = self.denominators.seed(number, terms[index].total.dtype)
            self.own.backward(number, terms[index], seed, self.leaves, retain_graph=left < 0)

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
        if len(self.denominators.names) > 1 or weight == 0.0:  # several terms: no single mean to speak of
            self.norms.forget()
            return None, 1.0
        norm = self.norms.take() if self.norms.active else None
        if norm is None and first and not self.norms.active and self.gradients_are_own():
            norm = total_norm(self.gradients())
        return norm, (self.denominators.c or 1.0) / weight
