"""What the run was to reach, judged at its end from its own journal. No torch.

`Warned` with code target-met or target-missed; values: key, target, reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainer_backend.config import TargetsSection
from trainer_backend.journal_reader import JournalReader
from trainer_backend.protocol import Warned

GIB: Final = 2**30
JOULES_PER_KWH: Final = 3.6e6
_MEDIAN: Final = (
    "SELECT {column} FROM OptimizerStepMeasured ORDER BY {column}"
    " LIMIT 1 OFFSET (SELECT (count(*) - 1) / 2 FROM OptimizerStepMeasured)"
)
_REACHED: Final[dict[str, tuple[str, float]]] = {
    "step_time": (_MEDIAN.format(column="duration_s"), 1.0),
    "throughput": (_MEDIAN.format(column="samples_per_s"), 1.0),
    "validation_loss": ("SELECT loss FROM EvaluationMeasured ORDER BY seq DESC LIMIT 1", 1.0),
    "cost": (
        (
            "SELECT sum(joules) FROM"
            " (SELECT max(energy_joules) AS joules FROM DeviceSampled GROUP BY attempt, device)"
        ),
        1.0 / JOULES_PER_KWH,
    ),
}
_PEAKS: Final = (
    "SELECT max(torch_reserved_peak_bytes) FROM DeviceSampled",
    "SELECT max(process_rss_bytes) FROM HostSampled",
)
"""A device's peak where there is a device, else the process's on the host."""
AT_LEAST: Final = frozenset({"throughput"})


def judge(targets: TargetsSection, journal: Path) -> Iterator[Warned]:
    """A verdict for each target that was set; what was never measured is missed, with reached = None."""
    asked = {key: getattr(targets, key) for key in ("peak_memory", *_REACHED)}
    asked = {key: value for key, value in asked.items() if value is not None}
    if not asked:
        return
    reader = JournalReader(journal)
    try:
        for key, target in asked.items():
            reached = _reached(reader, key)
            met = reached is not None and (reached >= target if key in AT_LEAST else reached <= target)
            code = "target-met" if met else "target-missed"
            yield Warned(code=code, values={"key": f"targets.{key}", "target": target, "reached": reached})
    finally:
        reader.close()


def _reached(reader: JournalReader, key: str) -> float | None:
    if key == "peak_memory":
        found = [_one(reader, sql) for sql in _PEAKS]
        peak = next((value for value in found if value is not None), None)
        return None if peak is None else peak / GIB
    sql, factor = _REACHED[key]
    value = _one(reader, sql)
    return None if value is None else value * factor


def _one(reader: JournalReader, sql: str) -> float | None:
    rows = reader.select(sql)
    return None if not rows or rows[0][0] is None else float(rows[0][0])
