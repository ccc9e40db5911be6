"""`compile = true`: the model compiled, and how often it had to be compiled again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters


def compile_model(model: torch.nn.Module, **options: Any) -> Callable[..., Any]:  # noqa: ANN401 - torch.compile's own
    """The model's forward compiled in place: names of parameters and the object stay the same.

    Gradients of N micro-batches are right: autograd may give a leaf the compiled backward's own
    output as its first `.grad`, and CUDA-graph trees use that memory again in the next replay. So
    where graphs are recorded the engine copies the first gradient out (`Accumulator(own_gradients=True)`).
    """
    model.compile(**options)
    return model


def graphs_compiled() -> int:
    """Graphs this process has compiled so far; more of them later are recompilations."""
    return int(counters["stats"]["unique_graphs"])
