"""One run's data, for charts, header and decision log: follows the journal, whoever writes it.

    journal ─ poll ─▶ facts ─▶ state, markers, what is hidden
                    └▶ rows ─ placed on the x-axes ─▶ tracks (newest rows) ─ dropped chunks ─▶ histories
    roll-ups ─ fetched bit by bit ─▶ histories (what lies before the newest rows; detail when zoomed)

Live, re-attached and finished runs take this one way. A long run opens at its newest rows; what lies
before comes from the journal's roll-ups within a few polls. Rows that a later attempt or a roll-back
superseded are taken out when the fact arrives. No Qt; nothing waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from gradacc_gui.series import Floats, Groups, concatenate
from gradacc_gui.store.clock import AXIS_COLUMN, Axis, Clock, RunPosition, View
from gradacc_gui.store.columns import BLOCK, SINGLE_ROWS, Track
from gradacc_gui.store.ingest import PLACELESS, WANTED, Placer, as_columns, new_tracks
from gradacc_gui.store.markers import Markers
from gradacc_gui.store.past import CHARTED, Detail, History, Past, visible_intervals
from gradacc_gui.store.placing import FactPlacer
from gradacc_gui.store.rollups import RollupReader
from trainer_backend.errors import GradaccError
from trainer_backend.journal import FACTOR, JournalReader, Slice
from trainer_backend.protocol import (
    AnyCommand,
    EvaluationMeasured,
    Event,
    MicroBatchMeasured,
    Record,
    RunEnded,
    RunStarted,
    Scalar,
)
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import Effect, RunFacts, RunState
from trainer_backend.settings import Settings

TAIL_EVENTS: Final = 100_000
"""A run is opened at so many newest events; what lies before comes from roll-ups."""
READ_EVENTS: Final = 500
"""Events of one read: about 1 ms, read and applied."""
LOCK_INTERVAL_S: Final = 0.5
OVERVIEW_ENTRIES: Final = 32_768
"""The finest roll-up level with at most so many buckets is the overview."""


class RunStore:
    """Follows one run directory. Call `poll` from the one timer; all else only reads memory."""

    def __init__(self, run: RunDirectory, asked: Settings | None = None) -> None:
        """`asked`: the settings of its recipe, where they are known."""
        self.run = run
        self.so_now = RunFacts(asked)
        """What the facts taken so far say is so now."""
        self.facts: list[Record] = []
        """Every fact of every attempt, in order: what the decision log shows."""
        self.latest: dict[type[Event], Any] = {}
        """The newest visible event of each measurement."""
        self.markers = Markers()
        self.problem = ""
        """Why the journal cannot be read, as a sentence; empty while it can."""
        self.alive = False
        """Whether a trainer holds the run's lock."""
        self.caught_up = False
        """Whether the last poll reached the journal's end."""
        self.last = 0
        """Number of the newest event taken."""
        self.took_many = False
        """Whether the last poll took in so much that nothing else should be done with it."""
        self._reader: JournalReader | None = None
        self._clock = Clock()
        self._placer = Placer(self._clock)
        self._tracks = new_tracks()
        self._histories = {kind: History(kind) for kind in CHARTED}
        self._renewed: set[type[Event]] = set()
        """Measurements that came since `latest` was looked up."""
        self._hidden: list[tuple[int, int]] = []
        self._overview: Iterator[None] | None = None
        self._details: deque[Iterator[None]] = deque()
        self._pid: int | None = None
        self._lock_due = 0.0
        self._silent_since_check = False
        self._state = RunState.PENDING

    # ---------------------------------------------------------------------------- reading

    def poll(self, budget_s: float = 0.004) -> bool:
        """Take what the journal has, for about `budget_s`; True when anything changed.

        Reads at least one slice of events, so that it falls behind no run, then fetches history.
        """
        began, before = time.monotonic(), self.last
        self._look_at_lock(began)
        if not self._open():
            return self._refresh_state()
        changed = False
        try:
            while True:
                changed = self._take_slice() or changed
                if self.caught_up or time.monotonic() - began >= budget_s:
                    break
            self._renew_latest()
            while time.monotonic() - began < budget_s and self._fetch():
                changed = True
        except GradaccError as error:
            self.problem = str(error)
        self.took_many = self.last - before >= READ_EVENTS
        return self._refresh_state() or changed

    def close(self) -> None:
        """Close the journal's reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def sent(self, command: AnyCommand) -> None:
        """Remember a command sent from here: its acceptance does not say what it was."""
        self.so_now.sent(command)

    def _open(self) -> bool:
        if self._reader is not None:
            return True
        if not self.run.journal_path.is_file():
            return False
        try:
            self._reader = JournalReader(self.run.journal_path)
            self._replay = FactPlacer(
                self._reader, self.so_now, self._hidden, self._clock, self._placer, self.markers
            )
            self._rollups = RollupReader(self._reader, self._clock, self._replay.steps_at)
            self._skip_to_tail(self._reader)
        except GradaccError as error:
            self.problem = str(error)
            self.close()
            return False
        self.problem = ""
        return True

    def _skip_to_tail(self, reader: JournalReader) -> None:
        """Start near the end of a long run: its facts at once, its older rows as roll-ups."""
        head = reader.head()
        if head <= TAIL_EVENTS:
            return
        start = (head - TAIL_EVENTS) // FACTOR**2 * FACTOR**2
        for record in reader.facts():
            if record.seq >= start:
                break
            self._apply_fact(record, self.so_now.take(record))
        self._replay.stand_at(start)
        self.last = start - 1
        self._overview = self._load_overview(start)

    def _look_at_lock(self, now: float) -> None:
        if now < self._lock_due:
            return
        self._lock_due = now + LOCK_INTERVAL_S
        self.alive = self.run.is_alive()
        self._pid = self.run.pid() if self.alive else None
        # Only a journal read to its end after the lock was seen free can tell how the run ended.
        self._silent_since_check = False

    def _take_slice(self) -> bool:
        assert self._reader is not None
        part = self._reader.read_numbers(self.last, READ_EVENTS, WANTED)
        self.last = part.last
        self.caught_up = len(part) < READ_EVENTS // 2 and part.last - part.after < READ_EVENTS
        self._silent_since_check = self._silent_since_check or self.caught_up
        if not len(part):
            return False
        self._apply(part)
        return True

    # --------------------------------------------------------------------------- applying

    def _apply(self, part: Slice) -> None:
        """Rows up to each fact that changes how rows are placed or hidden, then the fact."""
        blocks = {kind: as_columns(kind, rows) for kind, rows in part.rows.items()}
        for record in part.facts:
            effect = self.so_now.take(record)
            if self._replay.matters(record, effect):
                blocks = self._add_before(blocks, record.seq)
            self._apply_fact(record, effect)
        self._add(blocks)
        self._renewed.update(part.rows)

    def _renew_latest(self) -> None:
        """Look up the newest event of each measurement that came."""
        for kind in self._renewed:
            newest = self._replay.newest_before(kind, self.last + 1)
            if newest is not None:
                self.latest[kind] = newest.event
        self._renewed.clear()

    def _add_before(self, blocks: dict[type[Event], Floats], seq: int) -> dict[type[Event], Floats]:
        ends = {kind: int(np.searchsorted(block[0], seq)) for kind, block in blocks.items()}
        self._add({kind: block[:, : ends[kind]] for kind, block in blocks.items()})
        return {kind: block[:, ends[kind] :] for kind, block in blocks.items()}

    def _add(self, blocks: dict[type[Event], Floats]) -> None:
        for kind, block in self._placer.place(blocks).items():
            track = self._tracks[kind]
            for chunk in track.append(block):
                self._histories[kind].add(Past.of_chunk(kind, track, chunk))

    def _apply_fact(self, record: Record, effect: Effect | None) -> None:
        self.facts.append(record)
        hidden_from = self._replay.apply(record, effect)
        if hidden_from is not None:
            self._hide_from(hidden_from, record.seq)

    def _hide_from(self, seq: int, until: int) -> None:
        """Rows seq … until were superseded."""
        for kind, track in self._tracks.items():
            track.truncate(seq)
            self._histories[kind].truncate(seq)
        self.markers.hide(seq, until)
        self._details.clear()
        for kind, event in list(self.latest.items()):
            if getattr(event, "step", 0) > self._placer.position.steps:
                del self.latest[kind]
                newest = self._replay.newest_before(kind, seq)
                if newest is not None:  # where the run stands again is told before it made its next step
                    self.latest[kind] = newest.event
        if any(len(history.past) for history in self._histories.values()) or self._overview is not None:
            self._overview = self._load_overview(until)

    # ---------------------------------------------------------------------------- history

    def _fetch(self) -> bool:
        """One bounded query for the overview or for the detail that is looked at; False when all is there."""
        if self._overview is not None:
            if next(self._overview, True):
                self._overview = None
            return True
        while self._details:
            if next(self._details[0], True):
                self._details.popleft()
                continue
            return True
        return False

    def _load_overview(self, until: int) -> Iterator[None]:
        """Entries for everything visible before row `until`, swapped in measurement by measurement."""
        level = next(level for level in (1, 2, 3) if until // FACTOR**level <= OVERVIEW_ENTRIES or level == 3)
        for kind in CHARTED:
            found: list[Past] = []
            for part in self._entries(kind, 1, until - 1, level):
                found.append(part)
                yield
            held = self._tracks[kind].first("seq")
            end = int(held) if held == held and held < until else until  # noqa: PLR0124 - NaN: none held
            entries = Past.joined([Past.empty(kind), *found])
            entries = entries.cut(0, int(np.searchsorted(entries.seq, end)))
            self._histories[kind].replace_before(until, entries)

    def _entries(self, kind: type[Event], first: int, last: int, level: int) -> Iterator[Past]:
        assert self._reader is not None
        if not self._reader.holds(kind):
            return
        placing = self._place_by_seq if kind in PLACELESS else None
        if kind is EvaluationMeasured:
            level = 0
        for begin, end in visible_intervals(first, last, self._hidden):
            yield from self._rollups.entries(kind, begin, end, level, placing)

    def _place_by_seq(self, seq: Floats) -> dict[Axis, Floats]:
        """Places of rows without one of their own, between those of the micro-batches around them."""
        micro = self._histories[MicroBatchMeasured].past
        if not len(micro):
            return {axis: np.zeros(len(seq)) for axis in ("steps", "samples", "tokens")}
        return {axis: np.interp(seq, micro.seq, micro.x[axis]) for axis in ("steps", "samples", "tokens")}

    def look_at(self, view: View) -> None:
        """Somebody looks at `view`: fetch finer entries where the past is too coarse for it."""
        if self._overview is not None or self._reader is None:
            return
        margin = (view.x1 - view.x0) / 2
        wider = View(view.axis, view.x0 - margin, view.x1 + margin, 2 * view.width)
        for kind in CHARTED:
            history = self._histories[kind]
            if history.wanted(view) is None:
                continue
            wanted = history.wanted(wider)
            if wanted is not None:
                history.detail = wanted
                self._details.append(self._load_detail(history, wanted))

    def _load_detail(self, history: History, wanted: Detail) -> Iterator[None]:
        found: list[Past] = []
        for part in self._entries(history.kind, wanted.first, wanted.last, wanted.level):
            if history.detail is not wanted:
                return  # the view has moved on
            found.append(part)
            yield
        wanted.entries = Past.joined([Past.empty(history.kind), *found])
        history.revision += 1

    # ---------------------------------------------------------------------------- the view

    def _refresh_state(self) -> bool:
        state = self.so_now.state(alive=self.alive, pid=self._pid)
        if state is RunState.INTERRUPTED and not self._silent_since_check:
            return False
        changed = state is not self._state
        self._state = state
        return changed

    @property
    def state(self) -> RunState:
        """What the run is doing."""
        return self._state

    @property
    def phase(self) -> str:
        """What the trainer said last that it does: a `PhaseEntered.phase`, or empty."""
        return self.so_now.phase

    @property
    def attempt(self) -> int:
        """The newest attempt, from 1; 0 before the first."""
        return self.so_now.attempt

    @property
    def started(self) -> RunStarted | None:
        """How the newest attempt that became ready began."""
        return self.so_now.started

    @property
    def ended(self) -> RunEnded | None:
        """How the newest attempt ended; None while it runs, or when it was interrupted."""
        return self.so_now.ended

    @property
    def accumulation_steps(self) -> int:
        """N of the window that is open."""
        return self._placer.accumulation_steps

    @property
    def world_size(self) -> int:
        """What N is multiplied by: the ranks that it was said for; 1 before the first attempt began."""
        settings = self.so_now.settings
        return settings.world_size if settings is not None else 1

    @property
    def micro_batch_size(self) -> int:
        """Samples of one micro-batch of the window that is open."""
        settings = self.so_now.settings
        return settings.micro_batch_size if settings is not None else 0

    @property
    def started_at(self) -> float | None:
        """When the newest attempt that became ready did so, in seconds since the epoch."""
        return self.so_now.started_at

    def levels(self, key: str) -> list[tuple[RunPosition, Scalar]]:
        """A setting's values and from where they hold: as the recipe has it, then as it was changed."""
        levels = [(RunPosition(), self.run.recipe_value(key))]
        return levels + [(mark.place, mark.value) for mark in self.markers.settings if mark.key == key]

    def evaluations(self, after: int = 0) -> list[Record]:
        """Evaluations after event `after` as far as events were taken; superseded ones too."""
        if self._reader is None or self.last <= after:
            return []
        try:
            return self._reader.records_of(EvaluationMeasured, after + 1, self.last)
        except GradaccError as error:
            self.problem = str(error)
            return []

    def is_superseded(self, seq: int) -> bool:
        """Whether a later attempt or a roll-back made event `seq` void."""
        return any(first <= seq <= last for first, last in self._hidden)

    @property
    def loading_history(self) -> bool:
        """Whether older parts of the run are still on their way from the journal."""
        return self._overview is not None or bool(self._details)

    @property
    def is_behind(self) -> bool:
        """Whether the journal has more than was taken: the next poll may come sooner."""
        return self._reader is not None and not self.problem and (not self.caught_up or self.loading_history)

    def active_s(self, now: float) -> float:
        """Seconds the run was active until the wall clock's `now`; downtime and pauses left out.

        Time spent on steps that a roll-back or a later attempt superseded stays spent.
        """
        killed = self._clock.runs and not self.alive  # when is not known: it counts to its last micro-batch
        return self._clock.spent(self._clock.wall(self._placer.position.time) if killed else now)

    def track(self, kind: type[Event]) -> Track:
        """The newest rows of one measurement."""
        return self._tracks[kind]

    def revision(self, kind: type[Event]) -> int:
        """Rises whenever rows of `kind` came, went or became finer."""
        return self._tracks[kind].revision + self._histories[kind].revision

    def extent(self, axis: Axis) -> tuple[float, float]:
        """Where the run begins and stands on an x-axis."""
        return 0.0, self._placer.position.on(axis)

    def items(self, kind: type[Event], field: str, view: View) -> Groups:
        """What `view` shows of a field, ready for `series.decimate`."""
        axis, x0, x1 = view.axis, view.x0, view.x1
        past = self._histories[kind].items(axis, field, x0, x1)
        most = min(BLOCK * view.width, SINGLE_ROWS)
        rows = self._tracks[kind].items(AXIS_COLUMN[axis], field, x0, x1, most)
        return concatenate((past, rows))
