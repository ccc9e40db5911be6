"""What can be told of a micro-batch whose meaning only the user's own code knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trainer_backend.config import RunConfig
from trainer_backend.engine import Collated
from trainer_backend.engine.batches import tensors_of
from trainer_backend.preflight.findings import AnyRow, TensorFacts, TensorRow
from trainer_backend.tasks import Datasets


class PlainRows:
    """One row a micro-batch: each tensor's shape, type and range."""

    def __init__(self, config: RunConfig, task: Any, datasets: Datasets, pictures: Path | None) -> None:  # noqa: ANN401
        del pictures
        self.unit = str(getattr(task, "loss_unit", config.accumulation.normalization.removesuffix("s"))) + "s"
        self._source = getattr(datasets.train, "source", None)

    def rows(self, batch: Collated, samples: list[Any]) -> tuple[AnyRow, ...]:
        """The tensors of the collated micro-batch."""
        del samples
        facts = tuple(_facts(name, tensor) for name, tensor in tensors_of(batch.batch))
        return (TensorRow(source=self._named(batch.indices), tensors=facts),)

    def _named(self, indices: tuple[int, ...]) -> str:
        if callable(self._source):
            return ", ".join(str(self._source(index)) for index in indices)
        return "samples " + ", ".join(map(str, indices)) if indices else ""

    def padding_ratio(self, batch: Collated, rows: tuple[AnyRow, ...]) -> float | None:
        """Nobody knows which values are padding."""
        del batch, rows
        return None

    def figures(self) -> dict[str, Any]:
        """Nothing beside the samples."""
        return {}


def _facts(name: str, tensor: torch.Tensor) -> TensorFacts:
    dtype = str(tensor.dtype).removeprefix("torch.")
    low = high = None
    if tensor.numel() and not tensor.is_complex():
        low, high = float(tensor.min()), float(tensor.max())
    return TensorFacts(name=name or "batch", shape=tuple(tensor.shape), dtype=dtype, low=low, high=high)
