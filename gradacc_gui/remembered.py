"""The file of small things that the window remembers between two starts: GRADACC_HOME/window.ini."""

from __future__ import annotations

from PySide6.QtCore import QSettings

from trainer_backend.run_directory import home, make_private


class Remembered:
    """Small things by their keys. A home that cannot be written costs only that they are forgotten."""

    def __init__(self) -> None:
        self._settings = QSettings(str(home() / "window.ini"), QSettings.Format.IniFormat)

    def _set(self, key: str, value: object) -> None:
        try:
            make_private(home())
        except OSError:
            return
        self._settings.setValue(key, value)
        self._settings.sync()
