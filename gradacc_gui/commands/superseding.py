"""Measurements that a later attempt, or a roll-back, went back behind: their steps were trained again."""

from __future__ import annotations

from collections.abc import Iterable

from trainer_backend.journal import JournalReader
from trainer_backend.protocol import RolledBack, RunStarted


def borders(reader: JournalReader) -> list[tuple[int, int]]:
    """(seq, step): rows before seq with a larger step were trained again."""
    found = []
    for record in reader.facts(RunStarted, RolledBack):
        match record.event:
            case RunStarted(from_step=step) | RolledBack(to_step=step):
                found.append((record.seq, step))
    return found


def is_superseded(seq: int, step: int, went_back: Iterable[tuple[int, int]]) -> bool:
    """Whether the measurement with this number, of this step, was trained again."""
    return any(seq < later and step > to for later, to in went_back)
