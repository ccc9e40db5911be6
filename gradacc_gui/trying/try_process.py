"""`python -m trainer_backend try` beside the window: it keeps the model between questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from PySide6.QtCore import QObject, Signal

from gradacc_gui.run.starter import interpreter_of
from gradacc_gui.side_job import PreparedJob, SideJob
from trainer_backend.run_directory import RunDirectory
from trainer_backend.trying.try_messages import AnyQuestion, TryRefused, decode_try, encode_try


class TryProcess(SideJob):
    """One model in memory at most: `heard` for each message; `failed` or `cancelled` when it is gone."""

    heard = Signal(object)
    """Any `AnyTryMessage`."""
    reads_lines: ClassVar[bool] = True

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._run: RunDirectory | None = None
        self._waiting: list[AnyQuestion] = []
        self._sentence = ""

    def ask(self, run: RunDirectory, question: AnyQuestion) -> None:
        """Ask a run's newest checkpoint; the process is started where none is there."""
        if self._process is not None:
            self.tell(encode_try(question))
            return
        self._run = run
        self._waiting = [question]
        self.start("", run.path, interpreter_of(run), name=run.id)

    def arguments(self, recipe: Path) -> Sequence[str]:
        """The run, not a recipe; messages by the line."""
        del recipe
        assert self._run is not None
        return ["try", str(self._run.path), "--stream"]

    def forget(self) -> None:
        """Nothing said yet."""
        self._sentence = ""

    def _launch(self, prepared: PreparedJob) -> None:
        super()._launch(prepared)
        waiting, self._waiting = self._waiting, []
        for question in waiting:
            self.tell(encode_try(question))

    def take(self, line: bytes) -> None:
        """Hand a message on."""
        message = decode_try(line)
        if isinstance(message, TryRefused):
            self._sentence = message.message
        self.heard.emit(message)

    def ended(self) -> bool:
        """It stays until it is ended, so an end by itself is a failure."""
        return False

    def sentence(self) -> str:
        """Why the run could not be opened."""
        return self._sentence
