"""Running a model as it trains, but without chance: dropout off, fp64 wherever fp32 was asked for.

Also an ear: which loss functions are called with a mean, and where precision is thrown away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_backend.engine.private_api import DROPOUT

_DROPOUTS: Final = (
    "dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d",
    "feature_dropout", "dropout_", "alpha_dropout_", "feature_alpha_dropout_", "feature_dropout_",
    "native_dropout",
)  # fmt: skip
_RATES: Final = ("p", "drop_prob", "drop_rate", "drop_path")
_BY_NAME: Final = ("DropPath", "StochasticDepth", "DropBlock2d", "DropBlock3d")
"""Classes of other libraries that drop whole branches by chance."""
_HALF: Final = (torch.bfloat16, torch.float16)


def switch_off_dropout(model: nn.Module) -> None:
    """Train mode (so that BatchNorm and auxiliary losses act as in the run), every dropout rate 0."""
    model.train()
    for module in model.modules():
        if isinstance(module, DROPOUT) or type(module).__name__ in _BY_NAME:
            for name in _RATES:
                if isinstance(getattr(module, name, None), float | int):
                    setattr(module, name, 0.0)
        elif isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            module.dropout = 0.0


class LossCall:
    """One call of a loss function of torch, as it was seen."""

    __slots__ = ("class_weights", "function", "reduction", "square")

    def __init__(self, function: str, reduction: str, *, class_weights: bool, square: bool) -> None:
        self.function = function
        self.reduction = reduction
        self.class_weights = class_weights
        self.square = square
        """Logits are (b, b) and the targets are 0 … b - 1: each sample against all of its batch."""


_LOSSES: Final[dict[Any, str]] = {
    getattr(nn.functional, name): name
    for name in ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
                 "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "cosine_embedding_loss",
                 "margin_ranking_loss", "triplet_margin_loss", "hinge_embedding_loss", "poisson_nll_loss",
                 "gaussian_nll_loss", "multi_margin_loss", "soft_margin_loss")
}  # fmt: skip


class ControlledRun(TorchFunctionMode):
    """Inside: functional dropout drops nothing; with `widen`, what asks for fp32 gets fp64."""

    def __init__(self, *, widen: bool, heard: list[LossCall] | None = None) -> None:
        super().__init__()
        self._widen = widen
        self._heard = heard

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - torch's own protocol
        types: Any,  # noqa: ANN401 - likewise
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - likewise
        del types
        kwargs = kwargs or {}
        if func is torch.Tensor.backward:
            with self:  # what a backward computes again (activation checkpointing) is quiet too
                return _backward(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _DROPOUTS and args:
            return (
                args[0] if name != "native_dropout" else (args[0], torch.ones_like(args[0], dtype=torch.bool))
            )
        if name == "scaled_dot_product_attention":
            args, kwargs = _without_dropout(args, kwargs)
        if self._heard is not None and func in _LOSSES:
            self._heard.append(_heard(_LOSSES[func], args, kwargs))
        if self._widen:
            if func is torch.Tensor.float:
                func = torch.Tensor.double
            args = tuple(torch.float64 if value is torch.float32 else value for value in args)
            kwargs = {
                key: torch.float64 if value is torch.float32 else value for key, value in kwargs.items()
            }
            return _called_in_fp64(func, args, kwargs)
        return func(*args, **kwargs)


def _backward(
    tensor: torch.Tensor,
    gradient: torch.Tensor | None = None,
    retain_graph: bool | None = None,  # noqa: FBT001 - the order of Tensor.backward
    create_graph: bool = False,  # noqa: FBT001, FBT002 - likewise
    inputs: Any = None,  # noqa: ANN401 - tensors
) -> None:
    """Tensor.backward without the detour through torch functions, which would switch the mode off.

    torch.autograd.backward takes that detour for tensors, and not for the edge that leads to one.
    """
    if not tensor.requires_grad:  # refused there, in torch's own words
        torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)
        return
    if gradient is None and tensor.numel() == 1:
        gradient = torch.ones_like(tensor)
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    torch.autograd.backward(edge, gradient, retain_graph, create_graph, inputs=inputs)


def _called_in_fp64(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """The call; where fp32 tensors from outside the model (class weights …) do not fit, they are widened."""
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        # A backward that failed has used up its graph: trying again would only hide what was wrong.
        if func is torch.autograd.backward or ("dtype" not in str(error) and "scalar type" not in str(error)):
            raise
        wide = tuple(map(_widened, args))
        wide_kwargs = {key: _widened(value) for key, value in kwargs.items()}
        return func(*wide, **wide_kwargs)


def _widened(value: Any) -> Any:  # noqa: ANN401 - any argument
    return value.double() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


def _without_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of scaled_dot_product_attention(q, k, v, mask, dropout_p, …) with dropout_p = 0."""
    if len(args) > 4:
        return (*args[:4], 0.0, *args[5:]), kwargs
    return args, kwargs | {"dropout_p": 0.0}


def _heard(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LossCall:
    weight = kwargs.get(
        "weight", args[2] if len(args) > 2 and name in ("cross_entropy", "nll_loss") else None
    )
    logits, target = (*args, None, None)[:2]
    square = (
        isinstance(logits, torch.Tensor)
        and isinstance(target, torch.Tensor)
        and logits.dim() == 2
        and logits.shape[0] == logits.shape[1] == target.numel()
        and logits.shape[0] > 1
        and not target.is_floating_point()
        and torch.equal(target, torch.arange(len(target), device=target.device, dtype=target.dtype))
    )
    return LossCall(name, kwargs.get("reduction", "mean"), class_weights=weight is not None, square=square)


class Narrowings(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's is untyped
    """Hears where fp64 values are rounded to less; `where` gives the module that ran just then."""

    def __init__(self, where: Callable[[], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: dict[str, torch.dtype] = {}
        self._where = where

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's own protocol
        types: Any,  # noqa: ANN401 - likewise
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - likewise
        del types
        given = func(*args, **(kwargs or {}))
        name = str(func)
        if name.startswith(("aten._to_copy", "aten.copy_")) and isinstance(given, torch.Tensor):
            source = args[1] if "copy_" in name and "_to_copy" not in name else args[0]
            if source.dtype == torch.float64 and given.is_floating_point() and given.dtype != torch.float64:
                place = self._where()
                if self.seen.get(place) not in _HALF:
                    self.seen[place] = given.dtype
        return given


@contextlib.contextmanager
def running_module(model: nn.Module) -> Iterator[Callable[[], str]]:
    """Gives a function that names the module whose forward runs; "the loss" outside of all."""
    stack: list[str] = []
    handles = []
    for name, module in model.named_modules():
        if not name:
            continue

        def enter(_module: nn.Module, _args: Any, name: str = name) -> None:  # noqa: ANN401
            stack.append(name)

        def leave(_module: nn.Module, _args: Any, _given: Any) -> None:  # noqa: ANN401
            if stack:
                stack.pop()

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield lambda: stack[-1] if stack else "the loss"
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def in_fp64() -> Iterator[None]:
    """New tensors are fp64 unless they say otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
