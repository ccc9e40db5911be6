"""Which denominator each loss term has, and the number its backward starts with.

The window's gradient is  sum_t  sum_i total_ti / D_t.  All terms share `.grad`, which the border
multiplies by  c*R/D_ref.  So a backward starts with

    1/c            first term, and every term whose weights are the first one's: D_ref is D of the first
    D_ref/(c*D_t)  another denominator that was counted ahead (`weights`), before the first backward
    1/c            another denominator that is not known yet: into a buffer of its own, added at the border
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from trainer_backend.engine.terms import check_graph, check_names, check_weight, power_of_two_near
from trainer_backend.errors import GradaccError
from trainer_backend.tasks import LossTerm

MAX_TERMS = 16
"""So that ranks exchange vectors of one length, whatever a rank has seen."""

_TOLERANCE = 1e-6


class OwnBufferNeeded(Exception):  # noqa: N818 - no error: the window starts again
    """A term's weights are not the first term's, and were not counted ahead."""


class Denominators:
    """The run's terms: names, c, and which of them gather in a buffer of their own."""

    def __init__(self, device: torch.device) -> None:
        self.names: tuple[str, ...] = ()
        self.c: float | None = None
        self.own: set[int] = set()
        self.ahead: list[float] | None = None
        """D of each term, over all ranks, where it was counted before the window's first backward."""
        self._device = device
        self._seeds: dict[tuple[float, torch.dtype], torch.Tensor] = {}
        self._loss_scale: torch.Tensor | None = None
        self._usual: tuple[str, torch.dtype, torch.Tensor] | None = None
        """Name, dtype and seed of the run's only term, once it was seen and nothing else can come."""

    def restore(self, names: Sequence[str], c: float | None, own: Sequence[int]) -> None:
        """From a checkpoint."""
        self.names, self.c, self.own = tuple(names), c, set(own)
        self._seeds.clear()
        self._usual = None

    def agree(self, c: float | None) -> None:
        """The ranks' common c. Both are powers of two, so what has gathered was scaled exactly."""
        if c != self.c:
            self.c = c
            self._seeds.clear()
            self._usual = None

    def begin(self, ahead: list[float] | None, loss_scale: torch.Tensor | None) -> None:
        """A window (or its replay) starts. `loss_scale`: S, 0-d on the device; None is 1."""
        self.ahead = ahead
        self._loss_scale = loss_scale
        if loss_scale is not None or ahead is not None:
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
        return usual[2]

    def accept(self, terms: tuple[LossTerm, ...], weights: Sequence[float]) -> None:
        """Check a micro-batch's terms against earlier ones; fix c at the first weight."""
        if not self.names:
            if len(terms) > MAX_TERMS:
                message = f"The loss returned {len(terms)} terms; at most {MAX_TERMS} can be told apart."
                raise GradaccError(message)
            self.names = tuple(term.name for term in terms)
        elif len(terms) != len(self.names) or terms[0].name != self.names[0] or len(terms) > 1:
            check_names(self.names, terms)
        if self.c is None:
            first = next((weight for weight in weights if weight > 0), None)
            if first is not None:
                self.c = power_of_two_near(first)
        if len(terms) > 1:
            if self.ahead is None:
                self._find_own(weights)
        elif self.c is not None and self.ahead is None:
            dtype = terms[0].total.dtype
            self._usual = (terms[0].name, dtype, self.seed(0, dtype))

    def _find_own(self, weights: Sequence[float]) -> None:
        """Terms whose weight is another than the first one's need a buffer, from the window's start."""
        new = {
            index
            for index, weight in enumerate(weights)
            if index and index not in self.own and weight != weights[0]
        }
        if new:
            self.own |= new
            raise OwnBufferNeeded

    def check_counted(self, weights: Sequence[float], counted: Mapping[str, float]) -> None:
        """What `weights(batch)` said must be what `loss` returned."""
        for name, weight in zip(self.names, weights, strict=True):
            said = check_weight(name, counted.get(name, 0.0))
            if abs(weight - said) > _TOLERANCE * max(abs(weight), 1.0):
                message = (
                    f"weights(batch) counted {said:g} for loss term {name!r}, but loss() returned a weight "
                    f"of {weight:g} for the same batch. Both must be the term's denominator."
                )
                raise GradaccError(message)

    @property
    def reference(self) -> float | None:
        """D_ref where it is known ahead; None: D of the first term, at the border."""
        if self.ahead is None:
            return None
        return self.ahead[0] if self.ahead[0] > 0 else (self.c or 1.0)

    def seed(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        """What term `index`'s backward starts with, 0-d, in the total's dtype."""
        c = self.c or 1.0
        factor = 1.0 / c
        reference = self.reference
        if reference is not None and self.ahead is not None:
            own = self.ahead[index]
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

    def backward(self, terms: tuple[LossTerm, ...], weights: Sequence[float]) -> list[int]:
        """Run the backward of all terms that share `.grad`; gives the ones that need their own buffer."""
        shared: list[torch.Tensor] = []
        seeds: list[torch.Tensor] = []
        own: list[int] = []
        for index, term in enumerate(terms):
            if weights[index] == 0.0:
                continue
            check_graph(term)
            if index in self.own:
                own.append(index)
            else:
                shared.append(term.total)
                seeds.append(self.seed(index, term.total.dtype))
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

    def of(self, index: int, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Term `index`'s gradients, one a leaf, None where nothing arrived."""
        return self._buffers.setdefault(index, [None] * len(leaves))
