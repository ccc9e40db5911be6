"""Half precision: autocast, fp32 masters of half parameters, and the fp16 loss scale."""

from __future__ import annotations

import contextlib
from typing import Any, Final, Literal, TypeAlias

import torch

from trainer_backend.engine.private_api import copy_each, update_loss_scale

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
HALF: Final = (torch.bfloat16, torch.float16)

_AUTOCAST: Final[dict[str, torch.dtype]] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any] | None:
    """The context a forward runs in; None when the model's own dtype is kept ("fp32")."""
    if precision == "fp32":
        return None
    return torch.autocast(device.type, dtype=_AUTOCAST[precision])


class Masters:
    """fp32 copies of bf16 and fp16 parameters: what the optimizer updates and gradients gather in.

    A bf16 gradient buffer is wrong by 0.4 % at N = 8 and a bf16 parameter does not move by a
    thousandth of itself, so each micro-batch's gradient is added to the master's fp32 `.grad`
    as soon as it is ready, and the half `.grad` is freed.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.of: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
        self._hooks: list[Any] = []
        self._optimizer = optimizer
        self._halves: list[torch.Tensor] = []
        self._masters: list[torch.Tensor] = []
        self.adopt()

    def adopt(self) -> bool:
        """Give masters to half parameters that have none: all at first, later those of an added group."""
        known = len(self.of)
        masters = set(self.of.values())
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if not self._optimizer.state.get(parameter):
                    self._optimizer.state.pop(parameter, None)  # an empty entry, made by looking
            group["params"] = [
                parameter if parameter in masters else self._adopted(parameter)
                for parameter in group["params"]
            ]
        self._halves = [half.data for half in self.of]
        self._masters = [master.data for master in self.of.values()]
        return len(self.of) > known

    def _adopted(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        if parameter.dtype not in HALF or not parameter.requires_grad:
            return parameter
        master = torch.nn.Parameter(parameter.detach().float())
        self.of[parameter] = master
        if parameter in self._optimizer.state:  # it has stepped before: its moments go on, in fp32
            moments = self._optimizer.state.pop(parameter)
            self._optimizer.state[master] = {
                key: value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF else value
                for key, value in moments.items()
            }

        def gather(half: torch.Tensor) -> None:
            """Add this micro-batch's gradient in fp32, and free the half one."""
            gradient = half.grad
            if gradient is None:
                return
            half.grad = None
            if master.grad is None:
                master.grad = gradient.float()
            else:
                master.grad.add_(gradient)

        gather.of_engine = True  # type: ignore[attr-defined]  # inspect_model tells it from a user's hook
        self._hooks.append(parameter.register_post_accumulate_grad_hook(gather))  # type: ignore[no-untyped-call]
        return master

    def write_back(self) -> None:
        """Round the masters into the model's own half parameters."""
        if self._halves:
            copy_each(self._halves, self._masters)

    def remove(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()


class LossScaler:
    """The fp16 loss scale S: halved when a gradient overflows, doubled after `interval` good windows.

    Both live on the device, so that an update needs no host sync.
    """

    GROWTH: Final = 2.0
    BACKOFF: Final = 0.5

    def __init__(self, device: torch.device, *, initial: float = 65536.0, interval: int = 2000) -> None:
        self.scale = torch.full((), initial, dtype=torch.float32, device=device)
        self.good_windows = torch.zeros((), dtype=torch.int32, device=device)
        self._interval = interval

    def update(self, found_inf: torch.Tensor) -> None:
        """Once a window. `found_inf`: fp32 0-d, 1 when the window's gradient was not finite."""
        update_loss_scale(
            self.scale, self.good_windows, found_inf,
            growth=self.GROWTH, backoff=self.BACKOFF, interval=self._interval,
        )  # fmt: skip

    def values(self) -> dict[str, float]:
        """The loss scale and its count of good windows, for a checkpoint."""
        return {"scale": self.scale.item(), "good_windows": self.good_windows.item()}

    def load(self, values: dict[str, float]) -> None:
        """Take up a checkpoint's loss scale and count."""
        self.scale.fill_(values["scale"])
        self.good_windows.fill_(int(values["good_windows"]))
