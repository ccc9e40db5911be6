"""What the run was to reach, judged at its end from its own journal, exactly. No torch.

A `TargetJudged` with `is_final` for each target; what was never measured is missed, with reached = None.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainer_backend.config import RunConfig
from trainer_backend.goals import Target, targets_of
from trainer_backend.journal_reader import JournalReader
from trainer_backend.protocol import EvaluationMeasured, TargetJudged
from trainer_backend.trainer.gates import GIB, JOULES_PER_KWH, SECONDS_PER_HOUR, Spent, is_met
from trainer_backend.trainer.metric_history import values_of

_QUANTILE: Final = (
    "SELECT {column} FROM OptimizerStepMeasured ORDER BY {column}"
    " LIMIT 1 OFFSET (SELECT max(0, cast({share} * count(*) + 0.999999 AS INTEGER) - 1)"
    " FROM OptimizerStepMeasured)"
)
_SECONDS: Final = "SELECT sum(duration_s) FROM OptimizerStepMeasured"
_REACHED: Final[dict[str, tuple[str, float]]] = {
    "step_time": (_QUANTILE.format(column="duration_s", share=0.5), 1.0),
    "step_time_p95": (_QUANTILE.format(column="duration_s", share=0.95), 1.0),
    "throughput": (_QUANTILE.format(column="samples_per_s", share=0.5), 1.0),
    "time_to_finish": (_SECONDS, 1.0 / SECONDS_PER_HOUR),
}
_PEAKS: Final = (
    "SELECT max(torch_reserved_peak_bytes) FROM DeviceSampled",
    "SELECT max(process_rss_bytes) FROM HostSampled",
)
"""A device's peak where there is a device, else the process's on the host."""


def judge(
    config: RunConfig, journal: Path, *, step: int, samples_seen: int, overridden: set[str]
) -> Iterator[TargetJudged]:
    """A verdict for each target that was set."""
    targets = targets_of(config.targets)
    if not targets:
        return
    reader = JournalReader(journal)
    try:
        for target in targets:
            reached = _reached(reader, target, config)
            met = reached is not None and is_met(target, reached)
            yield TargetJudged(
                step=step,
                samples_seen=samples_seen,
                key=target.key,
                bound=target.bound,
                target=target.limit,
                reached=reached,
                verdict="met" if met else "missed",
                act=target.act,
                overridden=target.key in overridden,
                is_final=True,
            )
    finally:
        reader.close()


def spent(journal: Path) -> Spent:
    """The time of all optimizer steps in a journal, and the energy."""
    reader = JournalReader(journal)
    try:
        return Spent(_one(reader, _SECONDS) or 0.0, reader.energy_joules())
    finally:
        reader.close()


def _reached(reader: JournalReader, target: Target, config: RunConfig) -> float | None:
    match target.metric:
        case "peak_memory":
            found = [_one(reader, sql) for sql in _PEAKS]
            peak = next((value for value in found if value is not None), None)
            return None if peak is None else peak / GIB
        case "cost":
            joules = reader.energy_joules()
            return None if joules is None else joules / JOULES_PER_KWH
        case "money":
            hours = (_one(reader, _SECONDS) or 0.0) / SECONDS_PER_HOUR
            joules, prices = reader.energy_joules(), config.prices
            if prices.per_kwh is not None and joules is None:
                return None
            return (prices.per_hour or 0.0) * hours + (prices.per_kwh or 0.0) * (
                joules or 0.0
            ) / JOULES_PER_KWH
        case metric if metric in _REACHED:
            sql, factor = _REACHED[metric]
            value = _one(reader, sql)
            return None if value is None else value * factor
        case metric:
            name = "loss" if metric == "validation_loss" else metric
            return _evaluated(reader, name, target.by_sample)


def _evaluated(reader: JournalReader, name: str, by_sample: int | None) -> float | None:
    """The last evaluation's value; with `by_sample`, the first one's from there on."""
    value: float | None = None
    for record in reader.measurements(EvaluationMeasured):
        event = record.event
        assert isinstance(event, EvaluationMeasured)
        value = values_of(event).get(name)
        if by_sample is not None and event.samples_seen >= by_sample:
            break
    return value


def _one(reader: JournalReader, sql: str) -> float | None:
    rows = reader.select(sql)
    return None if not rows or rows[0][0] is None else float(rows[0][0])
