"""Pause, checkpoint, stop, roll back; or resume, when no trainer runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

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
MOST_OFFERED: Final = 10
"""Of more checkpoints the newest are offered, and the best."""
HALF: Final = 0.5


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
    report_asked = Signal()
    """Save the run as one page."""

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
        self.skip_menu = QMenu(tr("Roll back and leave out the samples since"), self)
        self.slower_menu = QMenu(tr("Roll back and halve the learning rate, to"), self)
        self._offered: tuple[list[int], tuple[int, float] | None] = [], None
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
        for back in (self.roll_back_menu, self.skip_menu, self.slower_menu):
            menu.addMenu(back)
        folder = QAction(tr("Open the run's folder"), menu)
        folder.triggered.connect(self.folder_asked)
        menu.addAction(folder)
        report = QAction(tr("Save a report…"), menu)
        report.triggered.connect(self.report_asked)
        menu.addAction(report)
        return menu

    def set_checkpoints(self, steps: Sequence[int], best: tuple[int, float] | None = None) -> None:
        """The steps of the checkpoints that the run can go back to, oldest first.

        `best`: the best of them, and its metric.
        """
        wanted = list(reversed(steps))[:MOST_OFFERED]
        if best is not None and best[0] in steps:
            wanted = [best[0], *(step for step in wanted if step != best[0])]
        else:
            best = None
        self.resume.setText(resume_words(bool(wanted)))
        if (wanted, best) == self._offered:
            return
        self._offered = wanted, best
        for menu, more in (
            (self.roll_back_menu, {}),
            (self.skip_menu, {"skip_samples": True}),
            (self.slower_menu, {"learning_rate_factor": HALF}),
        ):
            menu.clear()
            for step in wanted:
                self._offer(menu, step, best, more)
        self._refresh_roll_back()

    def _offer(self, menu: QMenu, step: int, best: tuple[int, float] | None, more: Mapping[str, Any]) -> None:
        text = tr("step {step}").format(step=count(step))
        if best is not None and step == best[0]:
            text = tr("step {step}, the best ({value})").format(step=count(step), value=f"{best[1]:.4g}")
        action = menu.addAction(text)
        action.setData(step)
        action.triggered.connect(lambda: self._go_back(step, more))

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
        for menu in (self.skip_menu, self.slower_menu):  # a trainer must live to be told how
            menu.menuAction().setVisible(not self._can_resume)
            menu.setEnabled(able)

    def _go_back(self, step: int, more: Mapping[str, Any]) -> None:
        """A trainer that lives goes back; for a run that has ended a new one starts there."""
        if self._can_resume:
            self.go_back_asked.emit(step)
        else:
            self.asked.emit(RollBack(step=step, **more))

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
