"""Places that every chart marks: where N changed, where an attempt began, where rows were lost."""

from __future__ import annotations

import msgspec

from gradacc_gui.store.clock import RunPosition
from trainer_backend.protocol import Scalar


class NChange(msgspec.Struct, frozen=True, kw_only=True):
    """N is `after` from window `step` on."""

    seq: int
    step: int
    before: int
    after: int
    asked_by: str
    place: RunPosition
    """The border between the windows."""


class AttemptBegin(msgspec.Struct, frozen=True, kw_only=True):
    """A later attempt went on from here."""

    seq: int
    attempt: int
    place: RunPosition


class LostRange(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements between two places could not be kept."""

    seq: int
    begin: RunPosition
    end: RunPosition


class SettingLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A setting is `value` from here on."""

    seq: int
    key: str
    value: Scalar
    place: RunPosition


class Markers:
    """All marks of a run, in the order of seq."""

    def __init__(self) -> None:
        self.n_changes: list[NChange] = []
        self.attempts: list[AttemptBegin] = []
        self.lost: list[LostRange] = []
        self.settings: list[SettingLevel] = []
        self.revision = 0

    def hide(self, first: int, until: int) -> None:
        """Forget marks of superseded rows: first … until - 1."""
        self.hide_changes(first, until)
        self.attempts = [mark for mark in self.attempts if not first <= mark.seq < until]
        self.lost = [mark for mark in self.lost if not first <= mark.seq < until]
        self.revision += 1

    def hide_changes(self, first: int, until: int) -> None:
        """Forget what was changed by facts first … until - 1."""
        self.n_changes = [mark for mark in self.n_changes if not first <= mark.seq < until]
        self.settings = [mark for mark in self.settings if not first <= mark.seq < until]
        self.revision += 1
