"""The user's own code: `entry = "module:object"`, found beside the recipe."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch

from trainer_backend.engine import checkpoint_modules
from trainer_backend.errors import UsageError
from trainer_backend.kinds import CustomTask
from trainer_backend.recipe import Recipe
from trainer_backend.tasks import Task
from trainer_backend.tasks.built_in import ReportWarning


def make(recipe: Recipe, _warn: ReportWarning) -> Task:
    """The task that the entry names. Raises UsageError; errors of the user's module come as they are."""
    section = recipe.config.task
    assert isinstance(section, CustomTask)
    folder = str(recipe.folder)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module_name, _, attribute = section.entry.partition(":")
    entry: Any = _module(module_name, folder)
    for name in attribute.split("."):
        if not hasattr(entry, name):
            known = ", ".join(word for word in dir(entry) if not word.startswith("_"))[:200]
            message = f"task.entry = {section.entry}: {module_name} has no {name}. It has {known}."
            raise UsageError(message)
        entry = getattr(entry, name)
    if inspect.isclass(entry) or inspect.isroutine(entry):
        task = _called(entry, dict(section.options), section.entry)
    elif section.options:
        message = f"task.options are given, but {section.entry} is not a class or function that takes them."
        raise UsageError(message)
    else:
        task = entry
    if section.activation_checkpointing:
        return _Checkpointed(task, section.activation_checkpointing)
    found: Task = task
    return found


def _module(name: str, folder: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The user's module may be there and miss one of its own: that is theirs to see.
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        message = f"task.entry: there is no module {name} in {folder} (or in this Python). Check the name."
        raise UsageError(message) from None


def _called(entry: Any, options: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - the user's own
    try:
        inspect.signature(entry).bind(**options)
    except TypeError as error:
        message = f"task.options do not fit {name}: {error}."
        raise UsageError(message) from None
    except ValueError:  # a callable written in C has no signature to look at
        pass
    return entry(**options)


class _Checkpointed:
    """A task whose named modules recompute their activations in the backward."""

    def __init__(self, task: Any, names: tuple[str, ...]) -> None:  # noqa: ANN401 - the user's own
        self._task = task
        self._names = names

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the user's own
        return getattr(self._task, name)

    def model(self) -> torch.nn.Module:
        """The task's model with checkpointing switched on. Raises GradaccError for an unknown name."""
        model: torch.nn.Module = self._task.model()
        checkpoint_modules(model, self._names)
        return model
