"""What the window asks before it acts: installing, closing while a run is live, ending one by force."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QMessageBox, QWidget

from gradacc_gui.ending_words import ending_cost
from gradacc_gui.queueing.entries import QueueEntry
from gradacc_gui.remembered import Preferences
from gradacc_gui.run import starter
from gradacc_gui.run.attachment import Attachment
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
        queued: Callable[[QueueEntry], None],
        failed: Callable[[str], None],
    ) -> None:
        self._window, self._background = window, background
        self._tell_began, self._tell_queued, self._tell_failed = began, queued, failed
        self.pending: starter.StartRequest | None = None
        """What is being started; None while nothing is."""
        self.question: QMessageBox | None = None

    def start(self, request: starter.StartRequest, python: str) -> bool:
        """Start `request` with `python`; False while another start is under way."""
        if self.pending is not None:
            return False
        self.pending = request
        self._window.setCursor(Qt.CursorShape.BusyCursor)
        self._background.submit(
            lambda: starter.prepare(python), lambda found: self._prepared(request, found), self._failed
        )
        return True

    def _prepared(self, request: starter.StartRequest, found: starter.ReadyInterpreter) -> None:
        if found.installs:
            self._ask(request, found)
        else:
            self._look_at_device(request, found)

    def _ask(self, request: starter.StartRequest, found: starter.ReadyInterpreter) -> None:
        names = ", ".join(install.need.requirement for install in found.installs)
        question = QMessageBox(self._window)
        question.setWindowTitle(tr("Install into gradacc's own folder"))
        text = tr("Packages that the trainer needs are not installed in {python}: {names}.")
        question.setText(text.format(python=found.interpreter.executable, names=names))
        question.setInformativeText(
            tr("gradacc can install them with pip into its own folder. Your interpreter is not changed.")
        )
        question.setStandardButtons(QMessageBox.StandardButton.Cancel)
        install = question.addButton(tr("Install and start"), QMessageBox.ButtonRole.AcceptRole)
        question.setDefaultButton(install)
        question.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        question.buttonClicked.connect(
            lambda clicked: self._look_at_device(request, found) if clicked is install else self._give_up()
        )
        self.question = question
        question.open()

    def _look_at_device(self, request: starter.StartRequest, found: starter.ReadyInterpreter) -> None:
        if request.queued:
            self._begin(request, found)
            return
        self._background.submit(
            lambda: starter.taken_device(request),
            lambda taken: (
                self._begin(request, found) if taken is None else self._ask_to_queue(request, found, taken)
            ),
            self._failed,
        )

    def _ask_to_queue(
        self, request: starter.StartRequest, found: starter.ReadyInterpreter, taken: starter.TakenDevice
    ) -> None:
        question = QMessageBox(self._window)
        question.setWindowTitle(tr("A run is using this device"))
        question.setText(tr("{run} is running on {device}.").format(run=taken.run, device=taken.device))
        question.setInformativeText(
            tr(
                "Two runs on one device slow each other down and may run out of memory. In the queue, {name}"
                " starts as soon as the device is free, also if you close this window."
            ).format(name=request.title() or tr("this run"))
        )
        question.setStandardButtons(QMessageBox.StandardButton.Cancel)
        queue = question.addButton(tr("Add to queue"), QMessageBox.ButtonRole.AcceptRole)
        anyway = question.addButton(tr("Start anyway"), QMessageBox.ButtonRole.DestructiveRole)
        question.setDefaultButton(queue)
        question.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)

        def answered(clicked: object) -> None:
            if clicked is queue:
                self._begin(msgspec.structs.replace(request, queued=True), found)
            elif clicked is anyway:
                self._begin(request, found)
            else:
                self._give_up()

        question.buttonClicked.connect(answered)
        self.question = question
        question.open()

    def _begin(self, request: starter.StartRequest, found: starter.ReadyInterpreter) -> None:
        self._background.submit(lambda: starter.begin(request, found), self._began, self._failed)

    def _began(self, begun: Launch | QueueEntry) -> None:
        self._give_up()
        if isinstance(begun, QueueEntry):
            self._tell_queued(begun)
        else:
            self._tell_began(begun)

    def _failed(self, sentence: str) -> None:
        self._give_up()
        self._tell_failed(sentence)

    def _give_up(self) -> None:
        self.pending = None
        self.question = None
        self._window.unsetCursor()


def explain_that_run_continues(
    window: QWidget, preferences: Preferences, close: Callable[[], None], *, paused: bool
) -> QMessageBox:
    """Open the notice; `close` is called when the person closes the window knowingly."""
    said = QMessageBox(window)
    said.setWindowTitle(tr("The run stays paused") if paused else tr("The run keeps running"))
    said.setText(
        tr("The run stays paused if you close this window. Its process and its memory stay.")
        if paused
        else tr("The run keeps running if you close this window.")
    )
    said.setInformativeText(
        tr("Open gradacc again to see it. To end it, use Stop here, or `gradacc stop` in a terminal.")
    )
    box = QCheckBox(tr("Do not show this again"))
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


def ask_to_end_by_force(window: QWidget, run: Attachment) -> QMessageBox:
    """Open the question; what its answer costs depends on what the trainer is doing."""
    asked = QMessageBox(window)
    asked.setWindowTitle(tr("End by force"))
    asked.setText(tr("End the trainer's process by force?"))
    newest = run.checkpoints[-1] if run.checkpoints else None
    asked.setInformativeText(ending_cost(run.store.so_now, newest))
    asked.setStandardButtons(QMessageBox.StandardButton.Cancel)
    yes = asked.addButton(tr("End by force"), QMessageBox.ButtonRole.DestructiveRole)
    asked.setDefaultButton(QMessageBox.StandardButton.Cancel)
    asked.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    asked.buttonClicked.connect(lambda clicked: run.end_by_force() if clicked is yes else None)
    asked.open()
    return asked
