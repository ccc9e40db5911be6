"""A window's border: one pass for unscale, normalise and clip, and the optimizer's step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from trainer_backend.engine.memory import free, is_out_of_memory
from trainer_backend.engine.optimizers import is_fused
from trainer_backend.engine.private_api import multiply_each
from trainer_backend.errors import GradaccError

_SCALE_RANGE: Final = (1e-30, 1e30)
"""Where a reciprocal scale is a normal fp32 number with room on both sides."""


class StepOutOfMemory(GradaccError):  # noqa: N818 - as torch's OutOfMemoryError names the event
    """The optimizer ran out of memory half-way: parameters and state must come from a checkpoint."""


def clip_factor(norm: float, max_norm: float | None) -> float:
    """min(1, max_norm / norm): `norm` is the mean gradient's."""
    return 1.0 if max_norm is None or norm <= max_norm else max_norm / norm


class _Saved(NamedTuple):
    """What a step may change: some optimizers count their steps in their groups."""

    parameters: list[torch.Tensor]
    copies: list[torch.Tensor]
    states: list[dict[str, object]]
    groups: list[dict[str, object]]


class OptimizerStep:
    """Steps an optimizer once a window. `snapshot`: keep a copy, so that out of memory can be undone."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, snapshot: bool, prepared: bool) -> None:
        self.optimizer = optimizer
        self.fused = is_fused(optimizer)
        self._snapshot = snapshot and not self.fused
        self._first = not self.fused and not prepared
        self._scale: torch.Tensor | None = None
        self.clip_value: float | None = None
        """Each number of the mean gradient is cut to this size, after the norm was clipped."""

    def step(self, gradients: Sequence[torch.Tensor], factor: float) -> bool:
        """Multiply the gradients by `factor` and step. True when memory ran out on the way (and was found).

        Fused optimizers divide by 1/factor inside their own pass. fp64 gradients are multiplied by an
        fp64 number first: the fused scale is fp32 and errs by 3e-8.
        """
        if self._takes_scale(gradients, factor):
            self._step_scaled(gradients, factor)
            return False
        if factor != 1.0:
            multiply_each(list(gradients), factor)
        self._clip_values(gradients)
        return self._step_guarded()

    def _clip_values(self, gradients: Sequence[torch.Tensor]) -> None:
        if self.clip_value is not None:
            for gradient in gradients:
                gradient.clamp_(-self.clip_value, self.clip_value)  # NaN stays NaN

    def step_where(
        self, applied: torch.Tensor, gradients: Sequence[torch.Tensor], factor: torch.Tensor
    ) -> None:
        """The same without waiting: `applied` (0-d bool) and `factor` (0-d) lie on the device.

        For fused optimizers: where `applied` is not set their kernels change nothing (`found_inf`).
        """
        self.optimizer.found_inf = (~applied).float()  # type: ignore[attr-defined]
        if any(gradient.dtype == torch.float64 for gradient in gradients):
            multiply_each(list(gradients), factor.double())
        elif self.clip_value is not None:
            multiply_each(list(gradients), factor.float())
        else:
            self.optimizer.grad_scale = (1.0 / factor.double()).float()  # type: ignore[attr-defined]
        self._clip_values(gradients)
        try:
            self.optimizer.step()
        finally:
            self.optimizer.grad_scale = self.optimizer.found_inf = None  # type: ignore[attr-defined]

    def _takes_scale(self, gradients: Sequence[torch.Tensor], factor: float) -> bool:
        if not self.fused or factor == 1.0 or self.clip_value is not None:
            return False
        if not _SCALE_RANGE[0] < factor < _SCALE_RANGE[1]:
            return False
        return all(gradient.dtype == torch.float32 for gradient in gradients)

    def _step_scaled(self, gradients: Sequence[torch.Tensor], factor: float) -> None:
        if self._scale is None:
            self._scale = torch.ones((), dtype=torch.float32, device=gradients[0].device)
        self.optimizer.grad_scale = self._scale.fill_(1.0 / factor)  # type: ignore[attr-defined]
        try:
            self.optimizer.step()
        finally:
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]

    def _step_guarded(self) -> bool:
        saved = self._saved() if self._snapshot or self._first else None
        self._first = False
        if saved is None and self._snapshot:
            raise GradaccError(
                "Out of memory while parameters and state were copied before the optimizer's step "
                "(snapshot_step). The window was not applied. Use a fused optimizer, which needs no copy."
            )
        if self._stepped():
            return False
        device = self.optimizer.param_groups[0]["params"][0].device
        free(device)
        for group in self.optimizer.param_groups:
            if "foreach" in group and not self.fused:
                group["foreach"] = False  # one tensor's temporaries at a time, from now on
        if saved is None:
            raise StepOutOfMemory(
                "Out of memory inside the optimizer's step, which may have changed some parameters "
                "already: go back to the last checkpoint. A fused optimizer needs no memory of its own."
            )
        self._restore(saved)
        if self._stepped():
            return True
        self._restore(saved)
        message = (
            f"Out of memory in the optimizer's step on {device}, also one parameter at a time. The window "
            "was not applied. Use a fused optimizer, plain SGD, or a smaller model."
        )
        raise GradaccError(message)

    def _stepped(self) -> bool:
        try:
            self.optimizer.step()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return False
        return True

    def _saved(self) -> _Saved | None:
        """Copies of parameters and state; None when there is no memory for them."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        try:
            return _Saved(
                parameters,
                [parameter.detach().clone() for parameter in parameters],
                [
                    {key: value.clone() if isinstance(value, torch.Tensor) else value
                     for key, value in self.optimizer.state.get(parameter, {}).items()}
                    for parameter in parameters
                ],
                [
                    {key: value.clone() if isinstance(value, torch.Tensor) else value
                     for key, value in group.items() if key not in ("params", "foreach")}
                    for group in self.optimizer.param_groups
                ],
            )  # fmt: skip
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None

    def _restore(self, saved: _Saved) -> None:
        """Parameters and state as before the step; copies are kept for a second restore."""
        for group, values in zip(self.optimizer.param_groups, saved.groups, strict=True):
            group.update(
                {key: value.clone() if isinstance(value, torch.Tensor) else value
                 for key, value in values.items()}
            )  # fmt: skip
        with torch.no_grad():
            for parameter, copy, state in zip(saved.parameters, saved.copies, saved.states, strict=True):
                parameter.copy_(copy)
                if not state:
                    self.optimizer.state.pop(parameter, None)
                    continue
                now = self.optimizer.state[parameter]
                for key, value in state.items():
                    if isinstance(value, torch.Tensor) and isinstance(now.get(key), torch.Tensor):
                        now[key].copy_(value)
                    else:
                        now[key] = value


def is_usable(norm: float, loss: float | None) -> bool:
    """Whether the window's gradient and loss are numbers."""
    return math.isfinite(norm) and (loss is None or math.isfinite(loss))
