"""Every name that torch does not document and this package uses, each with what stands in for it.

A torch that lacks one is slower or tells less, and never fails at import. Which versions were run is
declared in pyproject.toml, and checked where an interpreter is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import nn

Tensors: TypeAlias = Sequence[torch.Tensor]

if TYPE_CHECKING:
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.dropout import _DropoutNd

    BATCH_NORM = _BatchNorm
    DROPOUT = _DropoutNd
else:
    BATCH_NORM = getattr(nn.modules.batchnorm, "_BatchNorm", nn.BatchNorm1d.__base__)
    """The base of all BatchNorms, SyncBatchNorm included."""
    DROPOUT = getattr(nn.modules.dropout, "_DropoutNd", nn.Dropout.__base__)
    """The base of all dropouts."""


# ------------------------------------------------------------------------------------ the backward

_engine: Final = getattr(torch.autograd.Variable, "_execution_engine", None)
_run_backward: Final = getattr(_engine, "run_backward", None)


def _documented_backward(total: torch.Tensor, seed: torch.Tensor) -> None:
    torch.autograd.backward((total,), (seed,))


def _engine_backward(total: torch.Tensor, seed: torch.Tensor) -> None:
    assert _run_backward is not None
    _run_backward((total,), (seed,), False, False, (), allow_unreachable=True, accumulate_grad=True)


backward_from: Final[Callable[[torch.Tensor, torch.Tensor], None]] = (
    _documented_backward if _run_backward is None else _engine_backward
)
"""Backward of a 0-d total from a seed of its dtype, without the checks of `Tensor.backward`, which cost
15 µs a micro-batch."""


def after_backward(call: Callable[[], None]) -> bool:
    """Have `call` run once at the end of the backward that runs now; False where torch cannot promise it."""
    queue = getattr(_engine, "queue_callback", None)
    if queue is None:
        return False
    queue(call)
    return True


def forget_empty_hooks(parameters: Tensors) -> None:
    """Take the empty dict of hooks off each parameter.

    A handle that is removed leaves it behind, and autograd then asks it at each backward: about 1 µs a
    parameter. Where torch keeps its hooks elsewhere there is nothing to take off.
    """
    for parameter in parameters:
        hooks: Any = getattr(parameter, "_backward_hooks", None)
        if hooks is not None and not hooks:
            parameter._backward_hooks = None  # noqa: SLF001 - torch offers no other way to be rid of it


# ------------------------------------------------------------------------------- many tensors at once


def _each(name: str, alone: Callable[..., Any]) -> Callable[..., Any]:
    """torch's own function over a list of tensors, else `alone` for each of them."""
    found: Callable[..., Any] | None = getattr(torch, name, None)
    return alone if found is None else found


def _mul_alone(tensors: Tensors, factor: float | torch.Tensor) -> None:
    for tensor in tensors:
        tensor.mul_(factor)


def _copy_alone(targets: Tensors, sources: Tensors) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def _lerp_alone(targets: Tensors, ends: Tensors, share: float) -> None:
    for target, end in zip(targets, ends, strict=True):
        target.lerp_(end, share)


def _norm_alone(tensors: Tensors, order: float = 2.0, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    return [torch.linalg.vector_norm(tensor, order, dtype=dtype) for tensor in tensors]


multiply_each: Final = _each("_foreach_mul_", _mul_alone)
"""`multiply_each(tensors, factor)`: in place."""
copy_each: Final = _each("_foreach_copy_", _copy_alone)
"""`copy_each(targets, sources)`: in place."""
lerp_each: Final = _each("_foreach_lerp_", _lerp_alone)
"""`lerp_each(targets, ends, share)`: in place, target + share * (end - target)."""
norm_of_each: Final = _each("_foreach_norm", _norm_alone)
"""`norm_of_each(tensors, order, dtype)`: their norms, 0-d each; as torch's own clipping takes them."""


def update_loss_scale(
    scale: torch.Tensor,
    good_windows: torch.Tensor,
    found_inf: torch.Tensor,
    *,
    growth: float,
    backoff: float,
    interval: int,
) -> None:
    """What `torch.amp.GradScaler` does with its scale after a step, on the device and without waiting."""
    update = getattr(torch, "_amp_update_scale_", None)
    if update is not None:
        update(scale, good_windows, found_inf, growth, backoff, interval)
        return
    failed = found_inf > 0
    due = good_windows + 1 >= interval
    scale.copy_(torch.where(failed, scale * backoff, torch.where(due, scale * growth, scale)))
    good_windows.copy_(torch.where(failed | due, 0, good_windows + 1))


# ------------------------------------------------------------------------------ modules and compiling


def places_of_buffers(model: nn.Module) -> list[dict[str, torch.Tensor | None]]:
    """Each module's dict of buffers, where a forward that assigns a new tensor puts it."""
    return [module._buffers for module in model.modules()]  # noqa: SLF001 - `buffers()` gives copies of the list


def post_accumulate_hooks(parameter: torch.Tensor) -> Iterator[Any]:
    """The hooks that run once a gradient was added; none where torch does not tell."""
    yield from (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()


def compile_in_place(model: nn.Module, **options: Any) -> None:  # noqa: ANN401 - torch.compile's own
    """As `model.compile(**options)`, also for a model whose class is torch's own (nn.Sequential).

    The compiler of torch 2.13 passes over such a module's own call, and nothing is compiled, silently;
    a function of ours around that call is compiled.
    """
    call = getattr(model, "_call_impl", None)
    if call is None or not hasattr(model, "_compiled_call_impl"):
        model.compile(**options)
        return

    def call_model(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a forward's own
        return call(*args, **kwargs)

    model._compiled_call_impl = torch.compile(call_model, **options)  # noqa: SLF001 - where `Module.compile` puts it


def graphs_compiled() -> int:
    """Graphs this process has compiled so far, more of them later being recompilations.

    Always 0 where torch does not count them: then no recompilation is reported.
    """
    try:
        from torch._dynamo.utils import counters  # noqa: PLC0415 - a second to import, and only to compile
    except ImportError:
        return 0
    return int(counters["stats"]["unique_graphs"])
