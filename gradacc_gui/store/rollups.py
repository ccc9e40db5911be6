"""Entries of the past, fetched from a journal: roll-ups, and single rows at ragged edges.

Level L buckets cover rows with seq // 64**L equal. A range that begins or ends inside a bucket (a
border of superseded rows) takes finer buckets there, down to single rows, so that nothing hidden
shows and nothing visible is left out. Each query is bounded; generators yield between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np

from gradacc_gui.series import Floats
from gradacc_gui.store.clock import AXES, Axis, Clock
from gradacc_gui.store.columns import check_places, column, summarize
from gradacc_gui.store.past import CHARTED, Past
from trainer_backend.journal import FACTOR, JournalReader
from trainer_backend.protocol import DeviceSampled, Event, HostSampled, MicroBatchMeasured

Placing: TypeAlias = Callable[[Floats], dict[Axis, Floats]]
"""Gives the places of rows by their seq, for measurements that carry none."""

SLICE_BUCKETS: Final = 256
SLICE_ROWS: Final = 512
PLACELESS: Final = (DeviceSampled, HostSampled)
_PARTS: Final = ("min", "max", "sum", "count", "nan", "posinf", "neginf")


class RollupReader:
    """Reads entries of a journal's past."""

    def __init__(self, reader: JournalReader, clock: Clock, steps_at: Callable[[Floats], Floats]) -> None:
        self._reader = reader
        self._clock = clock
        self._steps_at = steps_at
        """N in force at a row, by its seq."""

    def entries(
        self, kind: type[Event], first: int, last: int, level: int, placing: Placing | None
    ) -> Iterator[Past]:
        """Entries of rows first … last (both included), some at a time."""
        if first > last:
            return
        if level == 0:
            yield from self._rows(kind, first, last, placing)
            return
        width = FACTOR**level
        begin, end = -(-first // width), (last + 1) // width
        if first < width:
            begin = 0  # there is no row 0, so the first bucket is whole
        if begin >= end:
            yield from self.entries(kind, first, last, level - 1, placing)
            return
        yield from self.entries(kind, first, begin * width - 1, level - 1, placing)
        yield from self._buckets(kind, begin, end, level, placing)
        yield from self.entries(kind, end * width, last, level - 1, placing)

    def _rows(self, kind: type[Event], first: int, last: int, placing: Placing | None) -> Iterator[Past]:
        names = CHARTED[kind]
        places = () if kind in PLACELESS else ("step", "samples_seen", "tokens_seen")
        index = ("index",) if kind is MicroBatchMeasured else ()
        wanted = ", ".join(f'"{name}"' for name in ("seq", "at", *names, *places, *index))
        # Table and columns are named after our own classes.
        sql = f"SELECT {wanted} FROM {kind.__name__} WHERE seq>=? AND seq<=? ORDER BY seq LIMIT {SLICE_ROWS}"  # noqa: S608
        while rows := self._reader.select(sql, (first, last)):
            columns = [column(values) for values in zip(*rows, strict=True)]
            seq, at = columns[0], columns[1]
            check_places(np.array((seq, at)))
            x: dict[Axis, Floats] = {"time": self._clock.active_by_seq(seq, at)}
            if placing is not None:
                x |= placing(seq)
            else:
                steps, samples, tokens = columns[2 + len(names) : 5 + len(names)]
                if index:
                    share = np.minimum(1.0, (columns[-1] + 1) / self._steps_at(seq))
                    steps = steps - 1 + share
                x |= {"steps": steps, "samples": samples, "tokens": tokens}
            values = {name: summarize(columns[2 + place].reshape(-1, 1)) for place, name in enumerate(names)}
            yield Past(seq, x, values)
            first = int(seq[-1]) + 1
            if len(rows) < SLICE_ROWS:
                return

    def _buckets(
        self, kind: type[Event], begin: int, end: int, level: int, placing: Placing | None
    ) -> Iterator[Past]:
        names = CHARTED[kind]
        sql = _bucket_sql(kind, names, places=placing is None)
        while rows := self._reader.select(sql, (level, begin, end)):
            columns = [column(values) for values in zip(*rows, strict=True)]
            _, first, last, first_at, last_at = columns[:5]
            check_places(np.array(columns[:5]))
            summaries = columns[5 : 5 + len(names) * len(_PARTS)]
            active = (
                self._clock.active_by_seq(first, first_at) + self._clock.active_by_seq(last, last_at)
            ) / 2
            x: dict[Axis, Floats] = {"time": active}
            if placing is not None:
                x |= placing((first + last) / 2)
            else:
                ends = columns[5 + len(names) * len(_PARTS) :]
                middle = [(ends[place] + ends[place + 1]) / 2 for place in (0, 2, 4)]
                x |= dict(zip(AXES[:3], middle, strict=True))
            values = {
                name: _summary(summaries[place * len(_PARTS) : (place + 1) * len(_PARTS)])
                for place, name in enumerate(names)
            }
            yield Past(last, x, values)
            begin = int(columns[0][-1]) + 1
            if len(rows) < SLICE_BUCKETS:
                return


def _summary(columns: list[Floats]) -> Floats:
    """Columns of a roll-up as a summary; SQL's sum over no number is NULL, and counts as 0 here."""
    result = np.array(columns)
    result[2:] = np.nan_to_num(result[2:])
    return result


def _bucket_sql(kind: type[Event], names: tuple[str, ...], *, places: bool) -> str:
    table = kind.__name__
    at = "(SELECT at FROM {0} WHERE seq={0}_rollup.{1})"
    wanted = ["bucket", "first_seq", "last_seq", at.format(table, "first_seq"), at.format(table, "last_seq")]
    wanted += [f'"{name}_{part}"' for name in names for part in _PARTS]
    if places:
        wanted += [
            f'"{name}_{edge}"'
            for name in ("step", "samples_seen", "tokens_seen")
            for edge in ("first", "last")
        ]
    return (
        f"SELECT {', '.join(wanted)} FROM {table}_rollup WHERE level=? AND bucket>=? AND bucket<?"  # noqa: S608 - our own names
        f" ORDER BY bucket LIMIT {SLICE_BUCKETS}"
    )
