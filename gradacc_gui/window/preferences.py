"""How a person likes the window: small choices that outlive it."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QByteArray

from gradacc_gui.remembered import Remembered
from gradacc_gui.theme import Choice

_CHOICES: Final[dict[str, Choice]] = {"system": "system", "dark": "dark", "light": "light"}


class Preferences(Remembered):
    """The choices, each read from the file when it is asked for."""

    def _flag(self, key: str, *, default: bool) -> bool:
        return str(self._settings.value(key, default)).lower() == "true"

    @property
    def theme(self) -> Choice:
        """Dark, light, or as the system."""
        return _CHOICES.get(str(self._settings.value("window/theme", "system")), "system")

    @theme.setter
    def theme(self, choice: Choice) -> None:
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
