"""What facts do to the data: start and stop the clock, change N, hide superseded rows, set marks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from gradacc_gui.series import Floats
from gradacc_gui.store.clock import Clock, RunPosition
from gradacc_gui.store.ingest import Placer
from gradacc_gui.store.markers import AttemptBegin, LostRange, Markers, NChange, SettingLevel
from trainer_backend.journal import JournalReader
from trainer_backend.protocol import (
    AccumulationChanged,
    Event,
    MeasurementsLost,
    Paused,
    Record,
    Resumed,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    Scalar,
    SettingChanged,
    Slept,
)

MATTERS: Final = (
    AccumulationChanged,
    MeasurementsLost,
    Paused,
    Resumed,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SettingChanged,
    Slept,
)
_ROW_BEFORE: Final = (
    'SELECT seq, at, step, "index", samples_seen, tokens_seen FROM MicroBatchMeasured'
    " WHERE seq<? ORDER BY seq DESC LIMIT 1"
)


class FactPlacer:
    """Applies facts in order to the clock, the placer and the marks that it is given."""

    def __init__(
        self,
        reader: JournalReader,
        hidden: list[tuple[int, int]],
        clock: Clock,
        placer: Placer,
        markers: Markers,
    ) -> None:
        self._reader = reader
        self._hidden = hidden
        """Superseded ranges of seq, both ends included, ascending and apart."""
        self._clock = clock
        self._placer = placer
        self._markers = markers
        self._attempt = 0
        self._n_seqs: list[int] = [0]
        self._n_values: list[int] = [1]

    def matters(self, record: Record) -> bool:
        """Whether rows before and after this fact are placed differently."""
        return isinstance(record.event, MATTERS) or record.attempt != self._attempt

    def steps_at(self, seq: Floats) -> Floats:
        """N in force at rows, by their seq."""
        place = np.searchsorted(np.array(self._n_seqs), seq, side="right") - 1
        return np.array(self._n_values, dtype=np.float64)[place]

    def stand_at(self, seq: int) -> None:
        """Place what comes next after the newest visible row before `seq`."""
        self._placer.position = self._position_before(seq)

    def apply(self, record: Record) -> int | None:
        """Take a fact; gives the first superseded row when it supersedes some."""
        if record.attempt != self._attempt:
            self._attempt = record.attempt
            self._stop_clock(record.seq)
        match record.event:
            case RunStarted() as started:
                return self._start(record, started)
            case RolledBack(to_step=step):
                hidden_from = self._hide_after(step, record.seq)
                go_on = self._clock.start if self._clock.runs else self._clock.stop
                go_on(record.seq, record.at, self._placer.position.time)
                return hidden_from
            case AccumulationChanged() as change:
                self._change_n(record.seq, change.step, change.after, change.asked_by)
            case SettingChanged() as change:
                self._set_level(record.seq, change.key, change.after)
            case Paused() | RunFinished() | RunStopped() | RunFailed():
                self._clock.stop(record.seq, record.at, self._clock.now(record.at))
            case Resumed():
                self._clock.start(record.seq, record.at, self._clock.now(record.at))
            case Slept(duration_s=duration_s):
                self._clock.sleep(record.seq, record.at, duration_s, self._placer.position.time)
            case MeasurementsLost(first=first, last=last):
                self._lose(record.seq, first, last)
            case _:
                pass
        return None

    def _stop_clock(self, seq: int) -> None:
        """An attempt that never said how it ended counts up to its last micro-batch."""
        row = self._row_before(seq) if self._clock.runs else None
        self._clock.stop(seq, row[1] if row is not None else 0.0, self._placer.position.time)

    def _start(self, record: Record, started: RunStarted) -> int | None:
        hidden_from = self._hide_after(started.from_step, record.seq) if record.attempt > 1 else None
        position = self._placer.position
        self._placer.position = RunPosition(
            steps=started.from_step,
            samples=started.from_samples,
            tokens=started.from_tokens,
            time=position.time,
        )
        self._clock.start(record.seq, record.at, position.time)
        if record.attempt > 1:
            begin = AttemptBegin(seq=record.seq, attempt=record.attempt, place=self._placer.position)
            self._markers.attempts.append(begin)
            self._change_n(record.seq, started.from_step + 1, started.accumulation_steps, "resume")
        else:
            self._set_n(record.seq, started.accumulation_steps)
        self._markers.revision += 1
        return hidden_from

    def _change_n(self, seq: int, step: int, after: int, asked_by: str) -> None:
        before = self._placer.accumulation_steps
        if before == after:
            return
        place = self._placer.position
        if place.steps == 0 and step > 1:
            place = self._position_before(seq)
        mark = NChange(seq=seq, step=step, before=before, after=after, asked_by=asked_by, place=place)
        self._markers.n_changes.append(mark)
        self._markers.revision += 1
        self._set_n(seq, after)

    def _set_n(self, seq: int, steps: int) -> None:
        self._placer.accumulation_steps = steps
        self._n_seqs.append(seq)
        self._n_values.append(steps)

    def _set_level(self, seq: int, key: str, value: Scalar) -> None:
        level = SettingLevel(seq=seq, key=key, value=value, place=self._placer.position)
        self._markers.settings.append(level)
        self._markers.revision += 1

    def _lose(self, seq: int, first: int, last: int) -> None:
        """Between the newest row before the lost ones and the first row after them."""
        begin = self._position_before(first)
        after = self._reader.select(
            "SELECT seq FROM MicroBatchMeasured WHERE seq>? ORDER BY seq LIMIT 1", (last,)
        )
        end = self._position_before(after[0][0] + 1) if after else begin
        self._markers.lost.append(LostRange(seq=seq, begin=begin, end=end))
        self._markers.revision += 1

    # ------------------------------------------------------------------ what is superseded

    def _hide_after(self, step: int, until: int) -> int | None:
        """Hide visible rows before `until` that belong to later steps than `step`."""
        first = self._first_row_after(step, until)
        if first is not None:
            self._hidden[:] = [known for known in self._hidden if known[0] < first]
            self._hidden.append((first, until - 1))
            while len(self._n_seqs) > 1 and self._n_seqs[-1] >= first:  # changes that are superseded too
                self._n_seqs.pop()
                self._n_values.pop()
            self._placer.accumulation_steps = self._n_values[-1]
        self._placer.position = self._position_before(until)
        return first

    def _first_row_after(self, step: int, until: int) -> int | None:
        """Number of the first visible micro-batch of a later step, by bisection; None when there is none."""
        low, high = 0, until  # rows up to `low` are of `step` or earlier
        found: int | None = None
        while high - low > 1:
            middle = (low + high) // 2
            row = self._row_before(middle + 1)
            if row is not None and row[2] > step:
                found = high = int(row[0])
            else:
                low = middle
        return found

    def _row_before(self, seq: int) -> tuple[float, ...] | None:
        """Some columns of the newest visible micro-batch before row `seq`."""
        return self._visible_before(
            seq, lambda end: next(iter(self._reader.select(_ROW_BEFORE, (end,))), None)
        )

    def newest_before(self, kind: type[Event], seq: int) -> tuple[Any, ...] | None:
        """The newest visible row of one measurement before row `seq`."""
        return self._visible_before(seq, lambda end: self._reader.newest(kind, before=end))

    def _visible_before(
        self, seq: int, read: Callable[[int], tuple[Any, ...] | None]
    ) -> tuple[Any, ...] | None:
        """The newest row before `seq` that is not superseded; `read` gives the newest one at all."""
        while True:
            seq = next((first for first, last in self._hidden if first < seq <= last + 1), seq)
            row = read(seq)
            if row is None:
                return None
            if not any(first <= row[0] <= last for first, last in self._hidden):
                return row
            seq = row[0] + 1

    def _position_before(self, seq: int) -> RunPosition:
        row = self._row_before(seq)
        if row is None:
            return RunPosition()
        number, at, step, index, samples, tokens = row
        share = min(1.0, (index + 1) / float(self.steps_at(np.array([number]))[0]))
        active = float(self._clock.active_by_seq(np.array([number]), np.array([at]))[0])
        return RunPosition(steps=step - 1 + share, samples=samples, tokens=tokens, time=active)
