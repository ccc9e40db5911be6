"""What several ranks of a run do, as figures and words: each one's time, wait and memory, and the slowest."""

from __future__ import annotations

import statistics
from typing import Final

import msgspec

from gradacc_gui.run.numbers import real
from gradacc_gui.store.run_store import RunStore
from gradacc_gui.words import tr
from trainer_backend.protocol import RankMeasured

WINDOWS: Final = 16
"""Newest steps whose median is shown, so that one slow window does not name a rank."""
WORTH_NAMING: Final = 0.05
"""Share of the step that others wait for a rank before it is named."""


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank: medians over the newest steps, and the newest of the rest."""

    rank: int
    host: str
    micro_batches: int
    computed_s: float
    waited_s: float
    memory_bytes: int
    memory_total_bytes: int | None


class RankFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of the attempt that is shown."""

    rows: tuple[RankRow, ...]
    step: int
    """The newest that all ranks have told of."""
    step_s: float
    """The longest of the ranks' times, wait included: what the bars are a share of."""
    slowest: int | None
    """The rank that the others wait for, where that is worth a word."""
    slowest_words: str
    split_words: str
    """How a window is divided: "8 micro-batches on 3 ranks: 3, 3, 2"."""


def figures_of(store: RunStore) -> RankFigures | None:
    """The figures; None for a run of one process, or before its first step."""
    started = store.started
    if started is None or started.world_size < 2:
        return None
    track, size = store.track(RankMeasured), started.world_size
    names = ("step", "rank", "micro_batches", "computed_s", "waited_s", "memory_bytes", "memory_total_bytes")
    told = list(zip(*(track.tail(name, WINDOWS * size).tolist() for name in names), strict=True))
    told = [row for row in told if row[0] > started.from_step]
    by_rank = {rank: [row for row in told if row[1] == rank] for rank in range(size)}
    if not all(by_rank.values()):
        return None
    hosts = started.hosts or (started.host,) * size
    rows = tuple(_row(rank, hosts[rank], found) for rank, found in by_rank.items())
    slowest, words = _slowest(rows)
    return RankFigures(
        rows=rows,
        step=int(min(found[-1][0] for found in by_rank.values())),
        step_s=max(row.computed_s + row.waited_s for row in rows),
        slowest=slowest,
        slowest_words=words,
        split_words=split_words(store.accumulation_steps * store.world_size, size),
    )


def _row(rank: int, host: str, found: list[tuple[float, ...]]) -> RankRow:
    newest = found[-1]
    total = newest[6]
    return RankRow(
        rank=rank,
        host=host,
        micro_batches=int(newest[2]),
        computed_s=statistics.median(row[3] for row in found),
        waited_s=statistics.median(row[4] for row in found),
        memory_bytes=int(newest[5]),
        memory_total_bytes=int(total) if total == total and total > 0 else None,  # noqa: PLR0124 - NaN
    )


def _slowest(rows: tuple[RankRow, ...]) -> tuple[int | None, str]:
    slowest = max(rows, key=lambda row: row.computed_s)
    step_s = slowest.computed_s + slowest.waited_s
    waited_s = statistics.median(row.waited_s for row in rows if row is not slowest) - slowest.waited_s
    if step_s <= 0 or waited_s < WORTH_NAMING * step_s:
        return None, ""
    words = tr("Slowest: rank {rank}. The others wait {waited} of {step} ({share:.0f} %) for it.").format(
        rank=slowest.rank, waited=duration(waited_s), step=duration(step_s), share=100 * waited_s / step_s
    )
    return slowest.rank, words


def duration(value_s: float) -> str:
    """A step's time: "1.58 s", "12.4 ms"."""
    return f"{real(value_s, 3)} s" if value_s >= 1.0 else f"{real(value_s * 1e3, 3)} ms"


def split_words(micro_batches: int, ranks: int) -> str:
    """How many micro-batches of a window each rank runs."""
    shares = [micro_batches // ranks + (rank < micro_batches % ranks) for rank in range(ranks)]
    if len(set(shares)) == 1:
        return tr("{count} micro-batches per step, {share} on each rank").format(
            count=micro_batches, share=shares[0]
        )
    return tr("{count} micro-batches on {ranks} ranks: {shares}").format(
        count=micro_batches, ranks=ranks, shares=", ".join(map(str, shares))
    )
