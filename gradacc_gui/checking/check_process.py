"""`python -m trainer_backend preview` beside the window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from PySide6.QtCore import QObject, Signal

from gradacc_gui.session.interpreter import Interpreter
from gradacc_gui.side_job import SideJob
from trainer_backend.preflight.findings import CheckFailed, CheckReport, decode_check


class CheckProcess(SideJob):
    """One check at a time: `heard` for each message, then one of `finished`, `failed`, `cancelled`."""

    heard = Signal(object)
    """Any `AnyCheckMessage` but the report."""
    finished = Signal(object)
    """The `CheckReport`."""
    keeps_folder: ClassVar[bool] = True

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._report: CheckReport | None = None
        self._sentence = ""

    def forget(self) -> None:
        """No report yet."""
        self._report, self._sentence = None, ""

    def arguments(self, recipe: Path) -> Sequence[str]:
        """One message a line; pictures lie beside the recipe."""
        return ["preview", str(recipe), "--stream", "--pictures"]

    def warm_up(self, known: Interpreter, kind: str) -> None:
        """Have the libraries of a kind of task loaded before they are needed."""
        self.warm(known, ["preview", "--stream", "--pictures", "--standby", kind])

    def take(self, line: bytes) -> None:
        """Hand it on, unless it ends the check."""
        message = decode_check(line)
        match message:
            case CheckReport():
                self._report = message
            case CheckFailed():
                self._sentence = message.message
            case _:
                self.heard.emit(message)

    def ended(self) -> bool:
        """Hand the report out."""
        if self._report is not None:
            self.finished.emit(self._report)
        return self._report is not None

    def sentence(self) -> str:
        """Why nothing could be checked."""
        return self._sentence
