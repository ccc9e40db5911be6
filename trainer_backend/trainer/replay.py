"""What the journal says was changed after a checkpoint, so that a resumed run can do it again. No torch.

A change holds from the start of window `step`. Windows of the same number hold the same samples as
long as everything before was repeated; a new command on the way ends the replay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from trainer_backend.protocol import (
    AccumulationChanged,
    AnyEvent,
    OutOfMemoryRecovered,
    Record,
    RolledBack,
    Scalar,
    SettingChanged,
    Warned,
)
from trainer_backend.settings import FIELDS

CEILING: Final = "micro_batch_ceiling"
"""A window that ran out of memory is split again as it was."""
ENDED: Final = "replay-ended"
DECLINED: Final = "replay-declined"
"""Codes of the warnings that void what was recorded before them."""
STEPS: Final = "accumulation.gradient_accumulation_steps"
KINDS: Final = (AccumulationChanged, SettingChanged, OutOfMemoryRecovered, RolledBack, Warned)
"""What has to be read from the journal."""


class Change(msgspec.Struct, frozen=True):
    """A setting (the recipe's key, or CEILING) is `after` from the start of window `step` on."""

    step: int
    key: str
    after: Scalar
    asked_by: str = "replay"


class RecordedChanges:
    """The changes that are still ahead."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self._changes = sorted(changes, key=lambda change: change.step)

    def __bool__(self) -> bool:
        return bool(self._changes)

    def take(self, step: int) -> list[Change]:
        """The changes that hold from window `step` on."""
        due = [change for change in self._changes if change.step <= step]
        self._changes = self._changes[len(due) :]
        return due

    def clear(self) -> None:
        """The run goes another way from here."""
        self._changes = []


def recorded_changes(
    records: Iterable[Record], *, after_step: int, after_place: tuple[int, int] | None = None
) -> list[Change]:
    """Changes after a checkpoint at `after_step`, over all attempts, a later word replacing an earlier.

    `after_place`: attempt and sequence number that the checkpoint holds. What its own attempt recorded
    until then is in its settings, also what was changed for the window behind it (paused, say). What
    earlier attempts recorded for later windows was still ahead of it.
    """
    attempt, seq = after_place or (0, 0)
    found: dict[tuple[int, str], Change] = {}
    for record in records:
        change = _change_of(record.event)
        if change is not None:
            if record.attempt == attempt and record.seq <= seq:
                # It also takes the place of what an earlier attempt said for this window.
                found.pop((change.step, change.key), None)
                continue
            found[change.step, change.key] = change
            continue
        horizon = _voided_after(record.event)
        if horizon is not None:
            found = {place: change for place, change in found.items() if place[0] <= horizon}
    return sorted(
        (change for change in found.values() if change.step > after_step), key=lambda change: change.step
    )


def _change_of(event: AnyEvent) -> Change | None:
    match event:
        case AccumulationChanged(asked_by="schedule"):
            return None  # the recipe's schedule comes again by itself
        case AccumulationChanged():
            return Change(event.step, STEPS, event.after)
        case SettingChanged() if event.key in FIELDS:
            return Change(event.step, event.key, event.after)
        case OutOfMemoryRecovered():
            return Change(event.step, CEILING, event.micro_batch_size)
        case _:
            return None


def _voided_after(event: AnyEvent) -> int | None:
    """The last step whose changes still hold after `event`; None when all do."""
    match event:
        case RolledBack():
            return event.to_step
        case Warned() if event.code in (ENDED, DECLINED):
            return int(event.values.get("step") or 0) - 1
        case _:
            return None
