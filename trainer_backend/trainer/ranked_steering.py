"""One run's commands on all of its ranks: rank 0 takes them from the inbox, and all obey at one border.

Before each window the ranks exchange one vector: rank 0 says what it took, all say whether a signal came
or their launcher died. So the same code decides the same on every rank; what only one of them can know (the
inbox, the clock, a signal) comes to all at the same border. While the run is paused they repeat it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from trainer_backend.protocol import AnswerGate, Pause, RollBack
from trainer_backend.settings import Settings
from trainer_backend.torchrun import RankPlace
from trainer_backend.trainer.steering import Pending, Steering, StopReason

ROUND_S: Final = 0.05
"""Time between two exchanges while the run is paused."""
SHORT_BYTES: Final = 240
"""What fits into the vector; longer words, after many commands at once, go separately."""
_SIGNALLED, _ORPHAN = 1.0, 1024.0


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 tells at a border."""

    opens: bool
    """Whether the window opens."""
    pending: tuple[Pending, ...] = ()
    stopping: StopReason = ""
    is_save_due: bool = False
    """Whether so much time has passed since the last checkpoint that one is saved after this window."""


class Talking(Protocol):
    """The ranks of a run: `trainer_backend.engine.ranks.Ranks`. Both are collective."""

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sum."""
        ...

    def gather(self, mine: Any) -> list[Any]:  # noqa: ANN401 - anything that can be pickled
        """What each brings."""
        ...


class RankedSteering:
    """As `Steering`, told alike on all ranks. `own`: rank 0's, which has the inbox; None on the others."""

    def __init__(self, place: RankPlace, own: Steering | None) -> None:
        self._place = place
        self._own = own
        self.ranks: Talking | None = None
        """None until they have met."""
        self.checkpoints: Callable[[], list[int]] = list
        self._orders = Orders(opens=False)
        self._signalled = False
        self.paused = False
        self.due_at = math.inf
        """Over ranks a stop waits for the border."""
        self.is_time_up: Callable[[], bool] = lambda: False
        """Rank 0: whether a checkpoint is due by the clock."""

    @property
    def stopping(self) -> StopReason:
        """Whether the run ends at this border: the same on all ranks."""
        return self._orders.stopping

    @property
    def asked(self) -> StopReason:
        """What this rank alone knows already; a window is left by it, and then by all."""
        return self._orders.stopping if self._own is None else self._own.stopping

    @property
    def is_save_due(self) -> bool:
        """Whether a checkpoint was due by the clock when the window began: the same on all ranks."""
        return self._orders.is_save_due

    def begin(self, step: int, settings: Settings) -> None:
        """See `Steering`."""
        if self._own is not None:
            self._own.begin(step, settings)

    def start_window(self, step: int, settings: Settings) -> bool:
        """See `Steering`. Collective."""
        own = Orders(opens=False)
        if self._own is not None:
            opens = self._own.start_window(step, settings)
            pending = () if opens else tuple(self._own.take(step, settings, at_most_s=ROUND_S))
            own = Orders(
                opens=opens, pending=pending, stopping=self._own.stopping, is_save_due=self.is_time_up()
            )
        self._orders, flags = self._exchange(own)
        if flags and self._own is not None:
            self._own.stop("launcher" if flags >= _ORPHAN else "signal")
        return self._orders.opens and not flags

    def take(self, step: int, settings: Settings) -> Sequence[Pending]:
        """What is to be obeyed before window `step`, as told by the exchange before."""
        del step, settings
        return self._orders.pending

    def set_paused(self, *, paused: bool) -> None:
        """The loop has obeyed a pause or a resume."""
        self.paused = paused
        if self._own is not None:
            self._own.set_paused(paused=paused)

    def stop(self, reason: StopReason) -> None:
        """Ask for the end from inside this rank: a signal."""
        if self._own is not None:
            self._own.stop(reason)
        self._signalled = True

    @property
    def leads(self) -> bool:
        """Whether what the trainer itself decides is decided on this rank."""
        return self._own is not None

    def ask_itself(self, command: Pause | RollBack) -> None:
        """See `Steering`; rank 0's comes to all at the next border."""
        if self._own is not None:
            self._own.ask_itself(command)

    def open_gate(self, minutes: float | None, no_answer: AnswerGate) -> None:
        """See `Steering`."""
        if self._own is not None:
            self._own.open_gate(minutes, no_answer)

    def close_gate(self) -> None:
        """See `Steering`."""
        if self._own is not None:
            self._own.close_gate()

    def tick(self) -> None:
        """There is no inbox here."""

    def end(self) -> None:
        """No command waits here."""

    def _exchange(self, own: Orders) -> tuple[Orders, float]:
        """Rank 0's orders, and what came to any rank from outside. Collective."""
        leads, place, ranks = self._place.leads, self._place, self.ranks
        assert ranks is not None
        text = msgspec.msgpack.encode(own) if leads else b""
        flag = _ORPHAN if place.is_orphan() else _SIGNALLED if self._signalled else 0.0
        if leads:  # its own signal is in its orders
            flag = flag if flag == _ORPHAN and not own.stopping else 0.0
        else:
            self._signalled = False  # told once
        is_long = len(text) > SHORT_BYTES
        words = [0.0] * SHORT_BYTES if is_long else [*map(float, text), *[0.0] * (SHORT_BYTES - len(text))]
        flags, length, *numbers = ranks.sum([flag, float(len(text)), *words])
        if length > SHORT_BYTES:
            text = ranks.gather(text)[0]
        elif not leads:
            text = bytes(map(int, numbers[: int(length)]))
        return (own if leads else msgspec.msgpack.decode(text, type=Orders)), flags
