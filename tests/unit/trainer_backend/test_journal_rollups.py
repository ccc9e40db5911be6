"""Roll-ups say of every stretch what NumPy says of its rows."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.events import micro_batch
from trainer_backend.journal import (
    FACTOR,
    LEVELS,
    JournalReader,
    JournalWriter,
    columns,
    numeric_fields,
    rollup_columns,
)
from trainer_backend.journal_rows import quoted
from trainer_backend.protocol import Event, HostSampled, MicroBatchMeasured, OptimizerStepMeasured, Paused

ODD = (math.nan, math.inf, -math.inf, None, 0.0, -0.0, 1e308, -1e308, 5e-324)


def read_rollup(
    reader: JournalReader, kind: type[Event], level: int, first_seq: int, last_seq: int
) -> list[tuple[Any, ...]]:
    """Roll-up rows of `level` that overlap a range of sequence numbers."""
    width = FACTOR**level
    return reader.select(
        f"SELECT {quoted(rollup_columns(kind))} FROM {kind.__name__}_rollup"  # noqa: S608 - our own names
        " WHERE level=? AND bucket>=? AND bucket<=? ORDER BY bucket",
        (level, first_seq // width, last_seq // width),
    )


def host(value: float | None) -> HostSampled:
    """A reading in which much may be unknown."""
    whole = None if value is None or not math.isfinite(value) else int(min(value, 2.0**60))
    return HostSampled(
        process_rss_bytes=whole,
        workers_rss_bytes=None,
        host_memory_used_bytes=whole,
        host_memory_total_bytes=2**34,
        process_cpu_percent=value,
        host_cpu_percent=None,
    )


def write(path: Path, count: int, *, attempts: int) -> None:
    """A journal of odd values, written in pieces of odd sizes by several attempts."""
    random_ = random.Random(7)  # noqa: S311 - no secret
    for attempt in range(1, attempts + 1):
        writer = JournalWriter(path, attempt=attempt)
        for step in range(count // attempts):
            value = random_.choice(ODD) if random_.random() < 0.1 else random_.gauss(2, 1)
            if random_.random() < 0.02:
                writer.put(Paused(command_id=None, step=step, samples_seen=step))
            if random_.random() < 0.1:
                writer.put(host(value))
            writer.put(micro_batch(step, loss=value, gradient_norm=random_.choice((None, 1.0))))
            if random_.random() < 0.01:
                writer.flush()
        writer.close()


def reference(rows: list[tuple[Any, ...]], kind: type[Event]) -> dict[str, Any]:
    """The roll-up of rows, by NumPy."""
    found: dict[str, Any] = {"first_seq": rows[0][0], "last_seq": rows[-1][0], "count": len(rows)}
    for name in numeric_fields(kind):
        place = columns(kind).index(name)
        raw = [row[place] for row in rows]
        values = np.array([value for value in raw if value is not None], dtype=float)
        finite = values[np.isfinite(values)]
        with np.errstate(over="ignore"):
            found |= {
                f"{name}_min": float(finite.min()) if finite.size else None,
                f"{name}_max": float(finite.max()) if finite.size else None,
                f"{name}_sum": math.fsum(finite) if finite.size and abs(finite).max() < 1e300 else None,
                f"{name}_count": int(finite.size),
                f"{name}_nan": int(np.isnan(values).sum()),
                f"{name}_posinf": int(np.isposinf(values).sum()),
                f"{name}_neginf": int(np.isneginf(values).sum()),
                f"{name}_first": raw[0],
                f"{name}_last": raw[-1],
            }
    return found


def agrees(rolled: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Names of the columns that differ."""
    wrong = []
    for name, value in wanted.items():
        got = rolled[name]
        if name.endswith("_sum"):
            # A sum that overflows on the way is no one's; elsewhere it is right to rounding.
            fine = value is None or math.isclose(got, value, rel_tol=1e-9, abs_tol=1e-6)
        elif isinstance(value, float) and math.isnan(value):
            fine = isinstance(got, float) and math.isnan(got)
        else:
            fine = got == value
        if not fine:
            wrong.append(f"{name}: {got!r} is not {value!r}")
    return wrong


@pytest.mark.parametrize("attempts", [1, 3])
def test_every_bucket_of_every_level_is_what_numpy_says(tmp_path: Path, attempts: int) -> None:
    """Over NaN, infinities, None and numbers at the edge; across attempts and batches of any size."""
    path = tmp_path / "run.sqlite"
    write(path, 6_000, attempts=attempts)
    reader = JournalReader(path)
    head = reader.head()
    for kind in (MicroBatchMeasured, HostSampled, OptimizerStepMeasured):
        rows = reader.read_rows(kind, 1, head)
        for level in range(1, LEVELS + 1):
            width = FACTOR**level
            complete = (head + 1) // width
            buckets: dict[int, list[tuple[Any, ...]]] = {}
            for row in rows:
                if row[0] // width < complete:
                    buckets.setdefault(row[0] // width, []).append(row)
            rolled = {
                value["bucket"]: value
                for row in read_rollup(reader, kind, level, 0, head)
                if (value := dict(zip(rollup_columns(kind), row, strict=True)))
            }
            assert rolled.keys() == buckets.keys()
            for bucket, members in buckets.items():
                assert agrees(rolled[bucket], reference(members, kind)) == []
    reader.close()


def test_only_the_buckets_that_overlap_a_range_are_read(tmp_path: Path) -> None:
    """A zoomed chart asks for what it shows."""
    path = tmp_path / "run.sqlite"
    writer = JournalWriter(path, attempt=1)
    for step in range(1_000):
        writer.put(micro_batch(step))
    writer.close()
    reader = JournalReader(path)

    rows = read_rollup(reader, MicroBatchMeasured, 1, 130, 260)

    assert [row[1] for row in rows] == [2, 3, 4]
    reader.close()


def test_every_number_of_a_measurement_is_rolled_up() -> None:
    """A new field of a measurement needs nothing more to be charted at full zoom-out."""
    names = {field.name for field in msgspec.structs.fields(MicroBatchMeasured)}
    assert set(numeric_fields(MicroBatchMeasured)) == names
