"""Which denominator each loss term has, and the number its backward starts with.

The window's gradient is  sum_t  sum_i total_ti / D_t.  All terms share `.grad`, which the border
multiplies by  c*R/D_ref.  So a backward starts with

    1/c            main term, and every term whose weights are the main one's: D_ref is D of the main term
    D_ref/(c*D_t)  another denominator that was counted ahead (`weights`), before the first backward
    1/c            another denominator that is not known yet: into a buffer of its own, added at the border
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from trainer_backend.engine.terms import check_graph, check_weight, power_of_two_near
from trainer_backend.errors import GradaccError
from trainer_backend.tasks import LossTerm

MAX_TERMS = 16
"""So that ranks exchange vectors of one length, whatever a rank has seen."""

_TOLERANCE = 1e-6
FAR_ABOVE = 16.0
"""In fp16 a weight so many times c leaves too little room below the largest number."""


class OwnBufferNeeded(Exception):  # noqa: N818 - no error: the window starts again
    """A term's weights are not the main term's, and were not counted ahead."""


class LargerWeightSeen(Exception):  # noqa: N818 - no error: the window starts again
    """In fp16 a weight so far above c would push this micro-batch's gradient out of range."""


class Denominators:
    """The run's terms by name, the window's c, and which terms gather in a buffer of their own.

    A term has a number: the place of its name among those that the run has seen so far. The first is
    the main term. A micro-batch may bring its terms in any order, and leave out those that do not apply.
    """

    def __init__(self, device: torch.device) -> None:
        self.names: tuple[str, ...] = ()
        self.c: float | None = None
        self.own: set[int] = set()
        """Terms whose weights were seen to differ from the main term's: a hint kept over windows."""
        self.ahead: Mapping[str, float] | None = None
        """D of each term, over all ranks, where it was counted before the window's first backward."""
        self._device = device
        self._seeds: dict[tuple[float, torch.dtype], torch.Tensor] = {}
        self._loss_scale: torch.Tensor | None = None
        self._usual: tuple[str, torch.dtype, torch.Tensor] | None = None
        """Name, dtype and seed of the run's only term, once it was seen and nothing else can come."""
        self._chooses_c = True
        """Whether the window's first weight is still to come."""
        self._least_c = 0.0
        """What a replay of this window starts with, after a weight that was too large."""

    def restore(self, names: Sequence[str], c: float | None, own: Sequence[int]) -> None:
        """Take up names, c and buffers from a checkpoint."""
        self.names, self.c, self.own = tuple(names), c, set(own)
        self._usual = None

    def agree(self, c: float | None) -> None:
        """The ranks' common c. Both are powers of two, so what has gathered was scaled exactly."""
        if c != self.c:
            self.c = c
            self._usual = None

    @property
    def least_c(self) -> float:
        """What c must be at least in this window, after a weight that was too large for fp16; else 0."""
        return self._least_c

    def agree_names(self, names: Sequence[str]) -> bool:
        """The ranks' common names; whether this rank had another order, so that its window starts again."""
        same = tuple(names[: len(self.names)]) == self.names
        if not same:
            self.own = {names.index(self.names[number]) for number in self.own}
        if tuple(names) != self.names:
            self.names, self._usual = tuple(names), None
        return not same

    def begin(
        self,
        ahead: Mapping[str, float] | None,
        loss_scale: torch.Tensor | None,
        *,
        replay: bool = False,
        c: float | None = None,
    ) -> None:
        """A window (or its replay) starts. `loss_scale`: S, 0-d on the device; None is 1.

        `c`: what all ranks have agreed on; None: by the window's first weight.
        """
        if ahead is not None or self.ahead is not None:
            self._usual = None
        self.ahead = ahead
        self._loss_scale = loss_scale
        self._chooses_c = True
        self._least_c = self._least_c if replay else 0.0
        if c is not None:
            self._chooses_c = False
            self.agree(c)
        if loss_scale is not None:
            self._seeds.clear()
            self._usual = None

    def usual_seed(self, returned: object) -> torch.Tensor | None:
        """The seed when `returned` is the one term that all micro-batches had; None: check everything."""
        usual = self._usual
        if usual is None or type(returned) is not LossTerm or returned.name != usual[0]:
            return None
        total, weight = returned.total, returned.weight
        if (type(weight) is not int and type(weight) is not float) or type(total) is not torch.Tensor:
            return None
        if not 0 < weight < math.inf or total.dtype is not usual[1] or total.dim() or not total.requires_grad:
            return None
        if self._chooses_c:
            self._choose_c(weight)
            usual = self._usual
            if usual is None:
                return None
        if self._is_far_above(weight):
            return None
        return usual[2]

    def places(self, terms: Sequence[LossTerm]) -> list[int]:
        """Each term's number; a name that is new gets the next one."""
        new = tuple(term.name for term in terms if term.name not in self.names)
        if new:
            if len(self.names) + len(new) > MAX_TERMS:
                message = (
                    f"The loss returned terms of {len(self.names) + len(new)} names so far; at most"
                    f" {MAX_TERMS} can be told apart. A term's name must not change from batch to batch."
                )
                raise GradaccError(message)
            self.names += new
            self._usual = None
        return [self.names.index(term.name) for term in terms]

    def by_number(self, places: Sequence[int], values: Sequence[float]) -> list[float]:
        """One value a known term: 0 for those that the micro-batch left out."""
        found = [0.0] * len(self.names)
        for place, value in zip(places, values, strict=True):
            found[place] = value
        return found

    def accept(self, terms: Sequence[LossTerm], weights: Sequence[float], *, later: bool) -> None:
        """Take a micro-batch's weights by number. `later`: others of this window came before it.

        Fixes c at the window's first weight. Raises `OwnBufferNeeded`.
        """
        first = next((weight for weight in weights if weight > 0), None)
        if self._chooses_c and first is not None:
            self._choose_c(first)
        if self._is_far_above(max(weights)):
            self._least_c = power_of_two_near(max(weights))
            raise LargerWeightSeen
        if self.ahead is not None:
            return
        if len(self.names) > 1:
            self._find_own(weights, later=later)
        elif first is not None:
            dtype = terms[0].total.dtype
            self._usual = (terms[0].name, dtype, self.seed(0, dtype))

    def _is_far_above(self, weight: float) -> bool:
        """Whether a micro-batch's gradient could leave the range of fp16 under the window's c."""
        return self._loss_scale is not None and self.c is not None and weight > FAR_ABOVE * self.c

    def _choose_c(self, weight: float) -> None:
        self._chooses_c = False
        c = max(power_of_two_near(weight), self._least_c)
        if c != self.c:
            self.c = c
            if self._usual is not None:
                name, dtype, _ = self._usual
                self._usual = (name, dtype, self.seed(0, dtype))

    def _find_own(self, weights: Sequence[float], *, later: bool) -> None:
        """Terms whose weight is another than the main one's need a buffer, from the window's start."""
        new = {
            number
            for number, weight in enumerate(weights)
            if number and number not in self.own and weight != weights[0]
        }
        if new:
            self.own |= new
            # In the window's first micro-batch nothing has gathered yet.
            if later:
                raise OwnBufferNeeded

    def check_counted(self, weights: Sequence[float], counted: Mapping[str, float]) -> None:
        """What `weights(batch)` said must be what `loss` returned; what it leaves out is 0."""
        returned = dict(zip(self.names, weights, strict=True))
        for name in dict.fromkeys([*returned, *counted]):
            weight, said = returned.get(name, 0.0), check_weight(name, counted.get(name, 0.0))
            if abs(weight - said) > _TOLERANCE * max(abs(weight), 1.0):
                message = (
                    f"weights(batch) counted {said:g} for loss term {name!r}, but loss() returned a weight "
                    f"of {weight:g} for the same batch. Both must be the term's denominator."
                )
                raise GradaccError(message)

    @property
    def reference(self) -> float | None:
        """D_ref where it is known ahead; None: D of the main term, at the border."""
        if self.ahead is None:
            return None
        return self.ahead.get(self.names[0] if self.names else "", 0.0) or self.c or 1.0

    def seed(self, number: int, dtype: torch.dtype) -> torch.Tensor:
        """What a term's backward starts with, 0-d, in the total's dtype."""
        c = self.c or 1.0
        factor = 1.0 / c
        reference = self.reference
        if reference is not None and self.ahead is not None:
            own = self.ahead.get(self.names[number], 0.0)
            factor = reference / (c * own) if own > 0 else 0.0
        key = (factor, dtype)
        seed = self._seeds.get(key)
        if seed is None:
            if len(self._seeds) > 64:
                self._seeds.clear()
            seed = torch.full((), factor, dtype=dtype, device=self._device)
            if self._loss_scale is not None:
                seed = seed * self._loss_scale.to(dtype)
            self._seeds[key] = seed
        return seed

    def backward(
        self, terms: Sequence[LossTerm], places: Sequence[int], weights: Sequence[float]
    ) -> list[int]:
        """Run the backward of all terms that share `.grad`; gives the places in `terms` of the others."""
        shared: list[torch.Tensor] = []
        seeds: list[torch.Tensor] = []
        own: list[int] = []
        for index, (term, number) in enumerate(zip(terms, places, strict=True)):
            if weights[number] == 0.0:
                continue
            check_graph(term)
            # What was counted ahead needs no buffer: its seed holds its own denominator.
            if number in self.own and self.ahead is None:
                own.append(index)
            else:
                shared.append(term.total)
                seeds.append(self.seed(number, term.total.dtype))
        if len(shared) == 1:
            shared[0].backward(gradient=seeds[0], retain_graph=bool(own))  # type: ignore[no-untyped-call]
        elif shared:
            torch.autograd.backward(shared, seeds, retain_graph=bool(own))
        return own


class OwnBuffers:
    """Gradients of terms with a denominator that is only known at the border, fp32 or wider."""

    def __init__(self) -> None:
        self._buffers: dict[int, list[torch.Tensor | None]] = {}

    def clear(self) -> None:
        """The window is over, or starts again."""
        self._buffers.clear()

    def backward(
        self,
        index: int,
        term: LossTerm,
        seed: torch.Tensor,
        leaves: Sequence[torch.Tensor],
        *,
        retain_graph: bool,
    ) -> None:
        """Backward of term `index` into its own buffer: each leaf's `.grad` is exchanged for the while."""
        buffers = self.of(index, leaves)
        kept = [leaf.grad for leaf in leaves]
        for leaf, buffer in zip(leaves, buffers, strict=True):
            leaf.grad = buffer
        try:
            term.total.backward(gradient=seed, retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        finally:
            buffers[:] = [leaf.grad for leaf in leaves]
            for leaf, gradient in zip(leaves, kept, strict=True):
                leaf.grad = gradient

    def gradients(self) -> list[torch.Tensor]:
        """All that has gathered, of every term."""
        return [buffer for buffers in self._buffers.values() for buffer in buffers if buffer is not None]

    def of(self, index: int, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Term `index`'s gradients, one a leaf, None where nothing arrived."""
        return self._buffers.setdefault(index, [None] * len(leaves))
