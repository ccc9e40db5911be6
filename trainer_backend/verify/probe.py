"""One window through an engine, and what the engine then hands to the optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, Final, Protocol

import msgspec
import torch

from trainer_backend.engine import Accumulator
from trainer_backend.engine.optimizers import make_optimizer
from trainer_backend.tasks import Batch
from trainer_backend.verify.compare import dense
from trainer_backend.verify.report import Comparison, ComputePrecision, Fold
from trainer_backend.verify.subject import Subject

_HALF: Final = (torch.bfloat16, torch.float16)
MOST_BACK_OFFS: Final = 20
"""Windows that fp16 may need before its loss scale fits."""


class Engine(Protocol):
    """What is certified: one call of `window` is one optimizer step over all its batches."""

    max_grad_norm: float | None

    def window(self, batches: Iterable[Batch]) -> Any:  # noqa: ANN401 - what a WindowResult has is read
        """Run a window; gives loss, weight, gradient_norm, samples and skipped."""
        ...


class MakeEngine(Protocol):
    """Makes an engine for a model, an optimizer and a loss. `steps` is the N that a user would set."""

    def __call__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Any,  # noqa: ANN401 - a task's loss
        *,
        steps: int,
        **options: Any,  # noqa: ANN401
    ) -> Engine:
        """The engine."""
        ...


def trainers_engine(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Any,  # noqa: ANN401 - a task's loss
    *,
    steps: int,
    **options: Any,  # noqa: ANN401
) -> Engine:
    """The engine that trains: it takes N from the window itself."""
    del steps
    return Accumulator(model, optimizer, loss, non_finite_limit=10**9, **options)


class Seen:
    """What a window did, as the optimizer saw it."""

    def __init__(self) -> None:
        self.gradient: dict[str, torch.Tensor | None] = {}
        self.updates = 0
        self.loss: float | None = None
        self.denominator: float | None = None
        self.gradient_norm: float | None = None
        self.samples = 0
        self.skipped = ""
        self.left_over = False
        """Whether gradients were left in `.grad` behind the window."""
        self.recovered = 0
        """Micro-batches that the engine made smaller for want of memory."""
        self.duration_s = 0.0


class PlannedWindow(msgspec.Struct, frozen=True):
    """One window of the plan."""

    steps: int
    fold: Fold
    sizes: tuple[int, ...]
    precision: ComputePrecision


class Judged(msgspec.Struct, frozen=True):
    """A window that was run and held against the reference: all that a diagnosis needs."""

    window: PlannedWindow
    comparison: Comparison
    seen: Seen
    clip: float
    """What clipping made of the gradient: 1 where nothing was clipped."""


class _OutOfMemoryOnce:
    """A loss that runs out of memory once, when a micro-batch of the window has left its gradient."""

    def __init__(self, loss: Any) -> None:  # noqa: ANN401 - a task's loss
        self.armed = False
        self._loss = loss
        self._calls = 0

    def __call__(self, model: torch.nn.Module, batch: Batch) -> Any:  # noqa: ANN401 - a task's terms
        given = self._loss(model, batch)
        if self.armed:
            self._calls += 1
            # Gradients of half parameters gather elsewhere (in masters): there it is the second call.
            some = any(value.grad is not None for value in model.parameters())
            if some or (self._calls > 1 and any(value.dtype in _HALF for value in model.parameters())):
                self.armed = False
                raise torch.OutOfMemoryError("simulated, to see whether the window is replayed exactly")
        return given


def run_window(
    make: MakeEngine,
    subject: Subject,
    batches: Sequence[Batch],
    precision: ComputePrecision,
    *,
    steps: int,
    before: Sequence[Batch] = (),
    max_grad_norm: float | None = None,
    out_of_memory: bool = False,
) -> Seen:
    """A fresh engine runs a window of other samples, then the window that counts."""
    model = subject.model(precision)
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    # Rate 0: the weights stay as they are, so that every window is at the same ones.
    optimizer = make_optimizer("sgd", list(parameters.values()), learning_rate=0.0)
    recorder = _Recorder(tuple(parameters), optimizer)
    loss = _OutOfMemoryOnce(subject.loss) if out_of_memory else subject.loss
    engine = make(
        model, optimizer, loss, steps=steps, precision="fp32" if precision == "fp64" else precision,
        max_grad_norm=None, device=subject.place(precision), gradient_dtype=subject.gradient_dtype,
        gradient_norm_every=0,
        **{name: method for name in ("weights", "split", "count")
           if callable(method := getattr(subject.task, name, None))},
    )  # fmt: skip
    seen = recorder.seen
    started = perf_counter()
    try:
        with subject.controlled(model, precision):
            if before:
                engine.window(before)
            engine.max_grad_norm = max_grad_norm
            recorder.on = True
            if isinstance(loss, _OutOfMemoryOnce):
                loss.armed = True
            _read_result(seen, _window(engine, batches))
    except torch.OutOfMemoryError:
        if not out_of_memory:
            raise
        seen.skipped = "out of memory"  # the simulated one: this engine does not recover
    finally:
        recorder.remove()
    seen.duration_s = perf_counter() - started
    seen.left_over = any(
        value.grad is not None and bool(value.grad.any())
        for value in (*recorder.leaves(), *parameters.values())
    )
    return seen


def _window(engine: Engine, batches: Sequence[Batch]) -> Any:  # noqa: ANN401 - an engine's own result
    """One window; in fp16 again until the loss scale fits."""
    result = engine.window(batches)
    for _ in range(MOST_BACK_OFFS):
        if result.skipped != "loss-scale":
            break
        result = engine.window(batches)
    return result


class _Recorder:
    """Notes what the optimizer is handed at each of its steps, while `on`."""

    def __init__(self, names: Sequence[str], optimizer: torch.optim.Optimizer) -> None:
        self.on = False
        self.seen = Seen()
        self._names = names
        self._optimizer = optimizer
        self._handle = optimizer.register_step_pre_hook(self._record)

    def leaves(self) -> list[torch.Tensor]:
        """What the optimizer updates, in the parameters' order (their masters where they have some)."""
        return [value for group in self._optimizer.param_groups for value in group["params"]]

    def remove(self) -> None:
        """Take the hook off."""
        self._handle.remove()

    def _record(self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        if not self.on:
            return
        self.seen.updates += 1
        scale = getattr(optimizer, "grad_scale", None)
        for name, leaf in zip(self._names, self.leaves(), strict=True):
            gradient = None if leaf.grad is None else dense(leaf.grad).clone()
            if gradient is not None and scale is not None:
                gradient /= dense(scale).to(gradient.device)
            earlier = self.seen.gradient.get(name)
            if earlier is not None and gradient is not None:
                gradient += earlier  # an engine that steps more than once a window
            self.seen.gradient[name] = gradient


def _read_result(seen: Seen, result: Any) -> None:  # noqa: ANN401 - an engine's own
    seen.loss = result.loss
    seen.denominator = result.weight
    seen.gradient_norm = result.gradient_norm
    seen.samples = result.samples
    seen.skipped = result.skipped
    seen.recovered = len(getattr(result, "out_of_memory", ()))


def close_enough(got: float | None, wanted: float | None, limit: float) -> bool:
    """Whether a reported number is right."""
    if got is None or wanted is None:
        return got is wanted
    return math.isfinite(got) and abs(got - wanted) <= limit * max(abs(wanted), 1e-30)
