"""Cross-entropy of a linear head as an exact sum, without the logits of all tokens ever existing.

    total = sum over rows of w · l(y, z),   z = cap · tanh(scale · (h Wᵀ + b) / cap)
    l = (1 - ε) · (lse(z) - z_y) + ε · (lse(z) - mean(z))          ε: label smoothing

Rows are taken in chunks. While a chunk's logits exist, their share of every gradient is taken too
(dl/dz = softmax(z) - (1 - ε)·onehot(y) - ε/v), so that nothing is computed twice and the backward only
multiplies by the seed. torch's own `linear_cross_entropy` (2.14) would not do: its total is bf16 under
bf16, it knows no soft-capping, and smoothing takes it back to full logits.

Letters: r rows (tokens), c rows of a chunk, h hidden width, v vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS: Final = {"cpu": 2**25}
"""Logits that exist at once, by kind of device. Smaller products (2**24) cost a CPU a fifth more time."""
CHUNK_ELEMENTS_ELSEWHERE: Final = 2**26
"""A GPU wants larger products: 256 MiB of fp32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogitShape:
    """What a model does to `h Wᵀ + b` before it calls the result logits, and what its loss does to them."""

    scale: float = 1.0
    softcap: float | None = None
    label_smoothing: float = 0.0


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight_vh: torch.Tensor,
    bias_v: torch.Tensor | None,
    targets: torch.Tensor,
    weights: torch.Tensor,
    shape: LogitShape,
) -> torch.Tensor:
    """Sum of `weights` x cross-entropy over rows: 0-d, fp32 (fp64 where hidden is), with its gradients.

    `hidden` (…, h); `targets` int64 and `weights` (…,), in which a row of weight 0 has no loss and no
    gradient, whatever its target is (one below 0 is never looked up).
    """
    total: torch.Tensor = _ChunkedCrossEntropy.apply(
        hidden.flatten(0, -2),
        weight_vh,
        bias_v,
        targets.flatten(),
        weights.flatten(),
        shape,
        torch.is_grad_enabled(),
    )
    return total


@torch.no_grad()
def chunked_hits(
    hidden: torch.Tensor,
    weight_vh: torch.Tensor,
    bias_v: torch.Tensor | None,
    targets: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Sum of `weights` over the rows whose likeliest token is the target (scale and cap change no order)."""
    rows = _Rows(hidden.flatten(0, -2), weight_vh, bias_v, targets.flatten(), weights.flatten())
    with torch.autocast(hidden.device.type, enabled=False):
        hits = [
            ((rows.logits_cv(part).argmax(-1) == rows.targets_r[part]) * rows.weights_r[part]).sum()
            for part in rows.chunks()
        ]
    return torch.stack(hits).sum()


class _Rows:
    """The rows of one call, and the precision that they are computed in."""

    def __init__(
        self,
        hidden_rh: torch.Tensor,
        weight_vh: torch.Tensor,
        bias_v: torch.Tensor | None,
        targets_r: torch.Tensor,
        weights_r: torch.Tensor,
    ) -> None:
        kind = hidden_rh.device.type
        # As `F.linear` would: in autocast's precision where that is on, else in the weight's.
        is_cast = torch.is_autocast_enabled(kind) and weight_vh.dtype != torch.float64
        self.product_dtype = torch.get_autocast_dtype(kind) if is_cast else weight_vh.dtype
        self.dtype = torch.float64 if self.product_dtype == torch.float64 else torch.float32
        self.hidden_rh = hidden_rh
        self.weight_vh = weight_vh.to(self.product_dtype)
        self.bias_v = None if bias_v is None else bias_v.to(self.product_dtype)
        self.targets_r = targets_r
        self.weights_r = weights_r.to(self.dtype)

    def chunks(self) -> Iterator[slice]:
        """Rows whose logits exist at once."""
        elements = CHUNK_ELEMENTS.get(self.hidden_rh.device.type, CHUNK_ELEMENTS_ELSEWHERE)
        size = max(1, elements // self.weight_vh.shape[0])
        for begin in range(0, max(self.hidden_rh.shape[0], 1), size):
            yield slice(begin, begin + size)

    def hidden_ch(self, part: slice) -> torch.Tensor:
        """Hidden states of a chunk, in the products' precision."""
        return self.hidden_rh[part].to(self.product_dtype)

    def logits_cv(self, part: slice) -> torch.Tensor:
        """`h Wᵀ + b` of a chunk, in fp32 or fp64."""
        return torch.nn.functional.linear(self.hidden_ch(part), self.weight_vh, self.bias_v).to(self.dtype)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - `apply` takes no keywords
        ctx: Any,  # noqa: ANN401 - torch's own
        hidden_rh: torch.Tensor,
        weight_vh: torch.Tensor,
        bias_v: torch.Tensor | None,
        targets_r: torch.Tensor,
        weights_r: torch.Tensor,
        shape: LogitShape,
        is_training: bool,  # noqa: FBT001
    ) -> torch.Tensor:
        rows = _Rows(hidden_rh, weight_vh, bias_v, targets_r, weights_r)
        needed = ctx.needs_input_grad[:3] if is_training else (False, False, False)
        gradients = _Gradients(rows, *needed)
        total = torch.zeros((), dtype=rows.dtype, device=hidden_rh.device)
        with torch.autocast(hidden_rh.device.type, enabled=False):
            for part in rows.chunks():
                total += _chunk(rows, part, shape, gradients)
        ctx.gradients = gradients
        ctx.dtypes = [None if value is None else value.dtype for value in (hidden_rh, weight_vh, bias_v)]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, seed: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - torch's own
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            # They were multiplied in place by the first seed, and belong to `.grad` by now.
            message = "The chunked loss keeps its gradients for one backward; run the forward again."
            raise RuntimeError(message)
        given = zip((gradients.hidden_rh, gradients.weight_vh, gradients.bias_v), ctx.dtypes, strict=True)
        scaled = [None if value is None else value.mul_(seed).to(dtype) for value, dtype in given]
        return (*scaled, None, None, None, None)


class _Gradients:
    """What the chunks add up: those of hidden states in their own dtype, the head's in fp32 or fp64."""

    def __init__(self, rows: _Rows, hidden: bool, weight: bool, bias: bool) -> None:  # noqa: FBT001
        device, dtype = rows.hidden_rh.device, rows.dtype
        # fp16 would lose small slopes: the loss scale is in the seed, which comes with the backward.
        held = dtype if rows.hidden_rh.dtype == torch.float16 else rows.hidden_rh.dtype
        self.hidden_rh = torch.empty_like(rows.hidden_rh, dtype=held) if hidden else None
        self.product_dtype = dtype if rows.product_dtype == torch.float16 else rows.product_dtype
        self.weight_vh = torch.zeros(rows.weight_vh.shape, dtype=dtype, device=device) if weight else None
        self.bias_v = torch.zeros(rows.weight_vh.shape[:1], dtype=dtype, device=device) if bias else None

    @property
    def are_needed(self) -> bool:
        return not (self.hidden_rh is None and self.weight_vh is None and self.bias_v is None)

    def add(self, rows: _Rows, part: slice, slope_cv: torch.Tensor) -> None:
        """`slope_cv`: dtotal / d(h Wᵀ + b) of the chunk."""
        if self.bias_v is not None:
            self.bias_v += slope_cv.sum(0)
        product_cv = slope_cv.to(self.product_dtype)
        if self.hidden_rh is not None:
            self.hidden_rh[part] = product_cv @ rows.weight_vh.to(self.product_dtype)
        if self.weight_vh is None:
            return
        hidden_ch = rows.hidden_ch(part).to(self.product_dtype)
        if self.product_dtype == rows.dtype:
            self.weight_vh.addmm_(product_cv.T, hidden_ch)
        else:
            self.weight_vh += product_cv.T @ hidden_ch


def _chunk(rows: _Rows, part: slice, shape: LogitShape, gradients: _Gradients) -> torch.Tensor:
    """The chunk's share of the total; its share of the gradients is added. One exponential, in place."""
    logits_cv = rows.logits_cv(part)
    weights_c = rows.weights_r[part]
    has_loss_c = weights_c != 0
    # Whatever the target of a row without loss says, it must not be looked up.
    targets_c1 = rows.targets_r[part].where(has_loss_c, 0)[:, None]
    tanh_cv = _shape_in_place(logits_cv, shape)
    logits_cv -= logits_cv.amax(-1, keepdim=True)
    chosen_c = logits_cv.gather(-1, targets_c1)[:, 0]
    smoothing, vocabulary = shape.label_smoothing, logits_cv.shape[-1]
    mean_c = logits_cv.mean(-1) if smoothing else chosen_c
    sums_c = logits_cv.exp_().sum(-1)
    losses_c = sums_c.log() - (1 - smoothing) * chosen_c - smoothing * mean_c
    total = (losses_c.where(has_loss_c, 0) * weights_c).sum()
    if gradients.are_needed:
        slope_cv = logits_cv.mul_((weights_c / sums_c)[:, None])
        slope_cv.scatter_add_(-1, targets_c1, -(1 - smoothing) * weights_c[:, None])
        if smoothing:
            slope_cv -= (smoothing / vocabulary) * weights_c[:, None]
        if tanh_cv is not None:
            slope_cv.addcmul_(slope_cv, tanh_cv.square_(), value=-1)
        if shape.scale != 1:
            slope_cv *= shape.scale
        gradients.add(rows, part, slope_cv)
    return total


def _shape_in_place(logits_cv: torch.Tensor, shape: LogitShape) -> torch.Tensor | None:
    """Scale and cap; gives tanh of the capped, whose square the gradient needs."""
    if shape.scale != 1:
        logits_cv *= shape.scale
    if shape.softcap is None:
        return None
    tanh_cv = logits_cv.div_(shape.softcap).tanh_().clone()
    logits_cv *= shape.softcap
    return tanh_cv
