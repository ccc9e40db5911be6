"""What the auditor sees of a run: its windows, and of each micro-batch coefficients, host waits and times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_backend.engine.private_api import after_backward
from trainer_backend.integrations.audit import SeenMicroBatch, SeenWindow

IGNORED: Final = -100
SURE: Final = 0.999
"""Targets that are likelier than this have a gradient too small to read a coefficient from."""


class ObservedMicroBatch:
    """What is being seen of one micro-batch."""

    def __init__(self, units: int, started_at: float, forward_s: float | None, own_s: float) -> None:
        self.units = units
        self.forward_s = forward_s
        self.backward_s: float | None = None
        self.own_s = own_s
        """What the auditor had spent on itself before."""
        self.coefficient = 0.0
        self.auxiliary: float | None = None
        self.host_syncs: int | None = None
        self.started_at = started_at

    @property
    def bare_s(self) -> float | None:
        """Its forward and backward alone."""
        if self.forward_s is None or self.backward_s is None:
            return None
        return self.forward_s + self.backward_s


class CountSyncs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts reads of device values by the host: each waits for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.looking = False
        """Whether it is the auditor itself that reads."""

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - any operator
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - what the operator gives
        del types
        if func is torch.ops.aten._local_scalar_dense.default and not self.looking:  # noqa: SLF001 - its name
            self.count += 1
        return func(*args, **(kwargs or {}))


def time_backward(micro: ObservedMicroBatch, gradient: torch.Tensor) -> None:
    """From the first gradient that arrives to the end of the whole backward, on a CPU."""
    if gradient.device.type != "cpu":
        return
    began = time.perf_counter()

    def ended() -> None:
        micro.backward_s = time.perf_counter() - began

    after_backward(ended)


def shifts_labels(module: torch.nn.Module) -> bool:
    """Whether the model's loss is of each token's successor."""
    return getattr(getattr(module, "loss_function", None), "__name__", "") == "ForCausalLMLoss"


def coefficient_of(gradient: torch.Tensor, probabilities: torch.Tensor, targets: torch.Tensor) -> float:
    """The usual coefficient of a valid target's loss, from the logits' gradient; 0 where none can be read."""
    if targets.is_floating_point():  # a regression has no class whose share of the gradient is known
        return 0.0
    flat = targets.flatten()
    valid = flat != IGNORED
    chosen = flat[valid].unsqueeze(1)
    if not len(chosen):
        return 0.0
    right = probabilities.flatten(0, -2)[valid].gather(1, chosen).squeeze(1)
    arrived = gradient.float().flatten(0, -2)[valid].gather(1, chosen).squeeze(1)
    readable = right < SURE
    return float((arrived[readable] / (right[readable] - 1)).median()) if bool(readable.any()) else 0.0


class WindowObserver:
    """Sees windows from `start` to `stop`. `steps` is N, or a function that gives it."""

    def __init__(
        self,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: Any = None,  # noqa: ANN401 - any schedule
        *,
        steps: int | Callable[[], int] = 1,
        count_syncs: bool = False,
    ) -> None:
        self.model = model
        """Whose gradients are looked at; None until it is known."""
        self.labels: torch.Tensor | None = None
        """Of the micro-batch, where the model is not given them."""
        self._steps = steps if callable(steps) else lambda: steps
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._handles: list[Any] = []
        self._undo: list[Callable[[], None]] = []
        self._open: list[ObservedMicroBatch] = []
        self._stale = False
        self.saw_logits = False
        """Whether micro-batches are seen at their logits, so that their loss need not be told."""
        self._forward_at: float | None = None
        self._own_s = 0.0
        self._moves = 0
        self._syncs = CountSyncs() if count_syncs else None
        self.windows: list[SeenWindow] = []
        self.raw_micro_batch_s: float | None = None
        config = getattr(model, "config", None)
        self._auxiliary_ratio = float(getattr(config, "router_aux_loss_coef", 0.0) or 0.0) or None

    # ---------------------------------------------------------------------- start and stop

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        del kind, error, where
        self.stop()

    def start(self) -> None:
        """Place the hooks that observe the trainer's windows."""
        if self.model is not None:
            self._handles.append(self.model.register_forward_pre_hook(self._forwards))
            self._handles.append(self.model.register_forward_hook(self._forwarded, with_kwargs=True))
        if self._syncs is not None:
            self._syncs.__enter__()  # type: ignore[no-untyped-call]
        if self._optimizer is not None:
            self.attach(self._optimizer, self._scheduler)

    def on_stop(self, undo: Callable[[], None]) -> None:
        """Have `undo` called when the audit stops."""
        self._undo.append(undo)

    def attach(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,  # noqa: ANN401 - any schedule
        *,
        runs_closure: bool = False,
    ) -> None:
        """See an optimizer's steps and a schedule's moves.

        `runs_closure`: the window's last micro-batch runs within the optimizer's step.
        """
        # Some libraries wrap the optimizer; the hooks are on the one that steps.
        inner = getattr(optimizer, "optimizer", optimizer)
        if runs_closure:
            self._handles.append(inner.register_step_post_hook(lambda *_: self._stepped(with_update=True)))
        else:
            self._handles.append(inner.register_step_pre_hook(lambda *_: self._stepped()))
        inner_schedule = getattr(scheduler, "scheduler", scheduler)
        if inner_schedule is None:
            return
        self._scheduler = inner_schedule
        move = inner_schedule.step

        def moved(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - the schedule's own
            self._moves += 1
            return move(*args, **options)

        inner_schedule.step = moved
        self._undo.append(lambda: setattr(inner_schedule, "step", move))

    def stop(self) -> None:
        """See no more, and leave nothing behind."""
        for handle in self._handles:
            handle.remove()
        for undo in self._undo:
            undo()
        if self._syncs is not None:
            self._syncs.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._handles.clear()
        self._undo.clear()

    # ------------------------------------------------------------------------------ seeing

    def _begin(self, units: int, forward_s: float | None) -> ObservedMicroBatch:
        self._count()
        micro = ObservedMicroBatch(units, time.perf_counter(), forward_s, self._own_s)
        if not self._open:
            with self._looking():
                grads = (parameter.grad for parameter in self._parameters())
                self._stale = any(grad is not None and bool(grad.any()) for grad in grads)
        self._open.append(micro)
        return micro

    def _parameters(self) -> Iterator[torch.nn.Parameter]:
        return iter(()) if self.model is None else self.model.parameters()

    def _count(self) -> None:
        """The host's waits since the last micro-batch began are that one's."""
        if self._syncs is not None:
            if self._open:
                self._open[-1].host_syncs = self._syncs.count
            self._syncs.count = 0

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """The auditor's own reads and time are not counted."""
        began = time.perf_counter()
        if self._syncs is not None:
            self._syncs.looking = True
        yield
        if self._syncs is not None:
            self._syncs.looking = False
        self._own_s += time.perf_counter() - began

    def loss(self, loss: torch.Tensor, units: int, *, forward_s: float | None = None) -> torch.Tensor:
        """The next micro-batch's mean loss over `units`, before the trainer scales it; gives it back.

        `forward_s`: what it took to make, where the model's own call does not tell.
        """
        micro = self._begin(units, self._forward_s() if forward_s is None else forward_s)

        def arrived(gradient: torch.Tensor) -> None:
            with self._looking():
                micro.coefficient += float(gradient) / units if units else 0.0
            time_backward(micro, gradient)

        loss.register_hook(arrived)  # type: ignore[no-untyped-call]
        return loss

    def _forwards(self, module: torch.nn.Module, args: Any) -> None:  # noqa: ANN401
        """A forward begins."""
        del args
        if module.training and self._forward_at is None:
            self._forward_at = time.perf_counter()

    def _forward_s(self) -> float | None:
        """Since the micro-batch's forward began."""
        began, self._forward_at = self._forward_at, None
        return None if began is None else time.perf_counter() - began

    def _forwarded(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        options: dict[str, Any],
        output: Any,  # noqa: ANN401
    ) -> None:
        del args
        labels = options.get("labels", self.labels)
        logits = getattr(output, "logits", None)
        if not module.training or labels is None or logits is None or not logits.requires_grad:
            return
        forward_s = self._forward_s()
        with self._looking():
            shifts = logits.ndim == labels.ndim + 1 and labels.ndim > 1 and shifts_labels(module)
            targets = torch.nn.functional.pad(labels[..., 1:], (0, 1), value=IGNORED) if shifts else labels
            units = int((targets != IGNORED).sum())
        micro = self._begin(units, forward_s)
        self.saw_logits = True
        with self._looking():
            probabilities = logits.detach().float().softmax(-1)

        def arrived(gradient: torch.Tensor) -> None:
            with self._looking():
                micro.coefficient = coefficient_of(gradient, probabilities, targets)
            time_backward(micro, gradient)

        logits.register_hook(arrived)
        auxiliary = output.get("aux_loss") if hasattr(output, "get") else None
        if auxiliary is not None and getattr(auxiliary, "requires_grad", False):

            def auxiliary_arrived(gradient: torch.Tensor) -> None:
                with self._looking():
                    micro.auxiliary = float(gradient)

            auxiliary.register_hook(auxiliary_arrived)

    def _stepped(self, *, with_update: bool = False) -> None:
        if not self._open:
            return
        self._count()
        starts = [(micro.started_at, micro.own_s) for micro in self._open]
        ends = [*starts[1:], (time.perf_counter(), self._own_s)]
        last = self._open[-1] if with_update else None  # the update is no overhead, and cannot be told apart
        seen = tuple(
            SeenMicroBatch(
                units=micro.units,
                coefficient=micro.coefficient,
                auxiliary=micro.auxiliary,
                host_syncs=micro.host_syncs,
                duration_s=0.0 if micro is last else (at - micro.started_at) - (own_s - micro.own_s),
                bare_s=micro.bare_s,
            )
            for micro, (at, own_s) in zip(self._open, ends, strict=True)
        )
        moves = None if self._scheduler is None else self._moves
        self.windows.append(
            SeenWindow(micro_batches=seen, asked=self._steps(), stale=self._stale, schedule_steps=moves)
        )
        self._open, self._moves = [], 0
