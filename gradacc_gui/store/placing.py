"""What facts do to the data: start and stop the clock, change N, hide superseded rows, set marks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, assert_never

import numpy as np

from gradacc_gui.series import Floats
from gradacc_gui.store.clock import Clock, RunPosition
from gradacc_gui.store.ingest import Placer
from gradacc_gui.store.markers import AttemptBegin, LostRange, Markers, NChange, SettingLevel
from trainer_backend.journal import JournalReader
from trainer_backend.protocol import (
    Event,
    MeasurementsLost,
    Paused,
    Record,
    Resumed,
    RunFailed,
    RunFinished,
    RunStopped,
    Slept,
)
from trainer_backend.run_facts import Effect, RecordedChange, RunFacts, Stand
from trainer_backend.settings import STEPS

_ON_THE_CLOCK: Final = (
    MeasurementsLost, Paused, Resumed, RunFailed, RunFinished, RunStopped, Slept,
)  # fmt: skip
_ROW_BEFORE: Final = (
    'SELECT seq, at, step, "index", samples_seen, coalesce(tokens_seen, 0) FROM MicroBatchMeasured'
    " WHERE seq<? ORDER BY seq DESC LIMIT 1"
)


class FactPlacer:
    """Applies facts in order to the clock, the placer and the marks that it is given."""

    def __init__(
        self,
        reader: JournalReader,
        facts: RunFacts,
        hidden: list[tuple[int, int]],
        clock: Clock,
        placer: Placer,
        markers: Markers,
    ) -> None:
        self._reader = reader
        self._facts = facts
        self._hidden = hidden
        """Superseded ranges of seq, both ends included, ascending and apart."""
        self._clock = clock
        self._placer = placer
        self._markers = markers
        self._attempt = 0
        self._first_n = 1
        """N that the first attempt began with."""

    def matters(self, record: Record, effect: Effect | None) -> bool:
        """Whether rows before and after this fact, which had this effect, are placed differently."""
        return (
            effect is not None or isinstance(record.event, _ON_THE_CLOCK) or record.attempt != self._attempt
        )

    def steps_at(self, seq: Floats) -> Floats:
        """N in force at rows, by their seq."""
        seqs, values = self._facts.accumulation()
        place = np.searchsorted(np.array(seqs), seq, side="right") - 1
        return np.array(values, dtype=np.float64)[place]

    def stand_at(self, seq: int) -> None:
        """Place what comes next after the newest visible row before `seq`."""
        self._placer.position = self._position_before(seq)

    def apply(self, record: Record, effect: Effect | None) -> int | None:
        """Take a fact and what it did; gives the first superseded row when it supersedes some."""
        if record.attempt != self._attempt:
            self._attempt = record.attempt
            self._stop_clock(record.seq)
        match effect:
            case Stand():
                return self._stand(effect)
            case RecordedChange(key=key) if key == STEPS:
                self._mark_n(effect.seq, effect.step, effect.asked_by)
            case RecordedChange():
                level = SettingLevel(
                    seq=effect.seq, key=effect.key, value=effect.after, place=self._placer.position
                )
                self._markers.settings.append(level)
                self._markers.revision += 1
            case None:
                self._tell_the_clock(record)
            case _:
                assert_never(effect)
        return None

    def _tell_the_clock(self, record: Record) -> None:
        match record.event:
            case Paused() | RunFinished() | RunStopped() | RunFailed():
                self._clock.stop(record.seq, record.at, self._clock.now(record.at))
            case Resumed():
                self._clock.start(record.seq, record.at, self._clock.now(record.at))
            case Slept(duration_s=duration_s):
                self._clock.sleep(record.seq, record.at, duration_s, self._placer.position.time)
            case MeasurementsLost(first=first, last=last):
                self._lose(record.seq, first, last)
            case _:
                pass  # no other fact moves rows

    def _stop_clock(self, seq: int) -> None:
        """An attempt that never said how it ended counts up to its last micro-batch."""
        row = self._row_before(seq) if self._clock.runs else None
        self._clock.stop(seq, row[1] if row is not None else 0.0, self._placer.position.time)

    def _stand(self, stand: Stand) -> int | None:
        """An attempt begins, or the run went back: later rows are superseded."""
        first_attempt = stand.begins_attempt and stand.attempt == 1
        hidden_from = None if first_attempt else self._hide_after(stand.step, stand.seq)
        position = self._placer.position
        if not stand.begins_attempt:
            go_on = self._clock.start if self._clock.runs else self._clock.stop
            go_on(stand.seq, stand.at, position.time)
        else:
            self._placer.position = RunPosition(
                steps=stand.step, samples=stand.samples, tokens=stand.tokens, time=position.time
            )
            self._clock.start(stand.seq, stand.at, position.time)
        if first_attempt:
            self._first_n = self._placer.accumulation_steps = self._facts.accumulation_at(stand.seq)
        else:
            if stand.checkpoint_seq is not None:  # what was changed behind it, before the next window
                self._markers.hide_changes(stand.checkpoint_seq + 1, stand.seq)
            if hidden_from is not None:
                self._markers.hide_changes(hidden_from, stand.seq)
            if stand.begins_attempt:
                begin = AttemptBegin(seq=stand.seq, attempt=stand.attempt, place=self._placer.position)
                self._markers.attempts.append(begin)
            self._mark_n(stand.seq, stand.step + 1, "resume")
        self._markers.revision += 1
        return hidden_from

    def _mark_n(self, seq: int, step: int, asked_by: str) -> None:
        """N is another from here on; marked unless the marks say so already."""
        after = self._facts.accumulation_at(seq)
        marks = self._markers.n_changes
        before = marks[-1].after if marks else self._first_n
        self._placer.accumulation_steps = after
        if before == after:
            return
        place = self._placer.position
        if place.steps == 0 and step > 1:
            place = self._position_before(seq)
        mark = NChange(seq=seq, step=step, before=before, after=after, asked_by=asked_by, place=place)
        self._markers.n_changes.append(mark)
        self._markers.revision += 1

    def _lose(self, seq: int, first: int, last: int) -> None:
        """Between the newest row before the lost ones and the first row after them."""
        begin = self._position_before(first)
        after = self._reader.select_numbers(
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
            seq, lambda end: next(iter(self._reader.select_numbers(_ROW_BEFORE, (end,))), None)
        )

    def newest_before(self, kind: type[Event], seq: int) -> Record | None:
        """The newest visible event of one measurement before row `seq`."""
        row = self._visible_before(seq, lambda end: self._reader.newest(kind, before=end))
        return None if row is None else self._reader.typed(kind, row)

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
