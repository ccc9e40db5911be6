"""The weights beside the model's own: fp32 masters of half parameters, and an average."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch

from trainer_backend.engine.ema import WeightAverage
from trainer_backend.engine.precision import Masters
from trainer_backend.errors import GradaccError


class WeightCopies:
    """Masters (unless gradients are to be kept in the parameters' own type) and average (where asked)."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        gradient_dtype: Literal["fp32", "parameter"],
        ema_decay: float | None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self.masters = Masters(optimizer) if gradient_dtype == "fp32" else None
        if _averages(optimizer):
            optimizer.train()  # type: ignore[attr-defined]  # it refuses to step until it is told
        own = {name for name, _ in model.named_parameters()}
        full = {name: leaf.detach() for name, leaf in self.named_leaves() if name in own}
        self.average = None if ema_decay is None else WeightAverage(full, ema_decay)

    def named_leaves(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Trainable parameters by name, or their fp32 masters; last those that only the optimizer holds."""
        masters = {} if self.masters is None else self.masters.of
        seen: set[torch.nn.Parameter] = set()
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                leaf = masters.get(parameter, parameter)
                seen.add(leaf)
                yield name, leaf
        for number, group in enumerate(self._optimizer.param_groups):
            for place, leaf in enumerate(group["params"]):
                if leaf not in seen:
                    seen.add(leaf)
                    yield f"optimizer.{number}.{place}", leaf

    def after_update(self, applied: torch.Tensor | None = None) -> None:
        """Round masters back, move the average; `applied` (0-d bool) is not waited for."""
        if self.masters is not None:
            self.masters.write_back()
        if self.average is None:
            return
        if applied is None:
            self.average.update()
        else:
            self.average.update_where(applied.double())

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the model holds the average, where there is one: the engine's, or the optimizer's own."""
        if _averages(self._optimizer):
            with self._swapped_by_optimizer():
                yield
            return
        if self.average is None:
            yield
            return
        with self.average.swapped_in(dict(self._model.named_parameters())):
            yield

    @contextlib.contextmanager
    def _swapped_by_optimizer(self) -> Iterator[None]:
        """A schedule-free optimizer's `eval()`; its `train()` would come back with other last bits."""
        optimizer: Any = self._optimizer
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        trained = [parameter.detach().clone() for parameter in parameters]
        modes = [group["train_mode"] for group in optimizer.param_groups]
        optimizer.eval()
        self._write_back()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, copy in zip(parameters, trained, strict=True):
                    parameter.copy_(copy)
            for group, mode in zip(optimizer.param_groups, modes, strict=True):
                group["train_mode"] = mode
            self._write_back()

    def _write_back(self) -> None:
        if self.masters is not None:
            self.masters.write_back()

    def tensors(self) -> dict[str, torch.Tensor]:
        """For a checkpoint: "master.<name>" and "ema.<name>"."""
        tensors: dict[str, torch.Tensor] = {}
        if self.masters is not None:
            names = {leaf: name for name, leaf in self.named_leaves()}
            tensors |= {f"master.{names[master]}": master.detach() for master in self.masters.of.values()}
        if self.average is not None:
            tensors |= {f"ema.{name}": average for name, average in self.average.tensors.items()}
        return tensors

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Undo `tensors`. Raises `GradaccError` when one is missing or does not fit; then nothing changed."""
        expected = self.tensors()
        for name, tensor in expected.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                found = tuple(tensors[name].shape) if name in tensors else "missing"
                message = (
                    f"The checkpoint does not fit the recipe: {name} is {found}, and "
                    f"{tuple(tensor.shape)} is needed."
                )
                raise GradaccError(message)
        with torch.no_grad():
            for name, tensor in expected.items():
                tensor.copy_(tensors[name])


def _averages(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it keeps an average of the weights itself, as those of the library schedulefree do."""
    return all("train_mode" in group for group in optimizer.param_groups)
