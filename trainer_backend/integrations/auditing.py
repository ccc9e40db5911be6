"""How the auditor sees the micro-batches of each library; `Auditor.of` chooses."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from trainer_backend.engine.batches import size
from trainer_backend.errors import UsageError
from trainer_backend.integrations.libraries import package_of
from trainer_backend.integrations.observing import WindowObserver

Observer = TypeVar("Observer", bound=WindowObserver)


def audit_of(kind: type[Observer], trainer: Any, **options: Any) -> Observer:  # noqa: ANN401 - any library's object
    """An auditor of a library's object. Raises UsageError for what is unknown."""
    match package_of(trainer):
        case "transformers":
            return _of_transformers(kind, trainer, **options)
        case "lightning" | "pytorch_lightning":
            return _of_lightning(kind, trainer, **options)
        case "accelerate":
            return _of_accelerate(kind, trainer, **options)
        case _:
            message = (
                f"{type(trainer).__name__} is none of transformers' Trainer, Lightning's Trainer and "
                "accelerate's Accelerator. In your own loop, use Auditor(model, optimizer, steps=N), and "
                "audit.loss(loss, units) before each backward."
            )
            raise UsageError(message)


# ----------------------------------------------------------------------------- transformers


def _of_transformers(kind: type[Observer], trainer: Any, **options: Any) -> Observer:  # noqa: ANN401
    """Its optimizer and schedule are seen once `train()` makes them."""
    import transformers  # noqa: PLC0415 - the caller has it

    audit = kind(trainer.model, steps=lambda: int(trainer.args.gradient_accumulation_steps), **options)

    class Late(transformers.TrainerCallback):  # type: ignore[misc]  # the library ships no types
        def on_train_begin(self, *_: Any, **more: Any) -> None:  # noqa: ANN401 - the library's own
            audit.attach(more["optimizer"], more.get("lr_scheduler"))

    compute = trainer.compute_loss

    def compute_loss(model: Any, inputs: Any, *args: Any, **more: Any) -> Any:  # noqa: ANN401
        audit.labels = inputs.get("labels")  # a loss of the user's own keeps them from the model
        return compute(model, inputs, *args, **more)

    trainer.compute_loss = compute_loss
    audit.on_stop(lambda: setattr(trainer, "compute_loss", compute))
    late = Late()
    trainer.add_callback(late)
    audit.on_stop(lambda: trainer.remove_callback(late))
    return audit


# -------------------------------------------------------------------------------- Lightning


def _of_lightning(
    kind: type[Observer],
    trainer: Any,  # noqa: ANN401 - Lightning's Trainer
    *,
    units: Callable[[Any], int] = size,
    **options: Any,  # noqa: ANN401
) -> Observer:
    """What `training_step` returns is the loss before the library scales it; it is seen at its backward."""
    audit = kind(None, steps=lambda: int(trainer.accumulate_grad_batches), **options)
    package = type(trainer).__module__.partition(".")[0]
    library = importlib.import_module("lightning.pytorch" if package == "lightning" else package)
    callback = type("GradaccAuditCallback", (_LightningAudit, library.Callback), {})(audit, units)
    trainer.callbacks.append(callback)
    audit.on_stop(lambda: trainer.callbacks.remove(callback))
    return audit


class _LightningAudit:
    """The callback's side. Gradients are zeroed between `training_step` and its backward."""

    def __init__(self, audit: WindowObserver, units: Callable[[Any], int]) -> None:
        super().__init__()
        self._audit = audit
        self._units = units
        self._step: Callable[..., Any] | None = None
        self._made: tuple[torch.Tensor, int, float] | None = None

    def on_train_start(self, trainer: Any, module: Any) -> None:  # noqa: ANN401
        """Everything is made by now."""
        if not module.automatic_optimization:
            raise UsageError(
                "The auditor sees Lightning's automatic optimization. In a manual one use "
                "Auditor(model, optimizer, steps=N), and audit.loss(loss, units) before manual_backward."
            )
        audit, step = self._audit, module.training_step
        audit.model = module
        each_step = [entry.scheduler for entry in trainer.lr_scheduler_configs if entry.interval == "step"]
        audit.attach(trainer.optimizers[0], next(iter(each_step), None), runs_closure=True)

        @functools.wraps(step)  # Lightning looks at its parameters
        def training_step(batch: Any, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - the user's own
            began = time.perf_counter()
            returned = step(batch, *args, **more)
            loss = returned["loss"] if isinstance(returned, dict) else returned
            if loss is not None:
                self._made = (loss, self._units(batch), time.perf_counter() - began)
            return returned

        module.training_step = training_step
        audit.on_stop(lambda: delattr(module, "training_step"))

    def on_before_backward(self, trainer: Any, module: Any, loss: torch.Tensor) -> None:  # noqa: ANN401
        """Gradients are zeroed, and the backward comes."""
        del trainer, module, loss
        if self._made is not None:
            made, units, forward_s = self._made
            self._made = None
            self._audit.loss(made, units, forward_s=forward_s)


# ------------------------------------------------------------------------------- accelerate


def _of_accelerate(
    kind: type[Observer],
    accelerator: Any,  # noqa: ANN401 - an Accelerator
    *,
    units: Callable[..., int] = lambda *args, **more: size((*args, *more.values())),
    **options: Any,  # noqa: ANN401
) -> Observer:
    """What `backward` is given is the loss before the library scales it."""
    models, optimizers = accelerator._models, accelerator._optimizers  # noqa: SLF001 - it has no public list
    if not models or not optimizers:
        raise UsageError("The Accelerator has no model and optimizer yet. Audit it after prepare(…).")
    schedule = next(iter(accelerator._schedulers), None)  # noqa: SLF001 - likewise
    audit = kind(
        models[0], optimizers[0], schedule,
        steps=lambda: int(accelerator.gradient_accumulation_steps), **options,
    )  # fmt: skip
    given = 0

    def forwards(module: torch.nn.Module, args: Any, more: Any) -> None:  # noqa: ANN401 - any model's
        nonlocal given
        if module.training:
            given = units(*args, **more)

    handle = models[0].register_forward_pre_hook(forwards, with_kwargs=True)
    audit.on_stop(handle.remove)
    backward = accelerator.backward

    def watched(loss: torch.Tensor, **more: Any) -> None:  # noqa: ANN401 - the library's own
        nonlocal given
        if given and not audit.saw_logits:
            audit.loss(loss, given)
        given = 0
        backward(loss, **more)

    accelerator.backward = watched
    audit.on_stop(lambda: setattr(accelerator, "backward", backward))
    return audit
