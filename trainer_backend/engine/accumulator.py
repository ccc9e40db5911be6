"""One optimizer step over N micro-batches, with the gradient of the one large batch.

Read downwards:

    window    start, accumulate, close
    close     D, norm, judge, before_step, one pass  c*R/D * 1/S * clip  with the step, EMA, empty .grad

Letters: c is a power of two near the first weight, D the window's denominator, S the fp16 loss
scale. Gradients of ranks are added by the engine itself, so R, by which DDP would have divided
them, is 1 here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from time import perf_counter
from typing import Any, Literal, TypeAlias

import msgspec
import torch

from trainer_backend.engine.agreement import Agreement
from trainer_backend.engine.batches import CountSamples, CountWeights, Reader, Split
from trainer_backend.engine.deferred import DeferredWindow
from trainer_backend.engine.judge import Judge
from trainer_backend.engine.micro_batches import Loss
from trainer_backend.engine.norms import total_norm
from trainer_backend.engine.optimizer_step import OptimizerStep, clip_factor, is_usable
from trainer_backend.engine.optimizers import prepare_state, refuse_untrainable
from trainer_backend.engine.own_generators import OwnGenerator, own_generators
from trainer_backend.engine.passes import Passes
from trainer_backend.engine.precision import LossScaler, Precision, autocast
from trainer_backend.engine.private_api import multiply_each
from trainer_backend.engine.ranked_passes import RankedPasses
from trainer_backend.engine.ranks import Ranks
from trainer_backend.engine.saved_counts import SavedCounts
from trainer_backend.engine.seeding import Seeding
from trainer_backend.engine.sums import Sums
from trainer_backend.engine.update_sizes import UpdateSizes
from trainer_backend.engine.weight_copies import WeightCopies
from trainer_backend.engine.window import (
    Feed,
    NoBatchError,
    NonFiniteError,
    WindowResult,
    WindowTotals,
)
from trainer_backend.errors import GradaccError
from trainer_backend.noise_scale import NoiseSample, NoiseSums, window_noise
from trainer_backend.protocol import Event, MicroBatchMeasured, NonFiniteSeen, OutOfMemoryRecovered, Warned
from trainer_backend.tasks import Batch

NonFinite: TypeAlias = Literal["skip", "drop", "halt"]
BeforeStep: TypeAlias = Callable[[WindowTotals], None]


class Accumulator:
    """Turns batches into optimizer steps; one call of `window` is one step.

    `loss(model, batch)` gives the terms of one micro-batch on the device. Optional, as in a task:
    `weights(batch)`, `split(batch, parts)`, `count(batch)`. `max_grad_norm`, `micro_batch_ceiling`
    (samples; None: no limit known) and `non_finite` may be set between windows.

    clip_value       cut each number of the mean gradient to this size, after clipping its norm
    snapshot_step    copy parameters and state before each step of an optimizer that is not fused, so
                     that running out of memory inside it can be undone
    halve_alone      where norms are measured and a window has one micro-batch, run it as two (never the
                     first, which finds out what fits): the noise scale needs two gradients
    process_group    ranks that train this model together: their gradients are summed here (a DDP's own
                     group is found); or `ranks`, the same with a group of its own for numbers
    seed_of_step     gives a number for a window's number; its micro-batches draw by it, whatever the rank
    own_gradients    copy each window's first gradients: needed under CUDA-graph trees
    on_micro_batch   gets a `MicroBatchMeasured` for each micro-batch; samples that a replay runs
                     again are not reported twice
    on_fact          gets `OutOfMemoryRecovered` and `NonFiniteSeen`
    on_window        gets the `WindowResult`, complete

    On a CUDA device nothing waits for the device inside a window (`deferred`): losses and norms are read
    one window later, micro-batches and windows are reported then, and `flush` reports the last.
    """

    def __init__(  # noqa: PLR0913 - what a person may choose, by name
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        *,
        weights: CountWeights | None = None,
        split: Split | None = None,
        count: CountSamples | None = None,
        max_grad_norm: float | None = None,
        clip_value: float | None = None,
        precision: Precision = "fp32",
        device: torch.device | str | None = None,
        non_finite: NonFinite = "skip",
        non_finite_limit: int = 3,
        gradient_dtype: Literal["fp32", "parameter"] = "fp32",
        ema_decay: float | None = None,
        gradient_norm_every: int = 16,
        halve_alone: bool = False,
        snapshot_step: bool = False,
        own_gradients: bool = False,
        process_group: Any | None = None,  # noqa: ANN401 - torch's own type
        ranks: Ranks | None = None,
        seed_of_step: Callable[[int], int] | None = None,
        deferred: bool | None = None,
        on_micro_batch: Callable[[MicroBatchMeasured], None] | None = None,
        on_fact: Callable[[Event], None] | None = None,
        on_window: Callable[[WindowResult], None] | None = None,
    ) -> None:
        if not callable(loss):
            raise GradaccError(
                "There is no loss to train with: give loss(model, batch) that returns a LossTerm."
            )
        refuse_untrainable(model, optimizer)
        self.model = model
        self.optimizer = optimizer
        self.device = torch.device(device) if device is not None else next(model.parameters()).device
        self._max_grad_norm: float | None = None
        self.max_grad_norm = max_grad_norm
        self.micro_batch_ceiling: int | None = None
        self.non_finite: NonFinite = non_finite
        self.gradient_norm_every = gradient_norm_every
        self.halve_alone = halve_alone
        self.update_sizes = UpdateSizes()
        """Of the windows whose micro-batches' norms are measured."""
        self.step = 0
        """Windows so far, from 1; a skipped one counts."""
        self.updates = 0
        """Windows so far whose update was applied; deferred ones are assumed applied until `flush`."""
        self.samples_seen = 0
        self.tokens_seen = 0
        self._loss = loss
        self._judge = Judge(limit=non_finite_limit)
        self._reader = Reader(count=count, weights=weights, split=split)
        self._scaler = LossScaler(self.device) if precision == "fp16" else None
        self._weights = WeightCopies(model, optimizer, gradient_dtype=gradient_dtype, ema_decay=ema_decay)
        self._optimizer_step = OptimizerStep(
            optimizer, snapshot=snapshot_step, prepared=prepare_state(optimizer)
        )
        self._optimizer_step.clip_value = clip_value
        if (
            ranks is None
            and process_group is None
            and isinstance(model, torch.nn.parallel.DistributedDataParallel)
        ):
            process_group = model.process_group  # its gradients would never be summed otherwise
        self._ranks = Ranks(process_group, self.device) if ranks is None else ranks
        if ranks is None:
            self.compare_ranks()
        make_passes: Callable[..., Passes] = (
            Passes if self._ranks.size == 1 else functools.partial(RankedPasses, ranks=self._ranks)
        )
        self._passes = make_passes(
            model, optimizer, loss, device=self.device, autocast=autocast(precision, self.device),
            masters=self._weights.masters, scaler=self._scaler, report=on_micro_batch,
            seeding=None if seed_of_step is None else Seeding(self.device, seed_of_step),
            own_gradients=own_gradients,
            deferred=self.device.type != "cpu" if deferred is None else deferred,
            owners=(loss,),
            on_batch_change=lambda path: self._emit(
                Warned(code="loss-changes-batch", values={"tensor": path})
            ),
        )  # fmt: skip
        self._on_fact = on_fact
        self._on_window = on_window
        self._deferred = self.device.type == "cuda" if deferred is None else deferred
        self._pending: DeferredWindow | None = None

    # -------------------------------------------------------------------------------- the window

    def window(self, batches: Iterable[Batch], *, before_step: BeforeStep | None = None) -> WindowResult:
        """One optimizer step over all `batches` (collated, on the host; plain or `Collated`).

        All of them are the window: N is how many there are. `before_step` is called at the border,
        once the samples are known. Raises `NonFiniteError` when training must not go on, `GradaccError`
        for what a sentence explains; whatever is raised, no gradient is left, and buffers and RNGs are
        those of the window's start.
        """
        started = perf_counter()
        feed = Feed(batches, self._reader, self.micro_batch_ceiling)
        facts: list[OutOfMemoryRecovered] = []
        before = self.step, self.samples_seen, self.tokens_seen
        self._start()
        try:
            if self.halve_alone and self.step and self._passes.micro.norms.active:
                feed.halve_alone()
            sums = self._accumulate(feed, facts)
            measured = self._passes.micro.norms.active
            if measured:
                self.update_sizes.begin(self._weights.named_leaves())
            result = self._close(feed, sums, facts, before_step)
            if measured:
                self.update_sizes.end()
        except BaseException:  # also a stop in the middle: the partial window is replayed later
            self._passes.undo()
            self.step, self.samples_seen, self.tokens_seen = before
            raise
        finally:
            self._passes.micro.norms.detach()
        result.duration_s = perf_counter() - started
        if result.known:
            self._report_window(result)
            self._judge.passed(result)
        return result

    def flush(self) -> None:
        """Wait for the last window's numbers, where they are deferred, and report them.

        Raises what its micro-batches' listeners raise, and `NonFiniteError`.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        result, sums = pending.result, pending.sums
        norm, scale = pending.open()
        result.loss, result.gradient_norm = sums.loss(), norm
        result.noise = self._noise(sums, norm, result.samples)
        result.terms = dict(zip(self._passes.denominators.names, sums.means(), strict=False))
        result.loss_scale = None if self._scaler is None else scale
        if not is_usable(norm, result.loss):
            self.updates -= 1
            backed_off = self._scaler is not None and is_usable(0.0, result.loss) and scale > 1.0
            result.skipped = "loss-scale" if backed_off else "non-finite"
            if not backed_off:
                result.non_finite = self._judge.facts_of(sums, step=result.step, norm=norm)
        result.updates = self.updates
        for fact in result.non_finite:
            self._emit(fact)
        try:
            self._passes.micro.report(pending.waiting, result.step)
        finally:
            self._report_window(result)
        self._judge.passed(result)

    def _report_window(self, result: WindowResult) -> None:
        result.complete()
        if self._on_window is not None:
            self._on_window(result)

    def gradients(self, batches: Iterable[Batch]) -> tuple[dict[str, torch.Tensor], WindowResult]:
        """The window's mean gradient by parameter name, before clipping, and its numbers; no step.

        Parameters, state, buffers, RNGs and counters are as before. For proofs and for studies.
        """
        feed = Feed(batches, self._reader, self.micro_batch_ceiling)
        self._start()
        try:
            facts: list[OutOfMemoryRecovered] = []
            sums = self._accumulate(feed, facts)
            self._passes.micro.fetch_deferred(sums)
            factor = self._normaliser(sums)
            gathered = self._passes.micro.gradients()
            if gathered and factor != 1.0:
                multiply_each(gathered, factor)
            gradients = {
                name: leaf.grad for name, leaf in self._weights.named_leaves() if leaf.grad is not None
            }
            norm = total_norm(gathered).item()
            result = self._result(feed, sums, norm if factor else None, "" if factor else "empty")
            result.out_of_memory = tuple(facts)
        finally:
            self._passes.micro.norms.detach()
            self._passes.undo()
        return gradients, result

    def _start(self) -> None:
        every = self.gradient_norm_every
        self._passes.start(
            samples_seen=self.samples_seen,
            tokens_seen=self.tokens_seen,
            step=self.step + 1,
            sample_norms=every > 0 and self.step % every == 0,
            first_norm=every > 0 and self.step % max(1, every // 4) == 0,
        )

    def _accumulate(self, feed: Feed, facts: list[OutOfMemoryRecovered]) -> Sums:
        """Forward and backward of all micro-batches, and the sum over the ranks."""

        def recovered(fact: OutOfMemoryRecovered) -> None:
            self.micro_batch_ceiling = fact.micro_batch_size
            facts.append(fact)
            self._emit(fact)

        sums = self._passes.accumulate(feed, recovered)
        if not sums.micro_batches and not feed.left_out_samples and not sums.samples:
            raise NoBatchError("A window needs at least one batch, and got none.")
        return sums

    def _close(
        self, feed: Feed, sums: Sums, facts: list[OutOfMemoryRecovered], before_step: BeforeStep | None
    ) -> WindowResult:
        """Judge the gradient, then step with it, or not."""
        self.flush()
        if self._stays_on_device(sums):
            return self._close_deferred(feed, sums, facts, before_step)
        self._passes.micro.fetch_deferred(sums)
        factor = self._normaliser(sums)
        norm = total_norm(self._passes.micro.gradients()).item() * factor
        seen: tuple[NonFiniteSeen, ...] = ()
        skipped = "" if factor else "empty"
        if factor and not is_usable(norm, sums.loss()):
            skipped, seen = self._judged(feed, sums, norm)
            if skipped == "drop":
                sums = self._accumulate(feed, facts)
                self._passes.micro.fetch_deferred(sums)
                factor = self._normaliser(sums)
                norm = total_norm(self._passes.micro.gradients()).item() * factor
                skipped = "" if factor and is_usable(norm, sums.loss()) else "non-finite"
        self._count(feed, sums)
        if before_step is not None:
            before_step(self._totals(feed, sums))
        if not skipped:
            facts += self._update(norm, factor, sums)
        elif skipped != "empty":
            self._passes.snapshot.restore_buffers()
        if _has_weightless(sums):
            self._passes.snapshot.restore_non_finite_buffers()
        noise = self._noise(sums, norm, sums.samples)
        own_scale = None if self._scaler is None else self._scaler.scale.item()
        if self._scaler is not None and factor:
            self._scaler.update(torch.full((), float(skipped != ""), device=self.device))
        self._passes.clear()
        self._passes.window_over()
        result = self._result(feed, sums, norm if factor else None, skipped)
        result.out_of_memory, result.non_finite = tuple(facts), seen
        result.loss_scale = own_scale
        result.noise = noise
        return result

    def _noise(self, sums: Sums, norm: float, samples: int) -> NoiseSample | None:
        """The window's noise sample over all ranks' micro-batches, in windows whose norms are measured."""
        if self._ranks.size == 1:
            told = len(sums.rows) > 1 and sums.rows[1].norm is not None
            return window_noise(sums.noise(), norm, samples) if told else None
        if not self._passes.micro.norms.active:
            return None
        own = sums.noise()
        count, weight, squares = self._ranks.sum([own.micro_batches, own.weight, own.weighted_squares])
        summed = NoiseSums(micro_batches=int(count), weight=weight, weighted_squares=squares)
        return window_noise(summed, norm, samples)

    def _stays_on_device(self, sums: Sums) -> bool:
        """Whether this window can be closed without waiting: fused optimizers skip by themselves."""
        alone = self._ranks.size == 1 and self.non_finite == "skip"
        return (
            self._deferred
            and alone
            and self._optimizer_step.fused
            and any(weight > 0 for weight in sums.weights)
        )

    def _close_deferred(
        self, feed: Feed, sums: Sums, facts: list[OutOfMemoryRecovered], before_step: BeforeStep | None
    ) -> WindowResult:
        """As `_close`, with every decision made on the device; its numbers come one window later."""
        reference = self._normaliser(sums, with_scale=False)
        gradients = self._passes.micro.gradients()
        one = torch.ones((), dtype=torch.float64, device=self.device)
        scale = one if self._scaler is None else self._scaler.scale.double()
        factor = reference / scale
        norm = total_norm(gradients).to(self.device).double() * factor
        waiting, self._passes.micro.waiting = self._passes.micro.waiting, []
        totals = [
            total.double()
            for each in waiting
            for total, place in zip(each.totals, each.places, strict=True)
            if each.row.weights[place] > 0
        ]
        applied = torch.isfinite(norm) & torch.isfinite(torch.stack(totals).sum())
        self._count(feed, sums)
        if before_step is not None:
            before_step(self._totals(feed, sums))
        if self.max_grad_norm is not None:
            factor = factor * (self.max_grad_norm / norm).clamp(max=1.0)
        self.updates += 1
        result = self._result(feed, sums, None, "", known=False)
        result.out_of_memory = tuple(facts)
        self._pending = DeferredWindow(result, sums, waiting, norm, scale)
        if gradients:
            self._optimizer_step.step_where(applied, gradients, factor)
        self._weights.after_update(applied)
        self._passes.snapshot.restore_buffers_where(~applied)
        if _has_weightless(sums):
            self._passes.snapshot.restore_non_finite_buffers()
        if self._scaler is not None:
            self._scaler.update((~applied).float())
        self._passes.clear()
        return result

    def _judged(self, feed: Feed, sums: Sums, norm: float) -> tuple[str, tuple[NonFiniteSeen, ...]]:
        """Why this window's gradient is not applied; "drop": it is replayed without its culprits."""
        if self._scaler is not None and is_usable(0.0, sums.loss()) and self._scaler.scale.item() > 1.0:
            return "loss-scale", ()
        culprits = self._judge.culprits_in_losses(sums)
        if self._ranks.size > 1 or not culprits or self.non_finite == "drop":
            culprits = self._passes.culprits(feed)
        seen = self._judge.facts(feed, culprits, step=self.step + 1, policy=self.non_finite, norm=norm)
        seen = self._passes.seen_by_all(seen)
        for fact in seen:
            self._emit(fact)
        if self.non_finite == "halt":
            message = (
                f"{self._judge.sentence(seen)} at step {self.step + 1}; the policy is to halt. "
                "Nothing of this step was applied."
            )
            raise NonFiniteError(
                message,
                code="non-finite-halt", seen=seen, result=None,
            )  # fmt: skip
        anyone = self._ranks.max([float(bool(culprits))])[0]
        if self.non_finite == "drop" and anyone:
            feed.without({index for index, _, _ in culprits})
            return "drop", seen
        return "non-finite", seen

    def _normaliser(self, sums: Sums, *, with_scale: bool = True) -> float:
        """c/(D*S), what the gathered gradients are multiplied by; 0 when the window has no weight.

        Terms with buffers of their own are added to `.grad` here.
        """
        denominators = self._passes.denominators
        weights = sums.weights
        if not any(weight > 0 for weight in weights):
            return 0.0
        c = denominators.c or 1.0
        reference = denominators.reference or weights[0] or c
        self._passes.merge_own(reference, weights)
        scale = self._scaler.scale.item() if with_scale and self._scaler is not None else 1.0
        return c / (reference * scale)

    def _update(self, norm: float, factor: float, sums: Sums) -> list[OutOfMemoryRecovered]:
        """Clip and scale in one pass, step, round masters back, average. Gives what had to be undone."""
        gradients = self._passes.micro.gradients()
        recovered: list[OutOfMemoryRecovered] = []
        if gradients and self._optimizer_step.step(gradients, factor * clip_factor(norm, self.max_grad_norm)):
            recovered.append(self._passes.recovery_of_step(sums))
            self._emit(recovered[0])
        self._weights.after_update()
        self.updates += 1
        return recovered

    # -------------------------------------------------------------------------------- accounting

    def _count(self, feed: Feed, sums: Sums) -> None:
        """The window is consumed, applied or not."""
        self.step += 1
        self.samples_seen += sums.samples + feed.left_out_samples
        self.tokens_seen += sums.tokens + feed.left_out_tokens

    def _totals(self, feed: Feed, sums: Sums) -> WindowTotals:
        return WindowTotals(
            step=self.step,
            micro_batches=sums.micro_batches,
            samples=sums.samples + feed.left_out_samples,
            tokens=sums.tokens + feed.left_out_tokens,
            samples_seen=self.samples_seen,
            tokens_seen=self.tokens_seen,
        )

    def _result(
        self, feed: Feed, sums: Sums, norm: float | None, skipped: str, *, known: bool = True
    ) -> WindowResult:
        return WindowResult(
            step=self.step,
            updates=self.updates,
            micro_batches=sums.micro_batches,
            micro_batch_size=sums.largest,
            samples=sums.samples + feed.left_out_samples,
            tokens=sums.tokens + feed.left_out_tokens,
            samples_seen=self.samples_seen,
            tokens_seen=self.tokens_seen,
            weight=sums.weights[0] if sums.weights else 0.0,
            loss=sums.loss() if known else None,
            terms=dict(zip(self._passes.denominators.names, sums.means(), strict=False)) if known else {},
            gradient_norm=norm,
            loss_scale=self._scaler.scale.item() if known and self._scaler is not None else None,
            skipped=skipped,
            duration_s=0.0,
            data_wait_s=feed.wait_s,
            known=known,
        )

    def _emit(self, fact: Event) -> None:
        if self._on_fact is not None:
            self._on_fact(fact)

    # -------------------------------------------------------------------------- weights and state

    def compare_ranks(self) -> None:
        """Raises `GradaccError` where ranks do not begin with the same weights. Collective."""
        self._ranks.compare_weights(self._weights.named_leaves())

    @property
    def agreed(self) -> Agreement | None:
        """What all ranks told of the last window; None where there is one rank."""
        return self._passes.agreed

    def tokens_in(self, batch: Batch) -> int | None:
        """Valid tokens of a micro-batch, as its loader or the task counts them; None when nobody does."""
        return self._reader.piece(batch).tokens

    @property
    def void_norms(self) -> int:
        """Micro-batches whose gradient norm was dropped because a hook fired twice for one parameter."""
        return self._passes.micro.norms.void

    @property
    def max_grad_norm(self) -> float | None:
        """Limit of the window's gradient norm; None: no clipping. May be set between windows."""
        return self._max_grad_norm

    @max_grad_norm.setter
    def max_grad_norm(self, limit: float | None) -> None:
        if limit is not None and not (limit > 0 and math.isfinite(limit)):
            message = (
                f"max_grad_norm = {limit} would reverse or erase the gradient instead of clipping it."
                " Give a number above 0, or None."
            )
            raise GradaccError(message)
        self._max_grad_norm = limit

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the model holds the averaged weights (where `ema_decay` is set): evaluate there."""
        return self._weights.averaged()

    @property
    def ema_decay(self) -> float | None:
        """Decay per update of the weights' average; may be set between windows where there is one."""
        return None if self._weights.average is None else self._weights.average.decay

    @ema_decay.setter
    def ema_decay(self, decay: float) -> None:
        if self._weights.average is None:
            raise GradaccError("This run keeps no average of its weights, so its decay cannot be changed.")
        self._weights.average.decay = decay

    def own_generators(self) -> list[OwnGenerator]:
        """Generators of random numbers that the model and the loss hold themselves, for a checkpoint."""
        return list(own_generators(self.model, self._loss))

    def state_dict(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """For a checkpoint: tensors by name (masters, average), and plain values that JSON can hold.

        The model and the optimizer (`optimizer_state`) are saved beside it.
        """
        self.flush()
        values: dict[str, Any] = {
            "step": self.step,
            "updates": self.updates,
            "samples_seen": self.samples_seen,
            "tokens_seen": self.tokens_seen,
            "c": self._passes.denominators.c,
            "terms": list(self._passes.denominators.names),
            "own_buffers": sorted(self._passes.denominators.own),
            "micro_batch_ceiling": self.micro_batch_ceiling,
            "non_finite_in_a_row": self._judge.in_a_row,
            "seeded": self._passes.is_seeded,
            "loss_scaler": None if self._scaler is None else self._scaler.values(),
        }
        return self._weights.tensors(), values

    def load_state_dict(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Undo `state_dict`. Raises `GradaccError` when a tensor is missing or does not fit.

        Values that `state_dict` cannot have given raise KeyError or ValueError, before anything is changed.
        """
        counts = msgspec.convert(values, SavedCounts)
        with suppress(NonFiniteError):  # what was wrong with the state that is left
            self.flush()
        self._weights.load(tensors)
        self.step, self.updates = counts.step, counts.updates
        self.samples_seen, self.tokens_seen = counts.samples_seen, counts.tokens_seen
        self.micro_batch_ceiling = counts.micro_batch_ceiling
        self._passes.denominators.restore(counts.terms, counts.c, counts.own_buffers)
        self._judge.in_a_row = counts.non_finite_in_a_row
        self._passes.restored()
        if not values.get("seeded") and self._ranks.size == 1:
            self._passes.keep_generators()  # an older version's run goes on as it would have
        if self._scaler is not None and values["loss_scaler"] is not None:
            self._scaler.load(values["loss_scaler"])


def _has_weightless(sums: Sums) -> bool:
    """Whether some micro-batch had no weight at all: what it held, NaN for example, must not matter."""
    return any(not any(row.weights) for row in sums.rows)
