"""Desktop notices of alerts and ends, while nobody looks at the window."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from PySide6.QtWidgets import QApplication, QSystemTrayIcon, QWidget

from gradacc_gui.words import line, tr
from trainer_backend.protocol import AlertRaised, Record, RunFailed, RunFinished

FRESH_S: Final = 60.0
"""Older facts are history that is only now being read."""
SHOWN_MS: Final = 10_000


class DesktopNotices:
    """Shows what happens through the system's tray; without one the window asks for attention."""

    def __init__(self, window: QWidget) -> None:
        self._window = window
        self._tray: QSystemTrayIcon | None = None
        self.shown: list[str] = []
        """Sentences shown so far."""

    def take(self, name: str, facts: Iterable[Record]) -> None:
        """New facts of the run called `name`."""
        for record in facts:
            fact = record.event
            if not isinstance(fact, AlertRaised | RunFinished | RunFailed) or self._window.isActiveWindow():
                continue
            told = line(fact)
            if told is not None and time.time() - record.at < FRESH_S:
                self._show(tr("{name} in gradacc").format(name=name), told.text)

    def _show(self, title: str, text: str) -> None:
        self.shown.append(text)
        QApplication.alert(self._window)
        if not QSystemTrayIcon.isSystemTrayAvailable():
            return
        if self._tray is None:
            self._tray = QSystemTrayIcon(self._window.windowIcon(), self._window)
            self._tray.messageClicked.connect(self._window.activateWindow)
            self._tray.show()
        self._tray.showMessage(title, text, QSystemTrayIcon.MessageIcon.Information, SHOWN_MS)
