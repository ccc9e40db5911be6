"""What lies before the rows kept one by one: summaries, from dropped chunks or the journal's roll-ups.

An entry covers neighbouring rows that are visible (not superseded); it holds each charted field's
summary and its place on each x-axis. Finer entries for the range that a person looks at are fetched
on their own (`Detail`) and shown in place of the coarse ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from gradacc_gui.series import NO_ITEMS, Floats, Groups, concatenate
from gradacc_gui.store.clock import AXES, AXIS_COLUMN, Axis, View
from gradacc_gui.store.columns import (
    BLOCK,
    SUMMARY_ROWS,
    Chunk,
    Track,
    items_from_summary,
    merge_summaries,
)
from trainer_backend.protocol import (
    DeviceSampled,
    EvaluationMeasured,
    Event,
    HostSampled,
    MicroBatchMeasured,
    NoiseScaleMeasured,
    OptimizerStepMeasured,
    RankMeasured,
)

CHARTED: Final[dict[type[Event], tuple[str, ...]]] = {
    MicroBatchMeasured: ("loss",),
    OptimizerStepMeasured: (
        "loss",
        "gradient_norm",
        "learning_rate",
        "accumulation_steps",
        "samples_per_s",
        "tokens_per_s",
        "duration_s",
    ),
    RankMeasured: ("computed_s", "waited_s"),
    EvaluationMeasured: ("loss",),
    NoiseScaleMeasured: ("noise_scale", "noise_scale_low", "noise_scale_high", "effective_batch"),
    DeviceSampled: (
        "memory_used_bytes",
        "process_memory_bytes",
        "torch_allocated_bytes",
        "torch_reserved_bytes",
        "utilization_percent",
        "temperature_celsius",
        "power_watts",
    ),
    HostSampled: ("process_rss_bytes", "host_memory_used_bytes", "process_cpu_percent", "host_cpu_percent"),
}
"""The measurements that the store follows, and the fields that summaries keep. Others are read where they are
shown."""

BLOCKS_AN_ENTRY: Final = 8
"""A dropped chunk leaves an entry for each 512 rows."""
LARGEST_ENTRIES: Final = 32_768
"""Beyond it, entries are merged two by two: still far more than a screen has pixels."""


class Past:
    """Entries of one measurement, in ascending seq and x."""

    def __init__(self, seq: Floats, x: dict[Axis, Floats], values: dict[str, Floats]) -> None:
        self.seq = seq
        """Newest row of each entry."""
        self.x = x
        self.values = values
        """Summaries by field, shape (7, entries)."""

    @classmethod
    def empty(cls, kind: type[Event]) -> Past:
        """Summaries of a run that has none."""
        nothing = np.empty(0)
        fields = CHARTED[kind]
        return cls(
            nothing, dict.fromkeys(AXES, nothing), {name: np.empty((SUMMARY_ROWS, 0)) for name in fields}
        )

    @classmethod
    def of_chunk(cls, kind: type[Event], track: Track, chunk: Chunk) -> Past:
        """A full chunk that is dropped, 512 rows an entry."""
        rows = BLOCK * BLOCKS_AN_ENTRY

        def middles(name: str) -> Floats:
            column = chunk.data[track.index[name]].reshape(-1, rows)
            middle: Floats = (column[:, 0] + column[:, -1]) / 2
            return middle

        return cls(
            chunk.data[0].reshape(-1, rows)[:, -1].copy(),
            {axis: middles(AXIS_COLUMN[axis]) for axis in AXES},
            {
                name: merge_summaries(chunk.summary(track.index[name]), BLOCKS_AN_ENTRY)
                for name in CHARTED[kind]
            },
        )

    @classmethod
    def joined(cls, parts: Sequence[Past]) -> Past:
        """Parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.seq for part in parts]),
            {axis: np.concatenate([part.x[axis] for part in parts]) for axis in AXES},
            {name: np.concatenate([part.values[name] for part in parts], axis=1) for name in parts[0].values},
        )

    def __len__(self) -> int:
        return len(self.seq)

    def cut(self, begin: int, end: int) -> Past:
        """The entries from `begin` up to `end`."""
        return Past(
            self.seq[begin:end],
            {axis: x[begin:end] for axis, x in self.x.items()},
            {name: values[:, begin:end] for name, values in self.values.items()},
        )

    def halved(self) -> Past:
        """Neighbours merged two by two; the newest odd one stays as it is."""
        even = len(self) // 2 * 2
        pairs = Past(
            self.seq[1:even:2],
            {axis: (x[0:even:2] + x[1:even:2]) / 2 for axis, x in self.x.items()},
            {name: merge_summaries(values[:, :even], 2) for name, values in self.values.items()},
        )
        return Past.joined([pairs, self.cut(even, len(self))])

    def items(self, axis: Axis, name: str, x0: float, x1: float) -> Groups:
        """Entries with x0 ≤ x ≤ x1 and one neighbour on each side."""
        x = self.x[axis]
        if not len(x):
            return NO_ITEMS
        begin = max(0, int(np.searchsorted(x, x0)) - 1)
        end = min(len(x), int(np.searchsorted(x, x1, side="right")) + 1)
        return items_from_summary(x[begin:end], self.values[name][:, begin:end])


class Detail:
    """Finer entries for rows `first` … `last`, while somebody looks at them."""

    def __init__(self, first: int, last: int, level: int) -> None:
        self.first = first
        self.last = last
        self.level = level
        self.entries: Past | None = None
        """None until the journal has given all of them."""


class History:
    """One measurement's past, and the detail that is looked at."""

    def __init__(self, kind: type[Event]) -> None:
        self.kind = kind
        self.past = Past.empty(kind)
        self.detail: Detail | None = None
        self.revision = 0

    def add(self, entries: Past) -> None:
        """Append newer entries."""
        self.past = Past.joined([self.past, entries])
        if len(self.past) > LARGEST_ENTRIES:
            self.past = self.past.halved()
        self.revision += 1

    def truncate(self, seq: int) -> None:
        """Forget what holds rows numbered `seq` or later."""
        self.past = self.past.cut(0, int(np.searchsorted(self.past.seq, seq)))
        self.detail = None
        self.revision += 1

    def replace_before(self, seq: int, entries: Past) -> None:
        """Put `entries` in place of everything before row `seq`."""
        begin = int(np.searchsorted(self.past.seq, seq))
        self.past = Past.joined([entries, self.past.cut(begin, len(self.past))])
        self.detail = None
        self.revision += 1

    def items(self, axis: Axis, name: str, x0: float, x1: float) -> Groups:
        """Entries between x0 and x1, fine ones where there are some."""
        if self.detail is None or self.detail.entries is None:
            return self.past.items(axis, name, x0, x1)
        begin = int(np.searchsorted(self.past.seq, self.detail.first))
        end = int(np.searchsorted(self.past.seq, self.detail.last, side="right"))
        parts = (self.past.cut(0, begin), self.detail.entries, self.past.cut(end, len(self.past)))
        found = [_inside(part, axis, name, x0, x1) for part in parts]
        return concatenate(found)

    def wanted(self, view: View) -> Detail | None:
        """The detail that `view` can show and that is not there; None when there is enough."""
        x, width = self.past.x[view.axis], view.width
        begin, end = int(np.searchsorted(x, view.x0)), int(np.searchsorted(x, view.x1, side="right"))
        begin, end = max(0, begin - 1), min(len(x), end + 1)
        if end <= begin or end - begin >= width:
            return None
        first = int(self.past.seq[begin - 1]) + 1 if begin else 1
        last = int(self.past.seq[end - 1])
        level = 0 if (last - first) / BLOCK < width else 1
        have = self.detail
        if have is not None and have.first <= first and have.last >= last and have.level <= level:
            return None
        return Detail(first, last, level)


def _inside(part: Past, axis: Axis, name: str, x0: float, x1: float) -> Groups:
    return part.items(axis, name, x0, x1) if len(part) else NO_ITEMS


def visible_intervals(first: int, last: int, hidden: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges of seq between `first` and `last` (both included) without the hidden ones."""
    for begin, end in sorted(hidden):
        if end < first or begin > last:
            continue
        if begin > first:
            yield first, begin - 1
        first = max(first, end + 1)
    if first <= last:
        yield first, last
