"""Closing the window leaves the run running: said once, until the person knows."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QMessageBox, QWidget

from gradacc_gui.window.preferences import Preferences
from gradacc_gui.words import tr


def say_that_it_goes_on(window: QWidget, preferences: Preferences, close: Callable[[], None]) -> QMessageBox:
    """Open the notice; `close` is called when the person closes the window knowingly."""
    said = QMessageBox(window)
    said.setWindowTitle(tr("The run goes on"))
    said.setText(tr("The run goes on without this window."))
    said.setInformativeText(
        tr("Open gradacc again to see all of it. To end it, use Stop, or `gradacc stop` in a terminal.")
    )
    box = QCheckBox(tr("Do not say this again"))
    said.setCheckBox(box)
    said.setStandardButtons(QMessageBox.StandardButton.Cancel)
    yes = said.addButton(tr("Close the window"), QMessageBox.ButtonRole.AcceptRole)
    said.setDefaultButton(yes)
    said.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)

    def answered(clicked: object) -> None:
        if clicked is not yes:
            return
        if box.isChecked():
            preferences.says_that_runs_go_on = False
        close()

    said.buttonClicked.connect(answered)
    said.open()
    return said
