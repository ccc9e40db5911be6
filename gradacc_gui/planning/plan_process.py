"""`python -m trainer_backend plan` beside the window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from PySide6.QtCore import QObject, Signal

from gradacc_gui.side_job import SideJob
from trainer_backend.planner.pairs import Plan
from trainer_backend.planner.plan_messages import PlanFailed, PlanMessage, PlanProgress


class PlanProcess(SideJob):
    """One plan at a time: `progressed` for each probe, then one of `finished`, `failed`, `cancelled`."""

    progressed = Signal(object)
    """A `PlanProgress`."""
    finished = Signal(object)
    """The `Plan`."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.effective_batch: int | None = None
        """Instead of the recipe's own."""
        self._plan: Plan | None = None
        self._sentence = ""

    def forget(self) -> None:
        """No plan yet."""
        self._plan, self._sentence = None, ""

    def arguments(self, recipe: Path) -> Sequence[str]:
        """One message a line."""
        more = [] if self.effective_batch is None else ["--effective-batch", str(self.effective_batch)]
        return ["plan", str(recipe), "--stream", *more]

    def take(self, line: bytes) -> None:
        """Hand progress on; keep what ends the plan."""
        message: PlanMessage = msgspec.json.decode(line, type=PlanMessage)
        match message:
            case Plan():
                self._plan = message
            case PlanFailed():
                self._sentence = message.message
            case PlanProgress():
                self.progressed.emit(message)

    def ended(self) -> bool:
        """Hand the plan out."""
        if self._plan is not None:
            self.finished.emit(self._plan)
        return self._plan is not None

    def sentence(self) -> str:
        """Why there is no plan."""
        return self._sentence
