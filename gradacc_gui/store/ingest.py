"""A slice of the journal as columns: every row gets its place on each x-axis."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from gradacc_gui.series import Floats
from gradacc_gui.store.clock import Clock, RunPosition
from gradacc_gui.store.columns import Track, check_places, column
from gradacc_gui.store.past import CHARTED
from trainer_backend.journal import numeric_fields
from trainer_backend.protocol import (
    DeviceSampled,
    Event,
    HostSampled,
    MicroBatchMeasured,
)

PLACELESS: Final = (DeviceSampled, HostSampled)
UNUSED: Final[dict[type[Event], set[str]]] = {
    MicroBatchMeasured: {"samples", "tokens", "weight", "gradient_norm", "rank"}
}
"""Numbers that no chart and no figure reads from the columns: 32 bytes a micro-batch, and a third of the
time that reading one takes. What a micro-batch had is what was seen after it less what was before."""


def kept_fields(kind: type[Event]) -> tuple[str, ...]:
    """Fields of a measurement that the store keeps as columns."""
    unused = UNUSED.get(kind, set())
    return tuple(name for name in numeric_fields(kind) if name not in unused)


def track_names(kind: type[Event]) -> tuple[str, ...]:
    """Columns of a measurement's track: the journal's, and the place on each x-axis."""
    places = ("samples_seen", "tokens_seen") if kind in PLACELESS else ()
    return ("seq", "at", *kept_fields(kind), *places, "x_steps", "x_time")


def new_tracks() -> dict[type[Event], Track]:
    """An empty track for each measurement."""
    return {kind: Track(track_names(kind)) for kind in CHARTED}


WANTED: Final = {kind: ("seq", "at", *kept_fields(kind)) for kind in CHARTED}
"""What is read of each measurement's rows."""


_PLACES: Final = {
    kind: [
        place for place, name in enumerate(names) if name in ("seq", "at", "step", "index", "samples_seen")
    ]
    for kind, names in WANTED.items()
}
"""Where among these stands what every row must have."""


def as_columns(kind: type[Event], rows: list[tuple[Any, ...]]) -> Floats:
    """Journal rows, as `WANTED` has them, turned into columns x rows. Raises RunDirectoryError."""
    columns = np.array([column(values) for values in zip(*rows, strict=True)])
    check_places(columns[_PLACES[kind]])
    return columns


class Placer:
    """Gives rows their places, in the order of seq; remembers where the run stands."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.position = RunPosition()
        self.accumulation_steps = 1
        """N in force."""

    def place(self, blocks: dict[type[Event], Floats]) -> dict[type[Event], Floats]:
        """Blocks as tracks take them. No fact that matters may lie between their rows."""
        placed: dict[type[Event], Floats] = {}
        micro = blocks.get(MicroBatchMeasured)
        before = self.position
        if micro is not None and micro.shape[1]:
            placed[MicroBatchMeasured] = self._micro_batches(micro)
        for kind, block in blocks.items():
            if kind is MicroBatchMeasured or not block.shape[1]:
                continue
            if kind in PLACELESS:
                placed[kind] = self._placeless(block, placed.get(MicroBatchMeasured), before)
            else:
                steps = block[2 + kept_fields(kind).index("step")]
                placed[kind] = np.vstack((block, steps, np.maximum.accumulate(self.clock.active(block[1]))))
        return placed

    def _micro_batches(self, block: Floats) -> Floats:
        names = kept_fields(MicroBatchMeasured)
        step, index = block[2 + names.index("step")], block[2 + names.index("index")]
        steps = step - 1 + np.minimum(1.0, (index + 1) / self.accumulation_steps)
        active = np.maximum.accumulate(np.maximum(self.clock.active(block[1]), self.position.time))
        self.position = RunPosition(
            steps=float(steps[-1]),
            samples=float(block[2 + names.index("samples_seen"), -1]),
            tokens=float(block[2 + names.index("tokens_seen"), -1]),
            time=float(active[-1]),
        )
        return np.vstack((block, steps, active))

    def _placeless(self, block: Floats, micro: Floats | None, before: RunPosition) -> Floats:
        """Samples of memory and power stand where the newest micro-batch before them stands."""
        active = np.maximum.accumulate(np.maximum(self.clock.active(block[1]), before.time))
        if micro is None:
            ones = np.ones(block.shape[1])
            return np.vstack(
                (block, before.samples * ones, before.tokens * ones, before.steps * ones, active)
            )
        names = track_names(MicroBatchMeasured)
        place = np.searchsorted(micro[0], block[0])
        found = [
            np.concatenate(([start], micro[names.index(name)]))[place]
            for name, start in (
                ("samples_seen", before.samples),
                ("tokens_seen", before.tokens),
                ("x_steps", before.steps),
            )
        ]
        return np.vstack((block, *found, active))
