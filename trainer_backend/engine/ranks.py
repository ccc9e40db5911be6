"""What several ranks agree on at a window's border, and how their gradients are added."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainer_backend.engine.private_api import copy_each
from trainer_backend.errors import GradaccError


class Ranks:
    """A process group, or one rank alone. All calls are collective: every rank makes them in order."""

    def __init__(self, process_group: Any | None, device: torch.device) -> None:  # noqa: ANN401 - torch's own type
        self._group = process_group
        self.size: int = 1 if process_group is None else dist.get_world_size(process_group)
        on_device = process_group is not None and dist.get_backend(process_group) == "nccl"
        self._device = device if on_device else torch.device("cpu")

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sum over ranks, in fp64."""
        return self._reduced(values, dist.ReduceOp.SUM) if self.size > 1 else list(values)

    def max(self, values: Sequence[float]) -> list[float]:
        """Element-wise maximum over ranks."""
        return self._reduced(values, dist.ReduceOp.MAX) if self.size > 1 else list(values)

    def compare_weights(self, leaves: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raises `GradaccError` where the ranks do not begin with the same weights."""
        if self.size == 1:
            return
        sums = [(name, float(leaf.detach().double().sum())) for name, leaf in leaves]
        many = self.max([float(len(sums)), -float(len(sums))])
        if many[0] != -many[1]:
            counts = f"{int(-many[1])} to {int(many[0])}"
            message = f"The ranks train {counts} parameters. Build one model on all ranks."
            raise GradaccError(message)
        high, low = self.max([value for _, value in sums]), self.max([-value for _, value in sums])
        for (name, _), most, least in zip(sums, high, low, strict=True):
            if most != -least and not (math.isnan(most) and math.isnan(least)):
                message = (
                    f"{name} differs between the ranks at the start. Use the same seed on every rank"
                    " before the model is built, or broadcast rank 0's weights."
                )
                raise GradaccError(message)

    def names(self, mine: Sequence[str]) -> tuple[str, ...]:
        """All ranks' names in one order: rank 0's, then what each further rank adds."""
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, list(dict.fromkeys(mine)), group=self._group)
        return tuple(dict.fromkeys(name for names in gathered for name in names))

    def _reduced(self, values: Sequence[float], operation: Any) -> list[float]:  # noqa: ANN401 - torch's enum
        vector = torch.tensor(list(values), dtype=torch.float64, device=self._device)
        dist.all_reduce(vector, op=operation, group=self._group)
        return [float(value) for value in vector.tolist()]

    def add_gradients(self, tensors: Sequence[torch.Tensor], gradients: list[torch.Tensor | None]) -> None:
        """Sum each gradient over the ranks, in place. A rank that has none brings zeros.

        One collective a dtype: flattened, reduced, copied back. Afterwards all ranks have the same
        gradients for the same tensors (`tensors` gives the shapes).
        """
        if self.size == 1:
            return
        anywhere = self.max([float(gradient is not None) for gradient in gradients])
        by_type: dict[torch.dtype, list[int]] = {}
        for index, present in enumerate(anywhere):
            if not present:
                continue
            gradient = gradients[index]
            if gradient is None:
                gradient = torch.zeros_like(tensors[index])
                gradients[index] = gradient
            by_type.setdefault(tensors[index].dtype, []).append(index)
        for indices in by_type.values():
            some = [gradient for index in indices if (gradient := gradients[index]) is not None]
            flat = torch.cat([gradient.reshape(-1) for gradient in some])
            dist.all_reduce(flat, op=dist.ReduceOp.SUM, group=self._group)
            parts = torch.split(flat, [gradient.numel() for gradient in some])
            copy_each(some, [part.view_as(gradient) for part, gradient in zip(parts, some, strict=True)])
