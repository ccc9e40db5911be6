"""What a resumed run does again of what was changed after its checkpoint. No torch.

A change holds from the start of window `step`. Windows of the same number hold the same samples as
long as everything before was repeated; a new command on the way ends the replay. `RunFacts.changes_ahead`
tells what was changed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from trainer_backend.protocol import Scalar


class ReplayedSetting(msgspec.Struct, frozen=True):
    """A setting (the recipe's key, or CEILING) is `after` from the start of window `step` on."""

    step: int
    key: str
    after: Scalar
    asked_by: str = "replay"
    micro_batches: int | None = None
    """Of a changed N: M, over the ranks of then, which stays on any others."""


class RecordedChanges:
    """The changes that are still ahead."""

    def __init__(self, changes: Iterable[ReplayedSetting] = ()) -> None:
        self._changes = sorted(changes, key=lambda change: change.step)

    def __bool__(self) -> bool:
        return bool(self._changes)

    def take(self, step: int) -> list[ReplayedSetting]:
        """The changes that hold from window `step` on."""
        due = [change for change in self._changes if change.step <= step]
        self._changes = self._changes[len(due) :]
        return due

    def clear(self) -> None:
        """The run goes another way from here."""
        self._changes = []
