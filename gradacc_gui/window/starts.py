"""A start on its way: the interpreter is asked, the person is asked what to install, the trainer starts."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMessageBox, QWidget

from gradacc_gui.run import starter
from gradacc_gui.session.background import Background
from gradacc_gui.session.launch import Launch
from gradacc_gui.words import tr


class Starts:
    """One start at a time; a second click while the first is under way does nothing."""

    def __init__(
        self,
        window: QWidget,
        background: Background,
        began: Callable[[Launch], None],
        failed: Callable[[str], None],
    ) -> None:
        self._window, self._background = window, background
        self._tell_began, self._tell_failed = began, failed
        self.wish: starter.Wish | None = None
        """What is being started; None while nothing is."""
        self.question: QMessageBox | None = None

    def start(self, wish: starter.Wish, python: str) -> bool:
        """Start `wish` with `python`; False while another start is under way."""
        if self.wish is not None:
            return False
        self.wish = wish
        self._window.setCursor(Qt.CursorShape.BusyCursor)
        self._background.submit(
            lambda: starter.prepare(python), lambda found: self._prepared(wish, found), self._failed
        )
        return True

    def _prepared(self, wish: starter.Wish, found: starter.Prepared) -> None:
        if found.installs:
            self._ask(wish, found)
        else:
            self._begin(wish, found)

    def _ask(self, wish: starter.Wish, found: starter.Prepared) -> None:
        names = ", ".join(install.need.requirement for install in found.installs)
        question = QMessageBox(self._window)
        question.setWindowTitle(tr("Install into gradacc's own folder"))
        text = tr("{python} lacks what the trainer needs: {names}.")
        question.setText(text.format(python=found.interpreter.executable, names=names))
        question.setInformativeText(
            tr("gradacc can put it into a folder of its own with pip; your interpreter stays as it is.")
        )
        question.setStandardButtons(QMessageBox.StandardButton.Cancel)
        install = question.addButton(tr("Install and start"), QMessageBox.ButtonRole.AcceptRole)
        question.setDefaultButton(install)
        question.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        question.buttonClicked.connect(
            lambda clicked: self._begin(wish, found) if clicked is install else self._give_up()
        )
        self.question = question
        question.open()

    def _begin(self, wish: starter.Wish, found: starter.Prepared) -> None:
        self._background.submit(lambda: starter.begin(wish, found), self._began, self._failed)

    def _began(self, launch: Launch) -> None:
        self._give_up()
        self._tell_began(launch)

    def _failed(self, sentence: str) -> None:
        self._give_up()
        self._tell_failed(sentence)

    def _give_up(self) -> None:
        self.wish = None
        self.question = None
        self._window.unsetCursor()
