"""`python -m trainer_backend verify` beside the window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from gradacc_gui.side_job import SideJob
from trainer_backend.verify.report import VerifyFailed, VerifyProgress, VerifyReport, decode


class VerifyProcess(SideJob):
    """One certificate at a time: `start`, then exactly one of `finished`, `failed` and `cancelled`."""

    progressed = Signal(object)
    """A `VerifyProgress`."""
    finished = Signal(object)
    """The `VerifyReport`."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._report: VerifyReport | None = None
        self._sentence = ""

    def forget(self) -> None:
        """No certificate yet."""
        self._report, self._sentence = None, ""

    def arguments(self, recipe: Path) -> Sequence[str]:
        """One message a line."""
        return ["verify", str(recipe), "--json"]

    def take(self, line: bytes) -> None:
        """Progress, the certificate, or why there is none."""
        message = decode(line)
        match message:
            case VerifyProgress():
                self.progressed.emit(message)
            case VerifyReport():
                self._report = message
            case VerifyFailed():
                self._sentence = message.message

    def ended(self) -> bool:
        """Hand the certificate out."""
        if self._report is not None:
            self.finished.emit(self._report)
        return self._report is not None

    def sentence(self) -> str:
        """Why no certificate could be made."""
        return self._sentence
