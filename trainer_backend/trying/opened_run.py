"""A run's newest checkpoint in memory, with the task that made it."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Literal

import torch

from trainer_backend.engine import load_optimizer_state
from trainer_backend.errors import UsageError
from trainer_backend.optimizer_table import OPTIMIZERS
from trainer_backend.preflight.model_checks import side_device
from trainer_backend.recipe import Recipe
from trainer_backend.run_directory import RunDirectory, checkpoints_in
from trainer_backend.tasks.built_in import BuiltIn, unheard
from trainer_backend.tasks.making import make_task, model_of
from trainer_backend.trainer import checkpoint
from trainer_backend.trainer.assembly import optimizer_for
from trainer_backend.trainer.checkpoint import CheckpointError, Saved
from trainer_backend.trainer.saving import check_fit
from trainer_backend.trying.try_messages import Opened

TRIES: Final = 3
"""A live run removes its oldest checkpoints while others read them."""
NONE_OPENED: Final = 0
"""Records that a task reads of its data: its files are listed, none is opened."""


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """What can be asked: a task, and its model with a checkpoint's weights, in eval mode."""

    run: RunDirectory
    recipe: Recipe
    task: Any
    model: torch.nn.Module
    device: torch.device
    step: int
    is_average: bool


def open_run(run: RunDirectory) -> OpenedRun:
    """Load a run's newest checkpoint. Raises GradaccError with a sentence."""
    run.check()
    recipe = run.recipe()
    step, saved = _newest(run)
    config = recipe.config
    torch.manual_seed(config.run.seed)
    task = make_task(recipe, unheard, most_records=NONE_OPENED)
    device = side_device(config)
    model = model_of(task)
    check_fit(model, saved.model)
    model.load_state_dict(saved.model | saved.state.get("model_extra", {}))
    is_average = _take_average(recipe, task, model, saved)
    model.to(device).eval()
    for weight in model.parameters():
        weight.requires_grad = False
    return OpenedRun(run, recipe, task, model, device, step, is_average)


def _newest(run: RunDirectory) -> tuple[int, Saved]:
    for attempt in range(TRIES):
        found = checkpoints_in(run.checkpoints_path)
        if not found:
            message = (
                f"{run.id} has no checkpoint yet. It saves one when it stops or ends, and as often as"
                " [checkpoint] in its recipe says."
            )
            raise UsageError(message)
        step, path = next(reversed(found.items()))
        try:
            return step, checkpoint.read(path)
        except CheckpointError:
            if attempt == TRIES - 1 or next(reversed(checkpoints_in(run.checkpoints_path)), None) == step:
                raise
    raise AssertionError


def _take_average(recipe: Recipe, task: Any, model: torch.nn.Module, saved: Saved) -> bool:  # noqa: ANN401
    """Put the averaged weights in place, which evaluations measure; False where there are none."""
    prefix = "engine.ema."
    averages = {
        name.removeprefix(prefix): tensor
        for name, tensor in saved.training.items()
        if name.startswith(prefix)
    }
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, average in averages.items():
            if name in parameters:
                parameters[name].copy_(average)
    if averages or not OPTIMIZERS[recipe.config.optimizer.name].averages:
        return bool(averages)
    optimizer = optimizer_for(recipe.config, task, model)
    prefix = "optimizer."
    tensors = {
        name.removeprefix(prefix): tensor
        for name, tensor in saved.training.items()
        if name.startswith(prefix)
    }
    load_optimizer_state(optimizer, tensors, saved.state["optimizer"])
    evaluate: Any = optimizer
    evaluate.eval()
    return True


def what_it_takes(opened: OpenedRun) -> Opened:
    """What this run can be asked, for who asks."""
    task = opened.task
    takes: Literal["prompt", "picture", "nothing"] = "nothing"
    if isinstance(task, BuiltIn):  # a task of the user's own may have other methods of these names
        takes = "prompt" if hasattr(task, "write") else "picture" if hasattr(task, "recognise") else takes
    if takes == "nothing":
        return Opened(step=opened.step, takes=takes, device="", is_average=opened.is_average)
    return Opened(
        step=opened.step,
        takes=takes,
        has_template=getattr(task, "has_template", False),
        has_thinking=getattr(task, "has_thinking", False),
        has_base=hasattr(task, "base_model"),
        device={"cpu": "the CPU", "cuda": "the GPU"}.get(opened.device.type, opened.device.type),
        is_average=opened.is_average,
        exports=getattr(task, "exports", ()),
    )
