"""`compile = true`: the model is compiled where it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainer_backend.engine.private_api import compile_in_place


def compile_model(model: torch.nn.Module, **options: Any) -> Callable[..., Any]:  # noqa: ANN401 - torch.compile's own
    """The model's forward compiled in place: names of parameters and the object stay the same.

    Gradients of N micro-batches are right: autograd may give a leaf the compiled backward's own
    output as its first `.grad`, and CUDA-graph trees use that memory again in the next replay. So
    where graphs are recorded the engine copies the first gradient out (`Accumulator(own_gradients=True)`).
    """
    compile_in_place(model, **options)
    return model
