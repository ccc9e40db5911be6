"""Measures what a trainer does in the user's own run, and says it in plain words.

    from trainer_backend.integrations.auditor import Auditor
    with Auditor.of(trainer) as audit:        # transformers' Trainer
        trainer.train()
    print(audit.report())

Of a loop of one's own: `Auditor(model, optimizer, scheduler, steps=N)`, and `audit.loss(loss, units)`
before each backward. The coefficient of a token is read from the gradient that arrives at the logits:
d total / d logit[target] = coefficient x (p[target] - 1), whatever the trainer did to the loss on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_backend.integrations.audit import Finding, SeenMicroBatch, SeenWindow, judge, report

IGNORED: Final = -100
SURE: Final = 0.999
"""Targets that are likelier than this have a gradient too small to read a coefficient from."""


class _Micro:
    """What is being seen of one micro-batch."""

    def __init__(self, units: int, started_at: float) -> None:
        self.units = units
        self.coefficient = 0.0
        self.auxiliary: float | None = None
        self.host_syncs: int | None = None
        self.started_at = started_at


class _CountSyncs(TorchDispatchMode):  # type: ignore[no-untyped-call]
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


class Auditor:
    """Sees windows from `start` to `stop`. `steps` is N, or a function that gives it."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: Any = None,  # noqa: ANN401 - any schedule
        *,
        steps: int | Callable[[], int] = 1,
        count_syncs: bool = False,
    ) -> None:
        self._model = model
        self._steps = steps if callable(steps) else lambda: steps
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._handles: list[Any] = []
        self._undo: list[Callable[[], None]] = []
        self._open: list[_Micro] = []
        self._stale = False
        self._labels: torch.Tensor | None = None
        self._moves = 0
        self._syncs = _CountSyncs() if count_syncs else None
        self.windows: list[SeenWindow] = []
        self.raw_micro_batch_s: float | None = None
        config = getattr(model, "config", None)
        self._auxiliary_ratio = float(getattr(config, "router_aux_loss_coef", 0.0) or 0.0) or None

    @classmethod
    def of(cls, trainer: Any, **options: Any) -> Auditor:  # noqa: ANN401 - a transformers Trainer
        """Audit a transformers Trainer; its optimizer and schedule are seen once `train()` makes them."""
        import transformers  # noqa: PLC0415 - the caller has it

        audit = cls(trainer.model, steps=lambda: int(trainer.args.gradient_accumulation_steps), **options)

        class Late(transformers.TrainerCallback):  # type: ignore[misc]  # the library ships no types
            def on_train_begin(self, *_: Any, **more: Any) -> None:  # noqa: ANN401 - the library's own
                audit.attach(more["optimizer"], more.get("lr_scheduler"))

        compute = trainer.compute_loss

        def compute_loss(model: Any, inputs: Any, *args: Any, **more: Any) -> Any:  # noqa: ANN401
            audit._labels = inputs.get("labels")  # a loss of the user's own keeps them from the model
            return compute(model, inputs, *args, **more)

        trainer.compute_loss = compute_loss
        audit._undo.append(lambda: setattr(trainer, "compute_loss", compute))
        late = Late()
        trainer.add_callback(late)
        audit._undo.append(lambda: trainer.remove_callback(late))
        return audit

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
        self._handles.append(self._model.register_forward_hook(self._forwarded, with_kwargs=True))
        if self._syncs is not None:
            self._syncs.__enter__()  # type: ignore[no-untyped-call]
        if self._optimizer is not None:
            self.attach(self._optimizer, self._scheduler)

    def attach(self, optimizer: torch.optim.Optimizer, scheduler: Any = None) -> None:  # noqa: ANN401
        """See an optimizer's steps and a schedule's moves."""
        # Some libraries wrap the optimizer; the hooks are on the one that steps.
        inner = getattr(optimizer, "optimizer", optimizer)
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

    def _begin(self, units: int) -> _Micro:
        self._count()
        micro = _Micro(units, time.perf_counter())
        if not self._open:
            with self._looking():
                grads = (parameter.grad for parameter in self._model.parameters())
                self._stale = any(grad is not None and bool(grad.any()) for grad in grads)
        self._open.append(micro)
        return micro

    def _count(self) -> None:
        """The host's waits since the last micro-batch began are that one's."""
        if self._syncs is not None:
            if self._open:
                self._open[-1].host_syncs = self._syncs.count
            self._syncs.count = 0

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """The auditor's own reads are not counted."""
        if self._syncs is not None:
            self._syncs.looking = True
        yield
        if self._syncs is not None:
            self._syncs.looking = False

    def loss(self, loss: torch.Tensor, units: int) -> torch.Tensor:
        """The next micro-batch's mean loss over `units`, before the trainer scales it; gives it back."""
        micro = self._begin(units)

        def arrived(gradient: torch.Tensor) -> None:
            with self._looking():
                micro.coefficient += float(gradient) / units if units else 0.0

        loss.register_hook(arrived)  # type: ignore[no-untyped-call]
        return loss

    def _forwarded(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        options: dict[str, Any],
        output: Any,  # noqa: ANN401
    ) -> None:
        del args
        labels = options.get("labels", self._labels)
        logits = getattr(output, "logits", None)
        if not module.training or labels is None or logits is None or not logits.requires_grad:
            return
        shifts = logits.ndim == labels.ndim + 1 and labels.ndim > 1 and _shifts(module)
        targets = torch.nn.functional.pad(labels[..., 1:], (0, 1), value=IGNORED) if shifts else labels
        micro = self._begin(int((targets != IGNORED).sum()))
        probabilities = logits.detach().float().softmax(-1)

        def arrived(gradient: torch.Tensor) -> None:
            with self._looking():
                micro.coefficient = _coefficient(gradient, probabilities, targets)

        logits.register_hook(arrived)
        auxiliary = output.get("aux_loss") if hasattr(output, "get") else None
        if auxiliary is not None and getattr(auxiliary, "requires_grad", False):

            def auxiliary_arrived(gradient: torch.Tensor) -> None:
                with self._looking():
                    micro.auxiliary = float(gradient)

            auxiliary.register_hook(auxiliary_arrived)

    def _stepped(self) -> None:
        if not self._open:
            return
        self._count()
        at = time.perf_counter()
        ends = [micro.started_at for micro in self._open[1:]] + [at]
        seen = tuple(
            SeenMicroBatch(
                units=micro.units,
                coefficient=micro.coefficient,
                auxiliary=micro.auxiliary,
                host_syncs=micro.host_syncs,
                duration_s=end - micro.started_at,
            )
            for micro, end in zip(self._open, ends, strict=True)
        )
        moves = None if self._scheduler is None else self._moves
        self.windows.append(
            SeenWindow(micro_batches=seen, asked=self._steps(), stale=self._stale, schedule_steps=moves)
        )
        self._open, self._moves = [], 0

    # ------------------------------------------------------------------------------ saying

    def findings(self) -> list[Finding]:
        """What was found, faults first."""
        return judge(
            self.windows, auxiliary_ratio=self._auxiliary_ratio, raw_micro_batch_s=self.raw_micro_batch_s
        )

    def report(self) -> str:
        """What was found, in plain words."""
        return report(self.findings())


def _shifts(module: torch.nn.Module) -> bool:
    return getattr(getattr(module, "loss_function", None), "__name__", "") == "ForCausalLMLoss"


def _coefficient(gradient: torch.Tensor, probabilities: torch.Tensor, targets: torch.Tensor) -> float:
    """The usual coefficient of a valid target's loss, from the logits' gradient; 0 where none can be read."""
    flat = targets.flatten()
    valid = flat != IGNORED
    chosen = flat[valid].unsqueeze(1)
    if not len(chosen):
        return 0.0
    right = probabilities.flatten(0, -2)[valid].gather(1, chosen).squeeze(1)
    arrived = gradient.float().flatten(0, -2)[valid].gather(1, chosen).squeeze(1)
    readable = right < SURE
    return float((arrived[readable] / (right[readable] - 1)).median()) if bool(readable.any()) else 0.0
