"""Loss terms as a task returns them, checked, and their denominators over a window."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import torch

from trainer_backend.errors import GradaccError
from trainer_backend.tasks import LossTerm

_TOTALS = (torch.float32, torch.float64)
OWN_BACKWARD: Final = (
    "A parameter has a gradient before the first backward of the window: the loss called .backward()"
    " itself. Return the total and its weight, and leave the backward to gradacc."
)


def auxiliary(value: torch.Tensor, like: LossTerm, name: str) -> LossTerm:
    """A loss that belongs to the micro-batch as a whole (such as expert load balancing), as a term.

    It takes the main term's weight, so the window's value is the weighted mean over micro-batches.
    That is not the large batch's value, since such a loss is not a sum over samples.
    """
    return LossTerm(value * like.weight, like.weight, name, per_micro_batch=True)


def read_terms(returned: Any) -> tuple[LossTerm, ...]:  # noqa: ANN401 - the user's own, checked here
    """What `loss` returned, as checked terms. Raises `GradaccError` that names what is wrong."""
    if type(returned) is LossTerm:
        _check_total(returned)
        return (returned,)
    if isinstance(returned, torch.Tensor):
        raise GradaccError(
            "The loss returned a tensor, so its weight is unknown. Return LossTerm(total, weight): the "
            "sum of the element losses and what it is to be divided by, such as the number of samples."
        )
    if not isinstance(returned, Iterable):
        message = f"The loss returned {type(returned).__name__}; it must return a LossTerm or a list of them."
        raise GradaccError(message)
    terms: tuple[Any, ...] = tuple(returned)
    for term in terms:
        if not isinstance(term, LossTerm):
            message = (
                f"The loss returned a list with {type(term).__name__} in it; each entry must be a LossTerm."
            )
            raise GradaccError(message)
        _check_total(term)
    names = [term.name for term in terms]
    if not terms or len(set(names)) != len(names):
        message = f"The loss returned terms named {names}: there must be at least one, and no name twice."
        raise GradaccError(message)
    return terms


def _check_total(term: LossTerm) -> None:
    """`total` is a 0-d fp32 or fp64 tensor."""
    total: Any = term.total
    if not isinstance(total, torch.Tensor):
        message = f"The total of loss term {term.name!r} is {type(total).__name__}; it must be a 0-d tensor."
        raise GradaccError(message)
    if total.dim():
        message = (
            f"The total of loss term {term.name!r} has shape {tuple(total.shape)}; it must be 0-d: "
            "the sum over the elements (reduction='sum', or .sum())."
        )
        raise GradaccError(message)
    if total.dtype not in _TOTALS:
        message = (
            f"The total of loss term {term.name!r} is {str(total.dtype).removeprefix('torch.')}: a sum of "
            "many losses overflows or rounds away in half precision. Sum in fp32, such as "
            "losses.float().sum()."
        )
        raise GradaccError(message)


def host_weight(term: LossTerm) -> float:
    """The term's weight as a number (a synchronisation when it lies on a GPU), checked."""
    weight: Any = term.weight
    if isinstance(weight, torch.Tensor):
        check_weight_shape(term.name, weight)
        weight = weight.item()
    return check_weight(term.name, weight)


def check_weight_shape(name: str, weight: torch.Tensor) -> None:
    """A weight on the device is one number."""
    if weight.dim():
        message = (
            f"The weight of loss term {name!r} has shape {tuple(weight.shape)}; it must be a number or "
            "a 0-d tensor."
        )
        raise GradaccError(message)


def check_weight(name: str, weight: Any) -> float:  # noqa: ANN401 - the user's value, checked here
    """`weight` as a float. Raises `GradaccError` for what is no denominator."""
    try:
        number = float(weight)
    except (TypeError, ValueError) as error:
        message = f"The weight of loss term {name!r} is {weight!r}; it must be a number or a 0-d tensor."
        raise GradaccError(message) from error
    if not math.isfinite(number) or number < 0:
        message = (
            f"The weight of loss term {name!r} is {number}; it must be finite and not negative "
            "(0 is a micro-batch without a valid element)."
        )
        raise GradaccError(message)
    return number


def check_graph(term: LossTerm) -> None:
    """A total with a weight must depend on a parameter."""
    if not term.total.requires_grad:
        message = (
            f"The total of loss term {term.name!r} does not depend on any trainable parameter, so it has "
            "no gradient. Look for .detach(), .item() or no_grad() on its way, or frozen parameters."
        )
        raise GradaccError(message)


def power_of_two_near(weight: float) -> float:
    """c: exact to divide by, and near the weight, so that gradients stay in the range of fp16."""
    return 2.0 ** round(math.log2(weight))
