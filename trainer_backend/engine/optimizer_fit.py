"""Whether a saved optimizer state has the shapes that its optimizer steps on.

torch takes any: a moment of another shape is found out inside a fused kernel, by an error of its own or by
a crash of the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

_ADAMS: Final = (torch.optim.Adam, torch.optim.AdamW)
_MOMENTS: Final = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")


def check_fit(
    optimizer: torch.optim.Optimizer,
    state: Mapping[int, Mapping[str, Any]],
    groups: Sequence[Mapping[str, Any]],
) -> None:
    """Raise ValueError for a state (by the parameters' numbers) or groups of another shape than its own."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, entries in state.items():
        if not 0 <= number < len(parameters):
            message = f"it has the state of parameter {number}, and there are {len(parameters)}"
            raise ValueError(message)
        _check_entries(type(optimizer), number, parameters[number], entries)
    for saved, own in zip(groups, optimizer.param_groups, strict=False):  # another count is refused by torch
        for key, value in saved.items():
            if key != "params" and key in own and not _alike(value, own[key]):
                message = f"its {key} is {value!r}, where {own[key]!r} was expected"
                raise ValueError(message)


def _check_entries(
    kind: type[torch.optim.Optimizer], number: int, parameter: torch.Tensor, entries: Mapping[str, Any]
) -> None:
    """The optimizers of torch whose state is as large as the parameter; others keep what only they know."""
    shapes: dict[str, torch.Size] = {}
    if kind in _ADAMS:
        shapes = dict.fromkeys(("exp_avg", "exp_avg_sq"), parameter.shape) | {"step": torch.Size()}
    shapes |= {
        key: parameter.shape
        for key in _MOMENTS
        if kind in (*_ADAMS, torch.optim.SGD) and entries.get(key) is not None
    }
    for key, shape in shapes.items():
        value = entries.get(key)
        if not isinstance(value, torch.Tensor) or value.shape != shape or not value.is_floating_point():
            found = f"of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else "missing"
            message = f"{key} of parameter {number} is {found}, and must have shape {tuple(shape)}"
            raise ValueError(message)


def _alike(saved: Any, own: Any) -> bool:  # noqa: ANN401 - any setting of a group
    """Whether a setting is of the kind that the optimizer has now; None stands for "as torch chooses"."""
    match own:
        case bool() | None:
            return (
                saved is None
                or isinstance(saved, bool)
                or (own is None and not isinstance(saved, dict | str))
            )
        case int() | float():
            return isinstance(saved, int | float) and not isinstance(saved, bool)
        case tuple() | list():
            return (
                isinstance(saved, tuple | list)
                and len(saved) == len(own)
                and all(_alike(one, other) for one, other in zip(saved, own, strict=True))
            )
        case torch.Tensor():
            return isinstance(saved, torch.Tensor) and saved.shape == own.shape
        case str():
            return isinstance(saved, str)
        case _:
            return True
