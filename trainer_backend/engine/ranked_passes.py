"""A window's micro-batches on several ranks that hold the same weights: each runs its own, all agree.

Every attempt at a window is the same sequence of collectives on all ranks, whatever happened to one of
them (out of memory, an error in the user's code, a stop, no micro-batch at all):

    micro-batches   of this rank; in the last one's backward the buckets start
    buckets         the rest of them; now each `.grad` is the sum over the ranks
    agreement       one vector: replay in smaller micro-batches, give up, or go on with the common sums
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from time import perf_counter
from typing import Any

import msgspec
import torch

from trainer_backend.engine.agreement import OUTCOMES, Agreement, Outcome, Report, exchange
from trainer_backend.engine.buckets import Buckets, add_up
from trainer_backend.engine.memory import free
from trainer_backend.engine.passes import NonFiniteMicroBatch, Passes, counted_weights
from trainer_backend.engine.private_api import multiply_each
from trainer_backend.engine.rank_buffers import RankBuffers
from trainer_backend.engine.ranks import Ranks
from trainer_backend.engine.sums import Sums
from trainer_backend.engine.terms import power_of_two_near
from trainer_backend.engine.window import Feed
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import NonFiniteSeen, OutOfMemoryRecovered


class RankedPasses(Passes):
    """`Passes` over several replicated ranks."""

    def __init__(self, *args: Any, ranks: Ranks, **options: Any) -> None:  # noqa: ANN401 - those of Passes
        super().__init__(*args, **options)
        self._ranks = ranks
        self._buckets = Buckets(ranks)
        self._buffers = RankBuffers(ranks, self.snapshot)
        self._common_c: float | None = None
        self._next_c = 0.0
        self._times_s = (0.0, 0.0)
        self.agreed: Agreement | None = None
        """What all told in the last attempt at a window."""
        self._raised: BaseException | None = None
        """What ended this rank's attempt, until the others have heard of it."""
        self._agreed_names: tuple[str, ...] = ()
        """The terms' names as all ranks have them, in one order."""
        self._counted_names: tuple[str, ...] | None = None
        """The same of what `weights` counts; None before the first window."""
        self.micro.gradients_are_own = lambda: not self._buckets.has_started

    def start(self, **options: Any) -> None:  # noqa: ANN401 - those of Passes
        """As alone."""
        super().start(**options)
        self._buffers.begin()

    def restored(self) -> None:
        """c is common, since all ranks read the same checkpoint."""
        self._common_c = self.denominators.c

    def _seed(self, index: int) -> None:
        super()._seed(index * self._ranks.size + self._ranks.rank)

    # -------------------------------------------------------------------------------- the passes

    def accumulate(self, feed: Feed, recovered: Callable[[OutOfMemoryRecovered], None]) -> Sums:
        """As alone, over all ranks: gives their common sums, or raises on all of them. Collective."""
        replay = False
        while True:
            sums = Sums(len(self.denominators.names))
            self.micro.waiting = []
            outcome = self._attempted(feed, sums, replay=replay)
            replay = True
            agreed = self._told(outcome, feed, sums)
            if agreed.is_any("raised"):
                raised, self._raised = self._raised, None
                self._ranks.raise_one(raised)
            if not self._starts_again(agreed, feed, recovered):
                self._join(agreed, sums, feed)
                return sums

    def _attempted(self, feed: Feed, sums: Sums, *, replay: bool) -> Outcome:
        """One try: own micro-batches, then the sum of all gradients. Raises only where ranks are lost."""
        started = perf_counter()
        self._buckets.begin(self.leaves)
        counted, self._raised = self._counting(feed)
        scale = None if self._scaler is None else self._scaler.scale
        self.denominators.begin(counted, scale, replay=replay, c=self._common_c)
        outcome: Outcome = "raised" if self._raised is not None else self._tried(feed, sums)
        computed = perf_counter()
        if outcome in ("forward", "backward"):
            free(self._device)  # the buckets need room
        if self._common_c is None:
            self._find_common_c()
        self._buckets.finish()
        self._times_s = (computed - started, perf_counter() - computed)
        return "again" if outcome == "done" and self._buckets.is_spoiled else outcome

    def _tried(self, feed: Feed, sums: Sums) -> Outcome:
        """Own micro-batches; what they raise is kept until the others know of it."""
        try:
            outcome: Outcome = self._attempt(feed, sums) or "done"
            self.micro.fetch_deferred(sums)
        except BaseException as error:
            if self._ranks.are_lost:
                self._buckets.forget()
                raise
            self._raised = error
            return "raised"
        return outcome

    def _run_all(self, feed: Feed, sums: Sums) -> None:
        with self._not_synchronised():
            while (piece := self._next(feed, len(sums.rows))) is not None:
                index = len(sums.rows)
                self._seed(index)
                if feed.is_last(index) and self._may_overlap():
                    self._buckets.arm([self._half_of.get(leaf, leaf) for leaf in self.leaves])
                self.micro.run(sums, piece)
        self._buckets.disarm()

    def _may_overlap(self) -> bool:
        """Whether what gathers in `.grad` can be summed over the ranks before the border."""
        return self._common_c is not None and not (self.denominators.own and self.denominators.ahead is None)

    def _not_synchronised(self) -> contextlib.AbstractContextManager[Any]:
        """Under DDP each rank's gradients stay its own: they are summed here."""
        if isinstance(self._model, torch.nn.parallel.DistributedDataParallel):
            context: contextlib.AbstractContextManager[Any] = self._model.no_sync()
            return context
        return contextlib.nullcontext()

    def _find_common_c(self) -> None:
        """In the first window each rank has chosen a c of its own: rescale to the largest. Collective.

        All are powers of two, so nothing is rounded.
        """
        c = self.denominators.c
        self._common_c = self._ranks.max([c or 0.0])[0] or None
        if self._common_c is None:
            return
        if c is not None and c != self._common_c:
            own = [*self.micro.gradients(), *self.micro.own.gradients()]
            if own:
                multiply_each(own, c / self._common_c)
        self.denominators.agree(self._common_c)

    def _counting(self, feed: Feed) -> tuple[dict[str, float] | None, BaseException | None]:
        """D of each term over all ranks, where `weights` counts several terms; and what that raised here.

        Collective in the first window, and in all where there are several terms.
        """
        if not feed.counts_weights:
            return None, None
        if self._counted_names is not None and len(self._counted_names) < 2:
            return None, None  # a term that comes later is met by its own buffer
        counted: dict[str, float] = {}
        raised: BaseException | None = None
        try:
            counted = counted_weights(feed)
        except BaseException as error:  # noqa: BLE001 - raised once the others know
            raised = error
        known = self._counted_names or ()
        if self._ranks.max([float(self._counted_names is None or not counted.keys() <= set(known))])[0]:
            self._counted_names = known = self._ranks.names([*known, *counted])
        if len(known) < 2:
            return None, raised
        sums = self._ranks.sum([counted.get(name, 0.0) for name in known])
        return dict(zip(known, sums, strict=True)), raised

    # --------------------------------------------------------------------------- what all agree on

    def _told(self, outcome: Outcome, feed: Feed, sums: Sums) -> Agreement:
        """Tell the others of this attempt, and hear of theirs. Collective."""
        ceiling = 0
        if outcome in ("forward", "backward"):
            try:
                ceiling = self._half(feed.pieces[len(sums.rows)])
            except GradaccError as error:  # a single sample
                self._raised, outcome = error, "raised"
        first = next((weight for row in sums.rows for weight in row.weights if weight > 0), 0.0)
        report = Report(
            outcome=OUTCOMES.index(outcome),
            ceiling=ceiling,
            least_c=self.denominators.least_c if outcome == "again" else 0.0,
            next_c=power_of_two_near(first) if first else 0.0,
            has_new_names=self.denominators.names != self._agreed_names,
            own_terms=sum(1 << term for term in self.denominators.own),
            micro_batches=len(sums.rows),
            largest=max((row.piece.samples for row in sums.rows), default=0),
            computed_s=self._times_s[0],
            waited_s=self._times_s[1],
            new_buffers=self._buffers.count_new(),
        )
        self.agreed = exchange(
            self._ranks, report, sums.weights, sums.totals,
            sums.samples + feed.left_out_samples, sums.tokens + feed.left_out_tokens,
        )  # fmt: skip
        return self.agreed

    def _starts_again(
        self, agreed: Agreement, feed: Feed, recovered: Callable[[OutOfMemoryRecovered], None]
    ) -> bool:
        """Undo this attempt on all ranks where one asks for it."""
        renumbered = False
        if any(report.has_new_names for report in agreed.reports):
            self._agreed_names = self._ranks.names([*self._agreed_names, *self.denominators.names])
            renumbered = self.denominators.agree_names(self._agreed_names)
            # Bits of own terms, weights and totals are by each rank's old numbers: one more attempt.
            renumbered = bool(self._ranks.max([float(renumbered)])[0])
        if not renumbered:
            renumbered = agreed.misses_own_terms
            self.denominators.own = agreed.own_terms
        if agreed.is_any("forward", "backward"):
            self._shrink(agreed, feed, recovered)
            return True
        if renumbered or agreed.is_any("again"):
            least = max(report.least_c for report in agreed.reports)
            self._common_c = max(self._common_c or 0.0, least) or None
            self.undo()
            return True
        return False

    def _shrink(
        self, agreed: Agreement, feed: Feed, recovered: Callable[[OutOfMemoryRecovered], None]
    ) -> None:
        """Smaller micro-batches on all ranks, as small as the tightest needs them. Collective."""
        self.undo()
        free(self._device)
        raised: BaseException | None = None
        before, many = 0, 0
        try:
            before = max((piece.samples for piece in feed.pull_all()), default=0)
            many = len(feed.pieces)
            feed.shrink(agreed.ceiling)
        except BaseException as error:  # noqa: BLE001 - the user's loader, or split
            raised = error
        self._ranks.settle(raised)
        rank = next(rank for rank, report in enumerate(agreed.reports) if report.ceiling)
        largest, most, pieces = (int(most) for most in self._ranks.max([before, many, len(feed.pieces)]))
        samples = self._ranks.sum([sum(piece.samples for piece in feed.pieces)])[0]
        phase = OUTCOMES[agreed.reports[rank].outcome]
        recovered(
            OutOfMemoryRecovered(
                step=self._step,
                phase="backward" if phase == "backward" else "forward",
                micro_batch_size_before=largest,
                micro_batch_size=agreed.ceiling,
                accumulation_steps_before=most,
                accumulation_steps=pieces,
                effective_batch=int(samples),
                device=f"{self._device} (rank {rank})",
            )
        )

    def _join(self, agreed: Agreement, sums: Sums, feed: Feed) -> None:
        """Take the common sums, and sum what lies in buffers of its own. Collective."""
        many = len(self.denominators.names)
        sums.widen(many)
        sums.weights, sums.totals = agreed.weights[:many], agreed.totals[:many]
        # What this rank left out is added again where samples are counted, so that all come to the same.
        sums.samples = agreed.samples - feed.left_out_samples
        sums.tokens = agreed.tokens - feed.left_out_tokens
        sums.joined = (
            sum(report.micro_batches for report in agreed.reports),
            max(report.largest for report in agreed.reports),
        )
        if self.denominators.ahead is None:
            for index in sorted(self.denominators.own):
                buffers = self.micro.own.of(index, self.leaves)
                buffers[:] = add_up(self._ranks, self.leaves, buffers)
        self._buckets.settle_order()
        if any(report.new_buffers for report in agreed.reports):
            self._buffers.agree()
        self._next_c = agreed.next_c
        self.micro.window_done()

    def window_over(self) -> None:
        """The window was consumed: its buffers are averaged, and c is the next one's. Collective."""
        self._buffers.average()
        if self._next_c:
            self._common_c = self._next_c

    # -------------------------------------------------------------------------------- forensics

    def culprits(self, feed: Feed) -> list[NonFiniteMicroBatch]:
        """As alone, of this rank's micro-batches. Collective."""
        found: list[NonFiniteMicroBatch] = []
        raised: BaseException | None = None
        try:
            with self._not_synchronised():
                found = super().culprits(feed)
        except BaseException as error:  # noqa: BLE001 - raised once the others know
            raised = error
        self._ranks.settle(raised)
        return found

    def seen_by_all(self, seen: tuple[NonFiniteSeen, ...]) -> tuple[NonFiniteSeen, ...]:
        """What all ranks found, in the window's order. Collective."""
        told = [(fact, rank) for rank, facts in enumerate(self._ranks.gather(seen)) for fact in facts]
        named = [(_numbered(fact, self._ranks.size, rank)) for fact, rank in told if fact.index is not None]
        return tuple(sorted(named, key=lambda fact: fact.index or 0)) or seen[:1]


def _numbered(fact: NonFiniteSeen, size: int, rank: int) -> NonFiniteSeen:
    """The fact with the micro-batch's place in the window over all ranks."""
    assert fact.index is not None
    return msgspec.structs.replace(fact, index=fact.index * size + rank)
