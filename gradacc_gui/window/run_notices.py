"""Banners above the charts: paused, interrupted, failed, out of memory survived, warnings, problems."""

from __future__ import annotations

import functools
from typing import Final, Literal

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QPushButton, QVBoxLayout, QWidget

from gradacc_gui import words
from gradacc_gui.run.attachment import Attachment
from gradacc_gui.run.numbers import count
from gradacc_gui.run.target_lines import gate_sentence
from gradacc_gui.session.launch import last_lines
from gradacc_gui.session.runs import disk_problem
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.line_edit import LineEdit, clean
from gradacc_gui.widgets.parts import Notice, button
from gradacc_gui.words import tr
from trainer_backend.protocol import (
    AlertRaised,
    AnswerGate,
    OutOfMemoryRecovered,
    Record,
    TargetJudged,
    Warned,
)
from trainer_backend.run_facts import RunState
from trainer_backend.watching.alert_words import alert_sentence

MOST_WARNINGS: Final = 4
"""Sentences of one banner; the decision log has them all."""
ANSWERS: Final[dict[Literal["continue", "stop", "roll-back"], str]] = {
    "roll-back": "Go back",
    "stop": "Stop",
    "continue": "Continue",
}


class RunNotices(QWidget):
    """At most one banner of each kind; what the state says goes away with it, the rest when dismissed."""

    resume_asked = Signal()
    go_back_asked = Signal(int)
    """To the checkpoint of this step, and on from there."""
    log_asked = Signal()
    answered = Signal(object)
    """An `AnswerGate` to a run that a missed target has paused."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("clear")
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(2))
        self.interrupted = Notice("notice-warning", dismissible=False)
        self.failed = Notice("notice-bad", dismissible=False)
        self.paused = Notice("notice", dismissible=False)
        self.gate = Notice("notice-warning", dismissible=False)
        self._build_gate()
        self.disk = Notice("notice-bad", dismissible=False)
        self.problem = Notice("notice-bad")
        self.memory = Notice("notice-warning")
        self.error = Notice("notice-bad")
        self.warning = Notice("notice-warning")
        self.alert = Notice("notice-warning")
        self._attempt = 0
        self._asking: TargetJudged | None = None
        self._good_step: int | None = None
        self.go_back: dict[Notice, QPushButton] = {}
        self.resume: dict[Notice, QPushButton] = {}
        for notice in (self.interrupted, self.failed):
            notice.buttons.addWidget(button(tr("Show the log"), clicked=self.log_asked.emit))
            self.go_back[notice] = button(tr("Go back and resume"), clicked=self._ask_to_go_back)
            notice.buttons.addWidget(self.go_back[notice])
            self.resume[notice] = button(tr("Resume"), role="primary", clicked=self.resume_asked.emit)
            notice.buttons.addWidget(self.resume[notice])
        self._all = (
            *(self.interrupted, self.failed, self.gate, self.paused),
            *(self.disk, self.problem, self.error, self.memory, self.alert, self.warning),
        )
        for notice in self._all:
            column.addWidget(notice)

    def _build_gate(self) -> None:
        self.reason = LineEdit()
        self.reason.setPlaceholderText(tr("Why (kept in the log)"))
        self.reason.setAccessibleName(tr("Reason"))
        self.reason.setMinimumWidth(180)
        self.gate.buttons.addWidget(self.reason)
        self.answers: dict[str, QPushButton] = {}
        for answer, text in ANSWERS.items():
            made = button(tr(text), clicked=functools.partial(self._answer, answer))
            self.answers[answer] = made
            self.gate.buttons.addWidget(made)
        set_role(self.answers["continue"], "primary")

    def _answer(self, answer: Literal["continue", "stop", "roll-back"]) -> None:
        for made in self.answers.values():  # once; the run's state says what came of it
            made.setEnabled(False)
        self.answered.emit(AnswerGate(answer=answer, reason=clean(self.reason.text())))

    def _show_gate(self, asking: TargetJudged | None) -> None:
        if asking == self._asking:
            return
        self._asking = asking
        self.gate.setVisible(asking is not None)
        self.reason.clear()
        for made in self.answers.values():
            made.setEnabled(True)
        if asking is not None:
            self.gate.say(gate_sentence(asking))

    def forget(self) -> None:
        """Clear what belongs to the run shown so far; another one follows."""
        self._attempt = 0
        self._asking = None
        for notice in self._all:
            notice.hide()

    def take(self, facts: list[Record]) -> list[Warned]:
        """New facts; gives the warnings that belong beside the readings instead."""
        about_readings = []
        for record in facts:
            if record.attempt != self._attempt:  # its warnings come before its RunStarted
                self._attempt = record.attempt
                for notice in (self.memory, self.error, self.warning, self.alert, self.problem):
                    notice.hide()
            match record.event:
                case OutOfMemoryRecovered() as recovered:
                    self.memory.say(words.out_of_memory(recovered) + ".")
                case Warned() as warned if words.is_about_readings(warned):
                    about_readings.append(warned)
                case Warned() as warned:
                    self._warn(warned)
                case AlertRaised() as alert:
                    _add(self.alert, alert_sentence(alert, tr))
                case _:
                    pass
        return about_readings

    def _warn(self, warned: Warned) -> None:
        _add(self.error if words.is_error(warned) else self.warning, words.warning(warned))

    def _ask_to_go_back(self) -> None:
        if self._good_step is not None:
            self.go_back_asked.emit(self._good_step)

    def _offer(self, step: int | None, *, leads: bool) -> None:
        """The checkpoint that can be gone back to, without what was changed after it.

        It leads after a divergence: the newest checkpoint may lie behind its beginning.
        """
        self._good_step = step
        set_role(self.go_back[self.failed], "primary" if leads else "")
        set_role(self.resume[self.failed], "" if leads else "primary")
        for offer in self.go_back.values():
            if step is not None:
                offer.setText(tr("Go back to step {step} and resume").format(step=count(step)))
            offer.setVisible(step is not None)

    def _say_resume(self, run: Attachment) -> None:
        for offer in self.resume.values():
            offer.setText(tr("Resume") if run.checkpoints else tr("Start again"))

    def show_state(self, run: Attachment) -> None:
        """What the run's state has to say; called a few times a second."""
        state = run.state
        self._show_gate(run.store.so_now.asking if state is RunState.PAUSED else None)
        if state is RunState.INTERRUPTED and self.interrupted.isHidden():
            self.interrupted.say(*interrupted_words(run))
        elif state is RunState.FAILED and self.failed.isHidden():
            self.failed.say(*failure_words(run))
        elif state is RunState.PAUSED and self.paused.isHidden() and self._asking is None:
            self.paused.say(tr("Paused: the model stays in memory; nothing is computed until you resume."))
        if state in (RunState.INTERRUPTED, RunState.FAILED):
            self._say_resume(run)
            diverged = run.failure is not None and run.failure.code == "non-finite-in-a-row"
            self._offer(run.good_step, leads=diverged and run.good_step is not None)
        self.interrupted.setVisible(state is RunState.INTERRUPTED)
        self.failed.setVisible(state is RunState.FAILED)
        self.paused.setVisible(state is RunState.PAUSED and self._asking is None)
        full = disk_problem(run.run) if run.store.alive else ""
        self.disk.setVisible(bool(full))
        if full and self.disk.sentence.text() != full:
            self.disk.say(full)
        if run.problem or run.store.problem:
            self.problem.say(run.problem or run.store.problem)


def _add(notice: Notice, newest: str) -> None:
    """The newest on top, those before it below, until they are dismissed."""
    said = [] if notice.isHidden() else [notice.sentence.text(), *notice.more.text().splitlines()]
    before = [line for line in said if line and line != newest]
    notice.say(newest, "\n".join(before[: MOST_WARNINGS - 1]))


def interrupted_words(run: Attachment) -> tuple[str, str]:
    """At which step, what that means, and the trainer's last lines."""
    step = count(int(run.store.extent("steps")[1]))
    if not run.run.path.is_dir():
        sentence = tr("The run's folder was moved or deleted at step {step}: {path} is not there any more.")
        more = tr(
            "Its trainer notices that: it saves a checkpoint where the folder lies now, and ends. Open the"
            " run there, or move the folder back, and resume it."
        )
        return sentence.format(step=step, path=run.run.path), more
    sentence = tr("Interrupted at step {step}: the trainer stopped without reporting why.").format(step=step)
    more = tr(
        "It was killed, it crashed, or the machine went down. Resume continues from the last checkpoint."
    )
    if not run.checkpoints:
        more = tr(
            "It was killed, it crashed, or the machine went down. There is no checkpoint to continue from."
        )
    return sentence, "\n".join((more, *last_lines(run.run, count=4)))


def failure_words(run: Attachment) -> tuple[str, str]:
    """Why it failed, and the trainer's last lines."""
    failure = run.failure
    lines = last_lines(run.run, count=8)
    if failure is not None:
        where = [tr("In {where}").format(where=failure.where)] if failure.where else []
        trace = failure.traceback.strip().splitlines()[-4:]
        return words.failure(failure), "\n".join(where + (trace or list(lines)))
    died = run.died
    return (died.sentence() if died is not None else tr("The trainer failed.")), "\n".join(lines)
