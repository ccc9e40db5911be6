"""Pause, checkpoint, stop, roll back; or resume, when no trainer runs."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QMenu, QWidget

from gradacc_gui.run.numbers import count
from gradacc_gui.session.stopping import Rung
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.parts import IconButton, button, label, put
from gradacc_gui.words import tr
from trainer_backend.protocol import Pause, Resume, RollBack, SaveCheckpoint
from trainer_backend.run_facts import RunState

STEADY = (RunState.RUNNING, RunState.PAUSED)
"""What a trainer does that can be told to save, pause or go back."""


def resume_words(has_checkpoints: bool) -> str:
    """What resuming a run that has ended means."""
    return tr("Resume from the last checkpoint") if has_checkpoints else tr("Start again from step 1")


class RunButtons(QWidget):
    """What can be done with the run now; the words say what it will do."""

    asked = Signal(object)
    """A command to send."""
    stop_asked = Signal(bool)
    """The person wants the run to end; True: at once."""
    force_asked = Signal()
    """The person will not wait; they are asked whether they mean it."""
    resume_run_asked = Signal()
    """A new attempt from the last checkpoint."""
    go_back_asked = Signal(int)
    """A new attempt of a run that has ended, from the checkpoint of this step."""
    folder_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("clear")
        self._state: RunState | None = None
        self._rung = Rung.RUNNING
        self.words = label(role="help", wrap=True)
        self.words.hide()
        self.pause = IconButton(tr("Pause"), "pause")
        self.pause.clicked.connect(self._pause_or_resume)
        self.checkpoint = button(
            tr("Checkpoint"), icon_name="checkpoint", clicked=lambda: self.asked.emit(SaveCheckpoint())
        )
        self.checkpoint.setToolTip(tr("Save a checkpoint after the current step"))
        self.stop = IconButton(tr("Stop…"), "stop")
        self.stop.setMenu(self._build_stop_menu())
        self.resume = button(resume_words(False), role="primary", clicked=self.resume_run_asked.emit)
        self.more = IconButton(tr("More…"), "settings")
        self.roll_back_menu = QMenu(tr("Roll back to"), self)
        self.more.setMenu(self._build_more_menu())
        self._place()
        self.set_state(None)

    def _place(self) -> None:
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setSpacing(space(2))
        grid.addWidget(self.words, 0, 0, 1, 2)
        grid.addWidget(self.pause, 1, 0)
        grid.addWidget(self.checkpoint, 1, 1)
        grid.addWidget(self.resume, 2, 0, 1, 2)
        last = QHBoxLayout()
        last.setSpacing(space(2))
        last.addWidget(self.stop, 1)
        last.addWidget(self.more, 1)
        grid.addLayout(last, 3, 0, 1, 2)

    def _build_stop_menu(self) -> QMenu:
        menu = QMenu(self)
        self.stop_clean = QAction(tr("Stop after this step and save a checkpoint"), menu)
        self.stop_clean.triggered.connect(lambda: self.stop_asked.emit(False))
        self.stop_now = QAction(tr("Stop now (the unfinished step is repeated on resume)"), menu)
        self.stop_now.triggered.connect(lambda: self.stop_asked.emit(True))
        self.stop_force = QAction(tr("End by force…"), menu)
        self.stop_force.triggered.connect(self.force_asked)
        menu.addActions([self.stop_clean, self.stop_now])
        menu.addSeparator()
        menu.addAction(self.stop_force)
        return menu

    def _build_more_menu(self) -> QMenu:
        menu = QMenu(self)
        menu.addMenu(self.roll_back_menu)
        folder = QAction(tr("Open the run's folder"), menu)
        folder.triggered.connect(self.folder_asked)
        menu.addAction(folder)
        return menu

    def set_checkpoints(self, steps: Sequence[int]) -> None:
        """The steps of the checkpoints that the run can go back to, oldest first."""
        known = [action.data() for action in self.roll_back_menu.actions()]
        wanted = list(reversed(steps))[:10]
        self.resume.setText(resume_words(bool(wanted)))
        if known == wanted:
            return
        self.roll_back_menu.clear()
        for step in wanted:
            action = self.roll_back_menu.addAction(tr("step {step}").format(step=count(step)))
            action.setData(step)
            action.triggered.connect(lambda _checked=False, step=step: self._go_back(step))
        self._refresh_roll_back()

    def set_state(self, state: RunState | None, *, rung: Rung = Rung.RUNNING) -> None:
        """Show what can be done in `state`; `rung`: how far a stop of this window has gone."""
        self._state, self._rung = state, rung
        alive = state is not None and state.is_alive
        for widget in (self.pause, self.checkpoint, self.stop):
            widget.setVisible(alive or state is None)
        self.resume.setVisible(self._can_resume)
        paused = state is RunState.PAUSED
        self.pause.setText(
            tr("Resume") if paused else tr("Pausing…") if state is RunState.PAUSING else tr("Pause")
        )
        set_role(self.pause, "primary" if paused else "")
        self.pause.set_icon("resume" if paused else "pause")  # in the colour that the role gives
        self.pause.setEnabled(state in STEADY)
        self.checkpoint.setEnabled(state in STEADY)
        self.stop.setEnabled(alive)
        self.stop.setText(tr("Stopping…") if state is RunState.STOPPING else tr("Stop…"))
        self.stop_clean.setEnabled(rung is Rung.RUNNING and state is not RunState.STOPPING)
        self.stop_now.setEnabled(rung in (Rung.RUNNING, Rung.ASKED))
        self.stop_force.setVisible(state is RunState.STOPPING or rung in (Rung.ASKED_NOW, Rung.TERMINATED))
        self.more.setEnabled(state is not None)
        self._refresh_roll_back()
        self._say(rung)

    @property
    def _can_resume(self) -> bool:
        return self._state is not None and self._state.can_resume

    def _refresh_roll_back(self) -> None:
        able = (self._state in STEADY or self._can_resume) and bool(self.roll_back_menu.actions())
        self.roll_back_menu.setEnabled(able)

    def _go_back(self, step: int) -> None:
        """A trainer that lives goes back; for a run that has ended a new one starts there."""
        if self._can_resume:
            self.go_back_asked.emit(step)
        else:
            self.asked.emit(RollBack(step=step))

    def _say(self, rung: Rung) -> None:
        texts = {
            Rung.ASKED: tr("Stopping: the trainer finishes this step, saves a checkpoint, and exits."),
            Rung.ASKED_NOW: tr(
                "Stopping now: a checkpoint is saved. The unfinished step is repeated on resume."
            ),
            Rung.TERMINATED: tr("The trainer did not exit, so the system was told to end it."),
            Rung.KILLED: tr("The trainer was killed. Resume continues from its last checkpoint."),
        }
        text = texts.get(rung, "") if self._state is not None and self._state.is_alive else ""
        if self._state is RunState.STOPPING and rung is Rung.RUNNING:
            text = tr("Stopping (requested elsewhere): the trainer saves a checkpoint and exits.")
        put(self.words, text)
        self.words.setVisible(bool(text))

    def _pause_or_resume(self) -> None:
        self.asked.emit(Resume() if self._state is RunState.PAUSED else Pause())
