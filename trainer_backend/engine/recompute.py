"""Activation checkpointing: modules, by name, whose activations are computed again in the backward."""

from __future__ import annotations

import difflib
import fnmatch
import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from trainer_backend.errors import GradaccError


def checkpoint_modules(model: torch.nn.Module, names: Iterable[str]) -> list[str]:
    """Make the named modules recompute; "layers.*" stands for all that match. Gives the full names.

    Non-reentrant, so hooks fire once, kept dropout masks are used again, and parameter names stay.
    Raises `GradaccError` for a name that no module has.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    chosen: dict[str, torch.nn.Module] = {}
    for name in names:
        found = {key: module for key, module in modules.items() if fnmatch.fnmatchcase(key, name)}
        if not found:
            near = difflib.get_close_matches(name, modules, n=1) or list(modules)[:1]
            hint = f" The nearest name is {near[0]!r}." if near else ""
            message = f"task.activation_checkpointing names {name!r}, and the model has no such module.{hint}"
            raise GradaccError(message)
        chosen |= found
    for module in chosen.values():
        _recompute(module)
    return list(chosen)


def _recompute(module: torch.nn.Module) -> None:
    inner = module.forward
    if getattr(inner, "recomputes", False):
        return

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a module's own signature
        if not torch.is_grad_enabled():
            return inner(*args, **kwargs)
        return checkpoint(inner, *args, use_reentrant=False, **kwargs)

    forward.recomputes = True  # type: ignore[attr-defined]
    module.forward = forward
