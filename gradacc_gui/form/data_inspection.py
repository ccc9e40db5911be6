"""Looks at the recipe's data beside the GUI thread, a moment after the last key."""

from __future__ import annotations

from functools import partial
from typing import Final

from PySide6.QtCore import QObject, QTimer, Signal

from gradacc_gui.recipe.data_facts import DataFacts, DataQuestion, inspect_data
from gradacc_gui.recipe.draft import Draft
from gradacc_gui.session.background import Background

AFTER_MS: Final = 250
POLL_MS: Final = 40


class DataInspection(QObject):
    """`changed` comes when something else is known of the data."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.facts = DataFacts()
        self._question: DataQuestion | None = None
        self._active = False
        self._background: Background | None = None
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._tick)

    def ask(self, draft: Draft) -> None:
        """Look at the draft's data, if they are others than before."""
        question = question_of(draft)
        if question == self._question:
            return
        self._question = question
        self.facts = DataFacts()
        if self._active:
            self._timer.start(AFTER_MS)

    def look_again(self) -> None:
        """Look once more at what had a fault: it may have been mended outside."""
        if self.facts.faults and self._active:
            self._timer.start(0)

    def set_active(self, active: bool) -> None:
        """Only a page that is seen looks."""
        unknown = self._question is not None and self.facts == DataFacts()
        if active and not self._active and (unknown or self.facts.faults):
            self._timer.start(0)
        self._active = active

    def _tick(self) -> None:
        if self._background is None:
            question = self._question
            if question is None:
                self._timer.stop()
                return
            self._background = Background()
            know = partial(self._know, question)
            self._background.submit(lambda: inspect_data(question), know, lambda _sentence: know(DataFacts()))
            self._timer.start(POLL_MS)
            return
        self._background.poll()
        if not self._background.is_busy:
            self.shut_down()

    def _know(self, question: DataQuestion, facts: DataFacts) -> None:
        if question == self._question:
            self.facts = facts
            self.changed.emit()
        else:
            self._again()

    def _again(self) -> None:
        """The text changed meanwhile: inspect the data once more after this tick."""
        QTimer.singleShot(0, self, partial(self._timer.start, 0))

    def shut_down(self) -> None:
        """Wait for an inspection that is under way, and let go of its thread."""
        self._timer.stop()
        if self._background is not None:
            self._background.close()
            self._background = None


def question_of(draft: Draft) -> DataQuestion:
    """What there is to inspect: the paths in [data] that say something."""
    paths = tuple(
        (path, draft.text(path))
        for path, spec in draft.specs.items()
        if spec.section == "data" and spec.browse and (draft.text(path).strip() or spec.takes_blank)
    )
    return DataQuestion(
        kind=draft.kind,
        folder=str(draft.folder),
        paths=paths,
        pattern=str(draft.valid_value("data.pattern") or ""),
        context_length=draft.valid_value("task.context_length") or 0,
        held_out=draft.valid_value("data.validation_fraction") or 0.0,
    )
