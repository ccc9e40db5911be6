"""Optimizers: fused where the device has it, groups for weight decay, state that exists before window 1."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import torch

from trainer_backend.engine.optimizer_fit import check_fit
from trainer_backend.errors import GradaccError, UsageError
from trainer_backend.optimizer_table import OPTIMIZERS, OptimizerRow, keywords

_FUSED_DEVICES: Final = ("cpu", "cuda", "mps")
_FUSED_SCALE: Final = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers whose fused kernels take `grad_scale` and `found_inf`."""


def parameter_groups(
    model: torch.nn.Module, weight_decay: float, *, decay_all: bool = False
) -> list[dict[str, Any]]:
    """Trainable parameters in at most two groups: decayed, and not.

    Norms and biases (parameters of fewer than two dimensions) do not decay, unless `decay_all`.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise GradaccError(
            "The model has no parameter that requires a gradient: there is nothing to train. Call"
            " requires_grad_(True) on the parameters to train."
        )
    decayed = [parameter for parameter in parameters if decay_all or parameter.dim() >= 2]
    others = [parameter for parameter in parameters if not decay_all and parameter.dim() < 2]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(  # noqa: PLR0913 - what a recipe has, by name
    name: str,
    groups: Iterable[torch.nn.Parameter] | list[dict[str, Any]],
    *,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    embeddings: Collection[torch.nn.Parameter] = (),
) -> torch.optim.Optimizer:
    """One of `OPTIMIZERS`, fused where the device has it. `weight_decay` is for groups without one.

    What the named one does not take is left out. `embeddings`: parameters that are tables, no matrices
    (`embeddings_of`). Raises UsageError where its package is missing, or it does not run on this device.
    """
    listed: list[Any] = list(groups)
    first: torch.Tensor = listed[0]["params"][0] if isinstance(listed[0], dict) else listed[0]
    row = OPTIMIZERS[name]
    given = {"betas": betas, "eps": eps, "momentum": momentum, "nesterov": nesterov}
    if row.needs_cuda and first.device.type != "cuda":
        others = ", ".join(other for other, its in OPTIMIZERS.items() if not its.needs_cuda)
        message = (
            f"optimizer.name = {name} runs on CUDA devices only; this run's device is {first.device.type}."
            f" Choose one of {others}."
        )
        raise UsageError(message)
    how = keywords(name, given)
    if row.found_inf:
        how |= {"fused": True} if first.device.type in _FUSED_DEVICES else {"foreach": True}
    if row.takes_embeddings:
        how["embeddings"] = embeddings
    made: torch.optim.Optimizer = _maker(name, row)(
        listed, lr=learning_rate, weight_decay=weight_decay, **how
    )
    return made


def _maker(name: str, row: OptimizerRow) -> Callable[..., Any]:
    module, _, maker = row.maker.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), maker)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != row.module:
            raise  # something of its own is missing
        message = (
            f"optimizer.name = {name} needs {row.package}, which is not installed in {sys.executable}."
            f" Run: {sys.executable} -m pip install {row.package}"
        )
        raise UsageError(message) from error
    return found


def embeddings_of(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that are tables: of embeddings, what is tied to one, and transformers' output head."""
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    found = [parameter for table in tables for parameter in table.parameters()]
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return found + ([] if head is None else list(head.parameters()))


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether every group steps in one fused kernel that takes `grad_scale` and `found_inf`."""
    return type(optimizer) in _FUSED_SCALE and all(group.get("fused") for group in optimizer.param_groups)


def prepare_state(optimizer: torch.optim.Optimizer) -> bool:
    """Allocate and zero the state of Adam, AdamW and SGD, so that no step allocates; True when known.

    Fused SGD with momentum that is skipped on its first step keeps uninitialised memory otherwise,
    and lazy Adam state makes the first step the one that runs out of memory.
    """
    known = True
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if optimizer.state.get(parameter) or not parameter.requires_grad:
                continue
            match optimizer:
                case torch.optim.Adam() if type(optimizer) in _FUSED_SCALE:
                    optimizer.state[parameter] = _adam_state(parameter, group)
                case torch.optim.SGD() if group["momentum"] and not group["dampening"]:
                    optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
                case torch.optim.SGD() if not group["momentum"]:
                    pass
                case _:
                    known = False
    return known


def _adam_state(parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Adam's state before any step, as its own lazy initialisation would make it."""
    on_device = group["capturable"] or group["fused"]
    state = {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device if on_device else "cpu"),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }
    if group["amsgrad"]:
        state["max_exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """State for a checkpoint without pickle: tensors by name, and plain values.

    Names are "state.<parameter>.<key>", and "group.<i>.<key>" where an optimizer counts steps in a group.
    """
    state = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, Any] = {}
    for index, entries in state["state"].items():
        for key, value in _flat(entries).items():
            target = tensors if isinstance(value, torch.Tensor) else plain
            target[f"state.{index}.{key}"] = value
    groups = []
    for number, group in enumerate(state["param_groups"]):
        found = {key: value for key, value in group.items() if isinstance(value, torch.Tensor)}
        tensors |= {f"group.{number}.{key}": value for key, value in found.items()}
        groups.append({key: value for key, value in group.items() if key not in found})
    return tensors, {"state": plain, "groups": groups}


def _flat(entries: dict[str, Any]) -> dict[str, Any]:
    """One parameter's state without tables in it: bitsandbytes wraps its codes in one, and takes both."""
    inner = [value for value in entries.values() if isinstance(value, dict)]
    flat = {key: value for key, value in entries.items() if not isinstance(value, dict)}
    for table in inner:
        flat |= table
    return flat


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], plain: dict[str, Any]
) -> None:
    """Undo `optimizer_state`. Raises `GradaccError` when the groups do not fit, ValueError for damage."""
    state: dict[int, dict[str, Any]] = {}
    groups = [
        {key: tuple(value) if isinstance(value, list) and key != "params" else value  # JSON has no tuples
         for key, value in group.items()}
        for group in plain["groups"]
    ]  # fmt: skip
    for name, value in (tensors | plain["state"]).items():
        where, index, key = name.split(".", 2)
        if where == "group":
            groups[int(index)][key] = value
        else:
            state.setdefault(int(index), {})[key] = value
    check_fit(optimizer, state, groups)
    try:
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except ValueError as error:
        message = (
            "The checkpoint's optimizer does not fit the recipe's: its parameter groups differ "
            f"({error}). Resume with the recipe that the run was started with."
        )
        raise GradaccError(message) from error


def refuse_untrainable(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raises `GradaccError` for what would fail in window 1 with an error of torch's own."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise GradaccError(
            "LBFGS evaluates the loss several times in one step, so it cannot step on an accumulated"
            " gradient. Use AdamW or SGD."
        )
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse:
            message = (
                f"{name or type(module).__name__} is an embedding with sparse = True; its sparse gradients"
                " cannot be accumulated in one pass. Make it with sparse = False."
            )
            raise GradaccError(message)
    for name, parameter in model.named_parameters():
        if type(parameter.data).__name__ == "DTensor" or type(parameter).__name__ == "DTensor":
            message = (
                f"{name} is sharded (a DTensor, as FSDP2 makes them): its norm and its sum over ranks would"
                " be one rank's. Wrap the model in DistributedDataParallel, or leave it whole."
            )
            raise GradaccError(message)
        if parameter.requires_grad and parameter.is_complex():
            message = (
                f"The parameter {name} is complex, and gradients are summed, scaled and clipped as real"
                " numbers. Keep it as two real ones (torch.view_as_real)."
            )
            raise GradaccError(message)
