"""What the auditor reads off a micro-batch: coefficients, host waits, and what its backward takes."""

from __future__ import annotations

import time
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

IGNORED: Final = -100
SURE: Final = 0.999
"""Targets that are likelier than this have a gradient too small to read a coefficient from."""


class ObservedMicroBatch:
    """What is being seen of one micro-batch."""

    def __init__(self, units: int, started_at: float, forward_s: float | None, own_s: float) -> None:
        self.units = units
        self.forward_s = forward_s
        self.backward_s: float | None = None
        self.own_s = own_s
        """What the auditor had spent on itself before."""
        self.coefficient = 0.0
        self.auxiliary: float | None = None
        self.host_syncs: int | None = None
        self.started_at = started_at

    @property
    def bare_s(self) -> float | None:
        """Its forward and backward alone."""
        if self.forward_s is None or self.backward_s is None:
            return None
        return self.forward_s + self.backward_s


class CountSyncs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts reads of device values by the host: each waits for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.looking = False
        """Whether it is the auditor itself that reads."""

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - any operator
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - what the operator gives
        del types
        if func is torch.ops.aten._local_scalar_dense.default and not self.looking:  # noqa: SLF001 - its name
            self.count += 1
        return func(*args, **(kwargs or {}))


def time_backward(micro: ObservedMicroBatch, gradient: torch.Tensor) -> None:
    """From the first gradient that arrives to the end of the whole backward, on a CPU."""
    if gradient.device.type != "cpu":
        return
    began = time.perf_counter()

    def ended() -> None:
        micro.backward_s = time.perf_counter() - began

    torch.autograd.Variable._execution_engine.queue_callback(ended)  # noqa: SLF001 - torch's own wrappers use it


def shifts_labels(module: torch.nn.Module) -> bool:
    """Whether the model's loss is of each token's successor."""
    return getattr(getattr(module, "loss_function", None), "__name__", "") == "ForCausalLMLoss"


def coefficient_of(gradient: torch.Tensor, probabilities: torch.Tensor, targets: torch.Tensor) -> float:
    """The usual coefficient of a valid target's loss, from the logits' gradient; 0 where none can be read."""
    if targets.is_floating_point():  # a regression has no class whose share of the gradient is known
        return 0.0
    flat = targets.flatten()
    valid = flat != IGNORED
    chosen = flat[valid].unsqueeze(1)
    if not len(chosen):
        return 0.0
    right = probabilities.flatten(0, -2)[valid].gather(1, chosen).squeeze(1)
    arrived = gradient.float().flatten(0, -2)[valid].gather(1, chosen).squeeze(1)
    readable = right < SURE
    return float((arrived[readable] / (right[readable] - 1)).median()) if bool(readable.any()) else 0.0
