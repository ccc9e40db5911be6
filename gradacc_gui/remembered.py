"""What the window remembers between two starts, in GRADACC_HOME/window.ini: small things by key."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QByteArray, QSettings

from gradacc_gui.theme import ThemeChoice
from trainer_backend.private_files import home, make_private


class Remembered:
    """Values by their keys. Where the home cannot be written, they are only forgotten."""

    def __init__(self) -> None:
        self._settings = QSettings(str(home() / "window.ini"), QSettings.Format.IniFormat)

    def _set(self, key: str, value: object) -> None:
        try:
            make_private(home())
        except OSError:
            return
        self._settings.setValue(key, value)
        self._settings.sync()


_CHOICES: Final[dict[str, ThemeChoice]] = {"system": "system", "dark": "dark", "light": "light"}


class Preferences(Remembered):
    """The choices, each read from the file when it is asked for."""

    def _flag(self, key: str, *, default: bool) -> bool:
        return str(self._settings.value(key, default)).lower() == "true"

    @property
    def theme(self) -> ThemeChoice:
        """Dark, light, or as the system."""
        return _CHOICES.get(str(self._settings.value("window/theme", "system")), "system")

    @theme.setter
    def theme(self, choice: ThemeChoice) -> None:
        self._set("window/theme", choice)

    @property
    def keep_awake(self) -> bool:
        """Whether the system is kept from sleeping while a run is live."""
        return self._flag("window/keep_awake", default=True)

    @keep_awake.setter
    def keep_awake(self, on: bool) -> None:
        self._set("window/keep_awake", on)

    @property
    def says_that_runs_go_on(self) -> bool:
        """Whether closing the window still explains that the run goes on."""
        return self._flag("window/says_that_runs_go_on", default=True)

    @says_that_runs_go_on.setter
    def says_that_runs_go_on(self, on: bool) -> None:
        self._set("window/says_that_runs_go_on", on)

    @property
    def interpreter(self) -> str:
        """The Python that trains unless another is chosen; empty: gradacc's own."""
        return str(self._settings.value("form/interpreter", ""))

    @interpreter.setter
    def interpreter(self, path: str) -> None:
        self._set("form/interpreter", path)

    @property
    def geometry(self) -> QByteArray:
        """Where the window was; empty at first."""
        value = self._settings.value("window/geometry")
        return value if isinstance(value, QByteArray) else QByteArray()

    @geometry.setter
    def geometry(self, value: QByteArray) -> None:
        self._set("window/geometry", value)
