"""A run's evaluations with what they measured and made for people to look at, by step. No Qt."""

from __future__ import annotations

from typing import Final

import msgspec

from gradacc_gui.store import RunStore
from trainer_backend.protocol import ArtifactSaved, EvaluationMeasured, Record, RolledBack, RunStarted

MATTERS: Final = (ArtifactSaved, RolledBack, RunStarted)


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be seen of one step."""

    step: int
    at: float
    """When the newest part of it was written, in seconds since the epoch."""
    measured: EvaluationMeasured | None
    artifacts: tuple[ArtifactSaved, ...]
    """In the order in which they were made."""


class Evaluations:
    """Follows a store; what a later attempt or a roll-back superseded is left out, as charts do."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._facts_taken = 0
        self._rows_until = 0
        self._records: list[Record] = []

    def take(self) -> bool:
        """Take what the store has; tells whether `visible` may have changed."""
        new = self._store.facts[self._facts_taken :]
        self._facts_taken += len(new)
        last = self._store.last
        rows = self._store.evaluations(self._rows_until)
        self._rows_until = last
        made = [record for record in new if isinstance(record.event, ArtifactSaved)]
        self._records.extend(sorted([*rows, *made], key=lambda record: record.seq))
        return bool(rows) or any(isinstance(record.event, MATTERS) for record in new)

    def visible(self) -> list[Evaluation]:
        """Oldest first. A step that was evaluated again shows what is newest of each file."""
        measured: dict[int, EvaluationMeasured] = {}
        artifacts: dict[int, dict[str, ArtifactSaved]] = {}
        at: dict[int, float] = {}
        for record in self._records:
            if self._store.is_superseded(record.seq):
                continue
            match record.event:
                case EvaluationMeasured() as event:
                    measured[event.step] = event
                    at[event.step] = record.at
                case ArtifactSaved() as event:
                    artifacts.setdefault(event.step, {})[event.path] = event
                    at[event.step] = record.at
                case _:
                    pass
        return [
            Evaluation(
                step=step,
                at=at[step],
                measured=measured.get(step),
                artifacts=tuple(artifacts.get(step, {}).values()),
            )
            for step in sorted(at)
        ]
