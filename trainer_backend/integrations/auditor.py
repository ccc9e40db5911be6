"""Measures what a trainer does in the user's own run, and says it in plain words.

    from trainer_backend.integrations.auditor import Auditor
    with Auditor.of(trainer) as audit:        # transformers' Trainer, Lightning's, or an Accelerator
        trainer.train()
    print(audit.report())

Of a loop of one's own: `Auditor(model, optimizer, scheduler, steps=N)`, and `audit.loss(loss, units)`
before each backward.

What a micro-batch takes beside its forward and backward is measured on a CPU. On a GPU it is not: the
host's clock sees work being launched there, not done, and waiting for it would change what is measured;
give `raw_micro_batch_s` then, a bare forward and backward timed apart.

The coefficient of a token is read from the gradient that arrives at the logits:
d total / d logit[target] = coefficient x (p[target] - 1), whatever the trainer did to the loss on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch

from trainer_backend.integrations.audit import AuditFinding, SeenMicroBatch, SeenWindow, judge, report
from trainer_backend.integrations.observing import (
    IGNORED,
    CountSyncs,
    ObservedMicroBatch,
    coefficient_of,
    shifts_labels,
    time_backward,
)


class Auditor:
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

    @classmethod
    def of(cls, trainer: Any, **options: Any) -> Auditor:  # noqa: ANN401 - any library's object
        """Audit a transformers Trainer, a Lightning Trainer, or an Accelerator (once it has prepared).

        `units`: how many units the loss of a micro-batch is a mean over, where logits and labels do not
        tell; by default its samples. Lightning hands it the batch, accelerate what the model's forward
        was given. Raises UsageError for what is unknown.
        """
        from trainer_backend.integrations.auditing import audit_of  # noqa: PLC0415 - it stands on this module

        return audit_of(cls, trainer, **options)

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
        """Begin to see."""
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

    # ------------------------------------------------------------------------------ saying

    def findings(self) -> list[AuditFinding]:
        """What was found, faults first."""
        return judge(
            self.windows, auxiliary_ratio=self._auxiliary_ratio, raw_micro_batch_s=self.raw_micro_batch_s
        )

    def report(self) -> str:
        """What was found, in plain words."""
        return report(self.findings())
