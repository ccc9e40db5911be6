"""What of a run is in a checkpoint: taken out of the live objects, and put back into them."""

from __future__ import annotations

import json
import random
import sys
from typing import Any, Final

import msgspec
import torch

from trainer_backend.data.order import DataPosition
from trainer_backend.engine import Accumulator, load_optimizer_state, optimizer_state
from trainer_backend.errors import GradaccError
from trainer_backend.settings import Settings
from trainer_backend.trainer.checkpoint import CheckpointError, CheckpointMisfitError, Saved

_MISSHAPEN: Final = (
    LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError,
    msgspec.ValidationError,
)  # fmt: skip
"""What libraries raise for a state of another shape than they wrote."""


class Standing(msgspec.Struct, frozen=True):
    """Where a run stands besides its tensors."""

    settings: Settings
    position: DataPosition
    horizon_samples: int | None
    recipe: dict[str, Any]
    """The settings that the recipe gave when the checkpoint was saved, by key."""
    journal: tuple[int, int] | None = None
    """Attempt and sequence number up to which the journal's facts are in the checkpoint; None: not known."""


def take_out(accumulator: Accumulator, standing: Standing) -> Saved:
    """Everything that the next window depends on."""
    tensors, engine = accumulator.state_dict()
    optimizer_tensors, optimizer = optimizer_state(accumulator.optimizer)
    training = {f"engine.{name}": tensor for name, tensor in tensors.items()}
    training |= {f"optimizer.{name}": tensor for name, tensor in optimizer_tensors.items()}
    training |= _generators(accumulator.device)
    training |= {f"own.{own.path}": own.packed() for own in accumulator.own_generators()}
    state = {
        "step": accumulator.step,
        "samples_seen": accumulator.samples_seen,
        "tokens_seen": accumulator.tokens_seen,
        "engine": engine,
        "optimizer": optimizer,
        "standing": msgspec.to_builtins(standing),
        "python_random": random.getstate(),
        "numpy_random": _numpy_state(),
        "torch": torch.__version__,
        "model_extra": _extra_state(accumulator.model),
    }
    return Saved(_model_state(accumulator.model), training, state)


def _model_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


def _extra_state(model: torch.nn.Module) -> dict[str, Any]:
    """What modules save through `get_extra_state`, by key: plain data, as JSON has it."""
    return {name: value for name, value in model.state_dict().items() if not isinstance(value, torch.Tensor)}


def check_extra_state(model: torch.nn.Module) -> None:
    """Raises GradaccError for an extra state that a checkpoint without pickle cannot hold."""
    for name, value in _extra_state(model).items():
        try:
            same = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            message = (
                f"{name}: get_extra_state gives {type(value).__name__}, which checkpoints cannot hold. Return"
                " numbers, text, lists and dicts with text keys, or keep tensors in buffers."
            )
            raise GradaccError(message)


def put_back(accumulator: Accumulator, saved: Saved) -> Standing:
    """Make the run stand where `saved` was taken. Raises CheckpointError.

    Nothing is changed then that a later `put_back` of a good checkpoint does not set.
    """
    check_fit(accumulator.model, saved.model)
    parts: dict[str, dict[str, torch.Tensor]] = {"engine": {}, "optimizer": {}, "generator": {}, "own": {}}
    for name, tensor in saved.training.items():
        kind, _, rest = name.partition(".")
        parts.setdefault(kind, {})[rest] = tensor
    state = saved.state
    try:
        accumulator.model.load_state_dict(saved.model | state.get("model_extra", {}))
        load_optimizer_state(accumulator.optimizer, parts["optimizer"], state["optimizer"])
        accumulator.load_state_dict(parts["engine"], state["engine"])
        _restore_generators(parts["generator"], state, accumulator.device)
        for own in accumulator.own_generators():
            if own.path in parts["own"]:  # a checkpoint of an older version has none
                own.unpack(parts["own"][own.path])
        return msgspec.convert(state["standing"], Standing)
    except _MISSHAPEN as error:
        why = " ".join(str(error).split()) or type(error).__name__
        message = f"The checkpoint of step {state.get('step')} does not fit this run: {why}."
        raise CheckpointError(message) from error


def check_fit(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Name the first parameter that does not fit. Raises CheckpointMisfitError."""
    own = _model_state(model)
    for name in [*own, *tensors]:
        if name not in tensors:
            message = f"The checkpoint does not fit the recipe: it has no {name}, which the model has."
        elif name not in own:
            message = f"The checkpoint does not fit the recipe: it has {name}, which the model has not."
        elif own[name].shape != tensors[name].shape:
            message = (
                f"The checkpoint does not fit the recipe: {name} has shape {tuple(tensors[name].shape)} there"
                f" and {tuple(own[name].shape)} in the model."
            )
        else:
            continue
        remedy = " Resume with the recipe and the model that the run was started with, or start a new run."
        raise CheckpointMisfitError(message + remedy)


def _generators(device: torch.device) -> dict[str, torch.Tensor]:
    states = {"generator.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["generator.cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states["generator.mps"] = torch.mps.get_rng_state()
    return states


def _restore_generators(states: dict[str, torch.Tensor], plain: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    elif device.type == "mps" and "mps" in states:
        torch.mps.set_rng_state(states["mps"])
    version, numbers, gauss = plain["python_random"]
    random.setstate((version, tuple(numbers), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and plain["numpy_random"] is not None:
        name, keys, position, has_gauss, cached = plain["numpy_random"]
        keys_array = numpy.array(keys, dtype=numpy.uint32)
        numpy.random.set_state((name, keys_array, position, has_gauss, cached))


def _numpy_state() -> list[Any] | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    name, keys, position, has_gauss, cached = numpy.random.get_state()
    return [name, keys.tolist(), int(position), int(has_gauss), float(cached)]
