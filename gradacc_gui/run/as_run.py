"""What a run has for the values that its recipe says were published. No Qt."""

from __future__ import annotations

from typing import Any

import msgspec

from trainer_backend.config import RunConfig
from trainer_backend.protocol import EvaluationMeasured
from trainer_backend.published import Difference, compare, values_of
from trainer_backend.settings import MICRO_BATCH, STEPS, Settings


def published_beside(
    config: RunConfig | None, settings: Settings | None, measured: EvaluationMeasured | None
) -> list[Difference]:
    """Every published value beside the run's own: as asked, as changed since, as `measured`."""
    if config is None:
        return []
    published = msgspec.to_builtins(config.published)
    return compare(published, config.kind, _here(config, settings, measured))


def _here(
    config: RunConfig, settings: Settings | None, measured: EvaluationMeasured | None
) -> dict[str, Any]:
    here = values_of(config)
    if settings is not None:  # a person may have changed these while it ran
        here[MICRO_BATCH] = settings.micro_batch_size
        here[STEPS] = settings.accumulation_steps
        here["accumulation.effective_batch_size"] = settings.effective_batch
        if settings.learning_rate is not None:
            here["optimizer.learning_rate"] = settings.learning_rate
            here["optimizer.max_grad_norm"] = settings.max_grad_norm
    if measured is not None:
        here |= {f"results.{name}": float(f"{value:.4g}") for name, value in measured.metrics.items()}
        if measured.loss is not None:
            here["results.validation_loss"] = here["results.loss"] = float(f"{measured.loss:.4g}")
    return here
