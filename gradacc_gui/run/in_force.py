"""What is in force in a run now, told from its recipe and its facts in order. No Qt."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from trainer_backend.config import RunConfig
from trainer_backend.protocol import (
    AccumulationChanged,
    CheckpointSaved,
    OutOfMemoryRecovered,
    Record,
    RolledBack,
    RunStarted,
    Scalar,
    SettingChanged,
)
from trainer_backend.settings import Settings


class InForce:
    """Folds facts; `settings` is None until an attempt is ready to train."""

    def __init__(self, config: RunConfig | None) -> None:
        self.settings: Settings | None = None
        self.checkpoints: list[int] = []
        """Steps of the checkpoints that should still be on disk, oldest first."""
        self._config = config

    def take(self, records: Iterable[Record]) -> None:
        """Take the next facts."""
        for record in records:
            match record.event:
                case RunStarted() as started:
                    self._start(started)
                case AccumulationChanged(after=after):
                    self._change(accumulation_steps=after)
                case OutOfMemoryRecovered(micro_batch_size=size, accumulation_steps=steps):
                    self._change(micro_batch_size=size, accumulation_steps=steps)
                case SettingChanged(key=key, after=after):
                    self._setting(key, after)
                case CheckpointSaved(step=step):
                    self._checkpoint(step)
                case RolledBack(to_step=to_step):
                    self.checkpoints = [step for step in self.checkpoints if step <= to_step]
                case _:
                    pass

    def _start(self, started: RunStarted) -> None:
        kept = self.settings or self._from_recipe(started)
        self.settings = msgspec.structs.replace(
            kept,
            accumulation_steps=started.accumulation_steps,
            micro_batch_size=started.micro_batch_size,
            world_size=started.world_size,
        )
        self.checkpoints = [step for step in self.checkpoints if step <= started.from_step]

    def _from_recipe(self, started: RunStarted) -> Settings:
        first = Settings(
            accumulation_steps=started.accumulation_steps, micro_batch_size=started.micro_batch_size
        )
        if self._config is None:
            return first
        optimizer = self._config.optimizer
        return msgspec.structs.replace(
            first,
            learning_rate=optimizer.learning_rate,
            beta2=optimizer.betas[1] if optimizer.name == "adamw" else None,
            weight_decay=optimizer.weight_decay,
            ema_decay=optimizer.ema_decay,
            max_grad_norm=optimizer.max_grad_norm,
        )

    def _change(self, **values: float | None) -> None:
        if self.settings is not None:
            self.settings = msgspec.structs.replace(self.settings, **values)

    def _setting(self, key: str, after: Scalar) -> None:
        value = float(after) if isinstance(after, int | float) else None
        match key.rpartition(".")[2]:
            case "micro_batch_size" if value is not None:
                self._change(micro_batch_size=int(value))
            case "learning_rate" | "weight_decay" | "ema_decay" | "max_grad_norm" as name:
                self._change(**{name: value})
            case "betas" | "beta2":
                self._change(beta2=value if value is not None else _second(after))
            case _:
                pass

    def _checkpoint(self, step: int) -> None:
        keep = self._config.checkpoint.keep if self._config is not None else len(self.checkpoints) + 1
        known = [other for other in self.checkpoints if other != step]
        self.checkpoints = [*known, step][-keep:]


def _second(pair: Scalar) -> float | None:
    """β₂ of "0.9, 0.95" or "(0.9, 0.95)"; None when it is no pair."""
    if not isinstance(pair, str):
        return None
    try:
        return float(pair.strip("()[] ").split(",")[1])
    except (IndexError, ValueError):
        return None
