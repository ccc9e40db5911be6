"""From a recipe to the live objects of a run: device, task, model, engine, data. In that order."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal

import msgspec
import torch

from trainer_backend.config import RunConfig
from trainer_backend.data.order import ALONE, Share
from trainer_backend.data.randomness import mixed
from trainer_backend.data.stream import Stream, make_stream
from trainer_backend.engine import (
    Accumulator,
    compile_model,
    embeddings_of,
    inspect_loss,
    inspect_model,
    make_optimizer,
)
from trainer_backend.engine.memory import free, is_out_of_memory
from trainer_backend.engine.precision import Precision
from trainer_backend.errors import UsageError
from trainer_backend.goals import MEASURED, targets_of
from trainer_backend.protocol import (
    AnyEvent,
    Device,
    Event,
    MicroBatchMeasured,
    PhaseEntered,
    Scalar,
    Warned,
)
from trainer_backend.recipe import Recipe
from trainer_backend.schedule import horizon_of, schedule_of
from trainer_backend.schedule_curves import Schedule
from trainer_backend.settings import Settings, settings_of
from trainer_backend.tasks import Task
from trainer_backend.tasks.making import (
    batch_counter,
    collate_of,
    datasets_of,
    groups_of,
    make_task,
    method,
    model_of,
)
from trainer_backend.trainer.devices import apply_process_settings, choose_device, choose_precision, describe
from trainer_backend.trainer.evaluation import Evaluator, RankedEvaluator, undisturbed
from trainer_backend.trainer.resume_check import DataFingerprint, fingerprint
from trainer_backend.trainer.saving import check_extra_state
from trainer_backend.trainer.world import World

_WINDOW: Final = 4
"""Told apart from other uses of the run's seed."""


@dataclasses.dataclass(kw_only=True)
class Parts:
    """The live objects of one attempt."""

    recipe: Recipe
    task: Task
    accumulator: Accumulator
    stream: Stream
    evaluation: Evaluator | None
    schedule: Schedule
    settings: Settings
    data: DataFingerprint
    """What the training data is, to be compared when the run goes on."""
    decay_shares: list[float]
    """Each parameter group's weight decay over the recipe's: 0 for norms and biases of built-in kinds."""
    rate_ratios: list[float]
    """Each parameter group's learning rate over the recipe's (other than 1 where a task says so)."""
    device: torch.device
    devices: tuple[Device, ...]
    precision: Precision

    @property
    def config(self) -> RunConfig:
        """The recipe's checked configuration."""
        return self.recipe.config

    @property
    def parameters(self) -> int:
        """Trainable numbers in the model."""
        model = self.accumulator.model
        return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def assemble(
    recipe: Recipe,
    put: Callable[[AnyEvent], None],
    *,
    on_micro_batch: Callable[[MicroBatchMeasured], None],
    on_fact: Callable[[Event], None],
    device: torch.device | None = None,
    world: World | None = None,
) -> Parts:
    """Build a run. Raises UsageError and GradaccError with sentences, and what the user's code raises.

    `device`: None is the one that the recipe names. `world`: the ranks that train together; then this is
    collective, and raises on all of them.
    """
    config = recipe.config
    together: Callable[[], AbstractContextManager[None]] = nullcontext if world is None else world.together
    device = choose_device(config.run.device) if device is None else device
    precision = choose_precision(config.run.precision, device)
    apply_process_settings(config.run, device)
    _seed(config.run.seed)

    with together():
        put(PhaseEntered(phase="reading-data"))
        task = make_task(recipe, lambda code, values: put(Warned(code=code, values=values)))
        datasets = datasets_of(task)
        stream = _stream(config, task, datasets.train, device, world)
        horizon = horizon_of(config, stream.samples_per_epoch)
        schedule = schedule_of(config, horizon)

        if horizon is not None and schedule.warmup_samples > horizon:
            lengths: dict[str, Scalar] = {"warmup": schedule.warmup_samples, "horizon": horizon}
            put(Warned(code="warmup-longer-than-run", values=lengths))

        put(PhaseEntered(phase="building-model"))
        _seed(config.run.seed)  # the same weights, whatever the data needed
        model = model_of(task).to(device)
        model.train()
        check_extra_state(model)
    data = fingerprint(datasets.train, msgspec.to_builtins(config), recipe.folder)
    if world is not None:
        world.refuse_unlike_data(data)
        world.share_state(model)
    with together():
        optimizer = optimizer_for(config, task, model)
        accumulator = accumulator_for(
            config, task, model, optimizer, device, precision, on_micro_batch, on_fact, world
        )
        inexact = inspect(config, task, accumulator, stream, precision)
        for warned in inexact:
            put(warned)
        # A new shape is compiled anew, and ranks have other windows than one process.
        accumulator.halve_alone = not inexact and not config.run.compile and world is None
        if config.run.compile:
            compile_model(model)
        settings, ratios = _rates(config, task, optimizer, 1 if world is None else world.size)
        evaluation = _evaluation(config, task, datasets.validation, accumulator, precision, world)
    if world is not None:
        accumulator.compare_ranks()
    return Parts(
        recipe=recipe,
        task=task,
        accumulator=accumulator,
        stream=stream,
        evaluation=evaluation,
        schedule=schedule,
        settings=settings,
        rate_ratios=ratios,
        data=data,
        decay_shares=_decay_shares(task, optimizer),
        device=device,
        devices=(describe(device),),
        precision=precision,
    )


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)


def _stream(
    config: RunConfig,
    task: Task,
    dataset: Any,  # noqa: ANN401 - any data set
    device: torch.device,
    world: World | None,
) -> Stream:
    return make_stream(
        dataset,
        method(task, "collate_training") or collate_of(task),
        seed=config.run.seed,
        shuffle=getattr(config.data, "shuffle", True),
        num_workers=getattr(config.data, "num_workers", 0),
        epochs=config.run.epochs,
        max_samples=config.run.max_samples,
        tail=config.accumulation.tail,
        device=device,
        share=ALONE if world is None else Share(rank=world.place.rank, ranks=world.size),
    )


def optimizer_for(config: RunConfig, task: Task, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The task's own optimizer, else the recipe's. Raises UsageError."""
    asked = config.optimizer
    own = method(task, "optimizer")
    if own is not None:
        made = own([parameter for parameter in model.parameters() if parameter.requires_grad])
        if not isinstance(made, torch.optim.Optimizer):
            message = f"optimizer() returned {type(made).__name__}. It must return a torch.optim.Optimizer."
            raise UsageError(message)
        return made
    return make_optimizer(
        asked.name,
        groups_of(task, model, asked.weight_decay),
        learning_rate=asked.learning_rate,
        betas=asked.betas,
        eps=asked.eps,
        momentum=asked.momentum,
        nesterov=asked.nesterov,
        embeddings=embeddings_of(model),
    )


def accumulator_for(  # noqa: PLR0913, PLR0917 - all of it is handed on
    config: RunConfig,
    task: Task,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    precision: Precision,
    on_micro_batch: Callable[[MicroBatchMeasured], None],
    on_fact: Callable[[Event], None],
    world: World | None,
) -> Accumulator:
    """The engine for a recipe's model, optimizer and task."""
    return Accumulator(
        model,
        optimizer,
        task.loss,
        weights=method(task, "weights"),
        split=method(task, "split"),
        count=batch_counter(task),
        max_grad_norm=config.optimizer.max_grad_norm,
        clip_value=config.optimizer.clip_value,
        precision=precision,
        device=device,
        non_finite=config.accumulation.non_finite,
        gradient_dtype=config.accumulation.gradient_dtype,
        ema_decay=config.optimizer.ema_decay,
        gradient_norm_every=config.run.gradient_norm_every,
        # A compiled model may record CUDA graphs, which write over the gradients they gave.
        own_gradients=config.run.compile and device.type == "cuda",
        ranks=None if world is None else world.ranks,
        seed_of_step=functools.partial(_seed_of_step, config.run.seed),
        on_micro_batch=on_micro_batch,
        on_fact=on_fact,
    )


def _seed_of_step(seed: int, step: int) -> int:
    """What the micro-batches of a window draw by."""
    return mixed(seed, step, _WINDOW)


def inspect(
    config: RunConfig, task: Task, accumulator: Accumulator, stream: Stream, precision: Precision
) -> list[Warned]:
    """What accumulation will not make exact in this model and loss, tried on the first micro-batch.

    Nothing is changed by it: the sample comes again, and every generator stands as before.
    """
    model, device = accumulator.model, accumulator.device
    size = config.accumulation.micro_batch_size
    found = inspect_model(
        model,
        micro_batch_size=size,
        accumulation_steps=config.accumulation_steps,
        gradient_dtype=config.accumulation.gradient_dtype,
    )
    batch = next(stream.first(size), None)
    if batch is None:
        return found
    with undisturbed(model, device):
        try:
            return found + inspect_loss(
                model,
                task.loss,
                batch.batch,
                split_batch=method(task, "split"),
                device=device,
                precision=precision,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
    free(device)  # the first window meets it again, and makes its micro-batches smaller
    return found


def _rates(
    config: RunConfig, task: Task, optimizer: torch.optim.Optimizer, ranks: int
) -> tuple[Settings, list[float]]:
    """The first settings, and each group's share of the learning rate.

    A task's own optimizer brings its own rate and decay; the recipe's schedule bends them.
    """
    settings = settings_of(config, ranks)
    if method(task, "optimizer") is None:
        return settings, [1.0] * len(optimizer.param_groups)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    peak = max(rates)
    betas = optimizer.param_groups[0].get("betas")
    settings = msgspec.structs.replace(
        settings,
        learning_rate=peak,
        weight_decay=float(optimizer.param_groups[0].get("weight_decay", 0.0)),
        beta2=betas[1] if betas else None,
    )
    return settings, [rate / peak if peak else 1.0 for rate in rates]


def _decay_shares(task: Task, optimizer: torch.optim.Optimizer) -> list[float]:
    """Each group's weight decay over the recipe's, also where that is 0: it may be changed later."""
    decays = [float(group.get("weight_decay", 0.0)) for group in optimizer.param_groups]
    whole = max(decays, default=0.0)
    if whole:
        return [decay / whole for decay in decays]
    if method(task, "optimizer") is not None:  # nobody but the task knows which of its groups decay
        return [0.0] * len(decays)
    return [
        float(getattr(task, "decays_all", True) or any(parameter.dim() >= 2 for parameter in group["params"]))
        for group in optimizer.param_groups
    ]


def _evaluation(
    config: RunConfig,
    task: Task,
    dataset: Any,  # noqa: ANN401 - any data set
    accumulator: Accumulator,
    precision: Precision,
    world: World | None,
) -> Evaluator | None:
    """None where nothing is asked for. Raises UsageError when there is nothing to measure on."""
    if config.evaluation.every_samples is None and not any(
        target.metric not in MEASURED for target in targets_of(config.targets)
    ):
        return None
    if dataset is None:
        message = (
            "evaluation.every_samples is given, but the task has no validation data (or none of one sample)."
            " Give it some, or leave evaluation.every_samples out."
        )
        raise UsageError(message)
    make: Callable[..., Evaluator] = (
        Evaluator if world is None else functools.partial(RankedEvaluator, ranks=world.ranks)
    )
    return make(
        task,
        dataset,
        accumulator,
        seed=config.run.seed,
        precision=precision,
        max_samples=config.evaluation.max_samples,
    )


LossUnit = Literal["token", "sample"]


def loss_unit_of(task: Task) -> str:
    """What the loss's weight counts."""
    return str(getattr(task, "loss_unit", "sample"))
