"""An exponential moving average of the weights, once a window, after its update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch

from trainer_backend.engine.private_api import lerp_each


class WeightAverage:
    """ema <- decay * ema + (1 - decay) * weight. Half weights are averaged from their fp32 masters."""

    def __init__(self, weights: Mapping[str, torch.Tensor], decay: float) -> None:
        self.decay = decay
        self.tensors = {name: weight.detach().clone() for name, weight in weights.items()}
        self._averages = list(self.tensors.values())
        self._weights = [weight.detach() for weight in weights.values()]

    def update(self) -> None:
        """After an update that was applied."""
        lerp_each(self._averages, self._weights, 1.0 - self.decay)

    def update_where(self, applied: torch.Tensor) -> None:
        """The same without a host sync; `applied` is 0-d fp64, 1 or 0."""
        for average, weight in zip(self._averages, self._weights, strict=True):
            average.lerp_(weight, (applied * (1.0 - self.decay)).to(average.dtype))

    @contextlib.contextmanager
    def swapped_in(self, parameters: Mapping[str, torch.nn.Parameter]) -> Iterator[None]:
        """Inside, the model's parameters hold the averages; evaluation uses them."""
        kept = {name: parameters[name].detach().clone() for name in self.tensors}
        with torch.no_grad():
            for name, average in self.tensors.items():
                parameters[name].copy_(average)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weight in kept.items():
                    parameters[name].copy_(weight)
