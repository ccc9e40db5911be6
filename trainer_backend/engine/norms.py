"""Gradient norms: of the window, and of each micro-batch without a copy of any gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from trainer_backend.engine.private_api import forget_empty_hooks, norm_of_each

SUMMED_AT_ONCE: Final = 2**16
"""Elements whose squares a CPU adds up in fp32 at once: of four million the norm is 8e-5 off."""


def in_pieces(gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A large tensor on a CPU in parts whose norms are right to fp32; other tensors as they are."""
    if (
        gradient.numel() <= SUMMED_AT_ONCE
        or gradient.device.type != "cpu"
        or type(gradient) is not torch.Tensor
        or gradient.layout != torch.strided
        or gradient.dtype == torch.float64
    ):
        return (gradient,)
    strides = gradient.stride()
    in_memory = gradient.permute(sorted(range(gradient.dim()), key=lambda dim: -strides[dim]))
    return torch.split(in_memory.contiguous().view(-1), SUMMED_AT_ONCE)  # copied only where it has gaps


def total_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """L2 norm over all tensors, 0-d, in fp32 (fp64 where a gradient is fp64)."""
    if not gradients:
        return torch.zeros(())
    wide = [gradient for gradient in gradients if gradient.dtype == torch.float64]
    rest = [gradient for gradient in gradients if gradient.dtype != torch.float64] if wide else gradients
    pieces = [piece for gradient in rest for piece in in_pieces(gradient)]
    norms = list(norm_of_each(pieces, 2.0, torch.float32)) if pieces else []
    if wide:
        norms = [norm.double() for norm in norms] + list(norm_of_each(wide, 2.0))
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


class MicroBatchNorms:
    """Squared norms of single micro-batches' gradients, seen by leaf hooks before they are added.

    A hook on a leaf gets the micro-batch's own gradient, so nothing is copied or subtracted.
    Two small kernels a tensor and micro-batch are the cost; the engine samples every R-th window.
    A hook that fires twice for one parameter in one micro-batch (reentrant checkpointing with
    shared weights) saw two parts of one gradient: that norm is void, and counted.
    """

    def __init__(self) -> None:
        self.void = 0
        """Micro-batches whose norm was dropped because a hook fired twice."""
        self._seen: list[int] = []
        self._norms: list[torch.Tensor] = []
        self._handles: list[Any] = []
        self._hooked: list[torch.Tensor] = []
        """Parameters that the handles lie on."""

    @property
    def active(self) -> bool:
        """Whether this window is sampled."""
        return bool(self._handles)

    def attach(self, parameters: Sequence[torch.Tensor]) -> None:
        """Measure the gradient norm of each micro-batch until `detach`."""
        seen, norms = self._seen, self._norms

        def hook_of(index: int) -> Any:  # noqa: ANN401 - autograd's hook type is not exported
            def see(gradient: torch.Tensor) -> None:
                seen.append(index)
                wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
                if gradient.numel() > SUMMED_AT_ONCE:
                    norms.append(total_norm((gradient,)))
                else:
                    norms.append(torch.linalg.vector_norm(gradient, dtype=wide))

            return see

        self._hooked = [parameter for parameter in parameters if parameter.requires_grad]
        self._handles = [
            parameter.register_hook(hook_of(index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(self._hooked)
        ]

    def take(self) -> torch.Tensor | None:
        """Norm of the micro-batch that just ended, 0-d; None when it is void or nothing was seen."""
        if not self._norms:
            return None
        void = len(set(self._seen)) != len(self._seen)
        norm = None if void else torch.linalg.vector_norm(torch.stack(self._norms))
        self.void += void
        self.forget()
        return norm

    def forget(self) -> None:
        """Drop what a failed micro-batch left."""
        self._seen.clear()
        self._norms.clear()

    def detach(self) -> None:
        """End of the sampled window."""
        for handle in self._handles:
            handle.remove()
        forget_empty_hooks(self._hooked)
        self._handles, self._hooked = [], []
        self.forget()
