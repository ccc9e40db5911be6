"""Keep your own trainer: two lines make a run directory and a journal, so that the window can watch it.

    from trainer_backend.integrations import watch
    watch(trainer)                      # transformers' Trainer, before trainer.train()

`watch` also takes a Lightning Trainer and an accelerate Accelerator; `Recorder` serves a plain loop.
N is changed live where a library's own counting lets the next window be exact, and refused with the
reason where it does not. Imports no library before it is handed an object of it.
"""

from __future__ import annotations

from typing import Any

from trainer_backend.errors import UsageError
from trainer_backend.integrations.libraries import package_of
from trainer_backend.integrations.recorder import Recorder

__all__ = ["Recorder", "watch"]


def watch(trainer: Any, **options: Any) -> Any:  # noqa: ANN401 - any library's object
    """Watch `trainer` as a run; `name` is what the run is called. Raises UsageError for what is unknown.

    Gives the object whose `close()` ends the run early; an accelerate loop calls it itself.
    """
    package = package_of(trainer)
    if package == "transformers":
        from trainer_backend.integrations.transformers_trainer import watch_transformers  # noqa: PLC0415

        return watch_transformers(trainer, **options)
    if package in ("lightning", "pytorch_lightning"):
        from trainer_backend.integrations.lightning_trainer import watch_lightning  # noqa: PLC0415

        return watch_lightning(trainer, **options)
    if package == "accelerate":
        from trainer_backend.integrations.accelerate_loop import watch_accelerate  # noqa: PLC0415

        return watch_accelerate(trainer, **options)
    message = (
        f"{type(trainer).__name__} is none of transformers' Trainer, Lightning's Trainer and accelerate's"
        " Accelerator. For a loop of your own, use trainer_backend.integrations.recorder.Recorder."
    )
    raise UsageError(message)
