"""From a recipe to its task, and what the trainer needs of one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

import torch
from torch.utils.data import default_collate

from trainer_backend.engine import parameter_groups
from trainer_backend.errors import UsageError
from trainer_backend.kinds import KINDS
from trainer_backend.recipe import Recipe
from trainer_backend.tasks import Datasets, Task
from trainer_backend.tasks.built_in import ReportWarning

OPTIONAL: Final = (
    "collate_training",
    "collate",
    "weights",
    "split",
    "optimizer",
    "evaluate",
    "summarize",
    "count",
    "artifacts",
    "export",
    "definition",
)


def make_task(recipe: Recipe, warn: ReportWarning, *, most_records: int | None = None) -> Task:
    """The task of a recipe. Raises UsageError; what the user's own code raises comes as it is.

    `most_records`: built-in kinds read only so many of each data path, for a quick look.

    Beside what `Task` names, a task may have: `decays_all` (False leaves norms and biases out of decay),
    `loss_unit` ("token" or "sample"), `versions` (packages to name in `RunStarted`),
    `definition(model, batch)` (the loss as it is defined, where `loss` takes the same sum another way: the
    certificate holds one against the other),
    `artifacts(model, folder)` (what an evaluation shows: kind, path, caption) and
    `export(model, folder)` (what is left at the end for other programs).
    """
    module, _, name = KINDS[recipe.config.kind].maker.partition(":")
    maker = attrgetter(name)(importlib.import_module(module))
    limit = {} if most_records is None or recipe.config.kind == "custom" else {"most_records": most_records}
    task = maker(recipe, warn, **limit)
    missing = [name for name in ("model", "datasets", "loss") if not callable(getattr(task, name, None))]
    if missing:
        message = (
            f"The task {type(task).__name__} has no {' and no '.join(f'{name}()' for name in missing)}."
            " A task has model(), datasets() and loss(model, batch)."
        )
        raise UsageError(message)
    checked: Task = task
    return checked


def method(task: Task, name: str) -> Any:  # noqa: ANN401 - an optional method of the user's
    """An optional method, or None where the task has none."""
    assert name in OPTIONAL
    found = getattr(task, name, None)
    return found if callable(found) else None


def collate_of(task: Task) -> Any:  # noqa: ANN401 - the user's own
    """The task's `collate`, else torch's default."""
    return method(task, "collate") or default_collate


def datasets_of(task: Task) -> Datasets:
    """The task's data sets; a mapping or a bare data set will do. Raises UsageError."""
    found: Any = task.datasets()  # the user's own code: it may return anything
    if isinstance(found, Datasets):
        return found
    if isinstance(found, Mapping) and "train" in found:
        return Datasets(train=found["train"], validation=found.get("validation"))
    message = (
        f"datasets() returned {type(found).__name__}. It must return Datasets(train=…, validation=…)"
        " from trainer_backend.tasks."
    )
    raise UsageError(message)


def model_of(task: Task) -> torch.nn.Module:
    """The task's model. Raises UsageError when it is none."""
    found: Any = task.model()
    if not isinstance(found, torch.nn.Module):
        message = f"model() returned {type(found).__name__}. It must return a torch.nn.Module."
        raise UsageError(message)
    return found


def batch_counter(task: Task) -> Any:  # noqa: ANN401 - the user's own
    """The task's `count(batch)`, or None: samples are the first dimension."""
    return method(task, "count")


def groups_of(task: Task, model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: custom tasks decay all, built-in kinds leave norms and biases out."""
    return parameter_groups(model, weight_decay, decay_all=getattr(task, "decays_all", True))


__all__ = [
    "ReportWarning",
    "batch_counter",
    "collate_of",
    "datasets_of",
    "groups_of",
    "make_task",
    "method",
    "model_of",
]
