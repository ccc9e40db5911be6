"""The check of a recipe, filled as it is made: verdict, first optimizer step, decisions, checks."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeAlias

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QScrollArea, QStackedWidget, QVBoxLayout, QWidget

from gradacc_gui.checking.check_process import CheckProcess
from gradacc_gui.checking.class_panel import ClassPanel
from gradacc_gui.checking.findings_panel import FindingsPanel
from gradacc_gui.checking.picture_panel import PicturePanel
from gradacc_gui.checking.token_panel import TokenPanel
from gradacc_gui.checking.values_panel import ValuesPanel
from gradacc_gui.checking.verdict_bar import VerdictBar, figures_of, verdict_words
from gradacc_gui.session.interpreter import Interpreter
from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import SELECTABLE, Notice, Panel, button, label, put
from gradacc_gui.words import tr
from trainer_backend.preflight.check_words import check_progress
from trainer_backend.preflight.findings import (
    AnyCheckMessage,
    CheckProgress,
    CheckReport,
    ClassShares,
    DataDecisions,
    Finding,
    FirstWindow,
    PictureRow,
    PictureValues,
)

State: TypeAlias = Literal["empty", "running", "done", "failed"]
Asked: TypeAlias = tuple[str, Path, str, str]
"""A recipe's text, its folder, the run's name, the interpreter."""
SIDE_WIDTH: Final = 430
NARROW: Final = 860


class CheckView(QWidget):
    """Give it a recipe with `check`; what it finds is shown while it is found."""

    change_requested = Signal(str, object)
    """A key of the recipe and the value that would mend it; it is checked again then."""
    changed = Signal()
    """Whether a start is held up may be another now."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.state: State = "empty"
        self.report: CheckReport | None = None
        self._asked: Asked | None = None
        self._accepted: frozenset[str] = frozenset()
        self._current: Asked | None = None
        self._known: Interpreter | None = None
        self.process = CheckProcess(self)
        self.process.heard.connect(self._hear)
        self.process.finished.connect(self._finish)
        self.process.failed.connect(self._fail)
        self.process.cancelled.connect(self._cancelled)
        self._build()
        self._forget()

    def _build(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(3))
        self.stale = Notice("notice-warning", dismissible=False)
        self.stale.buttons.addWidget(button(tr("Check again"), role="primary", clicked=self._again))
        self.verdict = VerdictBar()
        column.addWidget(self.verdict)
        column.addWidget(self.stale)
        self.tokens, self.pictures = TokenPanel(), PicturePanel()
        self.waiting = Panel(tr("First optimizer step, as the model will see it"))
        self.waiting_words = label("", "muted", wrap=True)
        self.waiting_words.setTextInteractionFlags(SELECTABLE)
        self.waiting.body.addWidget(self.waiting_words)
        self.waiting.body.addStretch(1)
        self.stack = QStackedWidget()
        self.stack.setObjectName("page")
        for widget in (self.waiting, self.tokens, self.pictures):
            self.stack.addWidget(widget)
        self._row = QHBoxLayout()
        self._row.setSpacing(space(3))
        self._row.addWidget(self.stack, 1)
        self._row.addWidget(self._build_side())
        column.addLayout(self._row, 1)

    def _build_side(self) -> QScrollArea:
        self.classes, self.findings, self.values = ClassPanel(), FindingsPanel(), ValuesPanel()
        self.said = Panel(tr("What was decided while reading"))
        self.said_words = label("", wrap=True)
        self.said_words.setTextInteractionFlags(SELECTABLE)
        self.said.body.addWidget(self.said_words)
        content = QWidget()
        content.setObjectName("page")
        column = QVBoxLayout(content)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(3))
        for panel in (self.classes, self.findings, self.values, self.said):
            column.addWidget(panel)
        column.addStretch(1)
        for source in (self.classes, self.findings, self.values):
            source.change_requested.connect(self.change_requested)
        self.findings.accepted.connect(self._accept)
        self.side = QScrollArea()
        self.side.setWidgetResizable(True)
        self.side.setFrameShape(QFrame.Shape.NoFrame)
        self.side.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.side.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.side.setWidget(content)
        self.side.setFixedWidth(SIDE_WIDTH)
        return self.side

    # ---------------------------------------------------------------------------------- its surface

    def check(self, asked: Asked, known: Interpreter | None = None) -> None:
        """Check a recipe; one that is being checked already goes on. `known`: the interpreter, if probed."""
        self._known = known
        if self.process.is_running:
            if asked == self._asked:
                return
            self.process.cancel()
            self._asked = asked  # started when the other has ended
            self._forget()
            self._set_state("running")
            return
        self._asked = asked
        self._forget()
        self._set_state("running")
        text, folder, name, python = asked
        self.process.start(text, folder, python, name=name, known=known)

    def warm_up(self, known: Interpreter | None, kind: str) -> None:
        """A check is likely soon: load its libraries now. Let go of by `cool`, or when nobody comes."""
        if known is not None:
            self.process.warm_up(known, kind)

    def cool(self) -> None:
        """No check is likely any more."""
        self.process.cool()

    def cancel(self) -> None:
        """End the check; what was found so far stays to be looked at."""
        self._asked = None
        self.process.cancel()

    def refuse(self, sentence: str) -> None:
        """The form has a fault, so there is nothing to check."""
        self.process.cancel()
        self._asked = None
        self._forget()
        self._set_state("failed")
        self.verdict.say(tr("Nothing to check yet"), sentence, "", [])
        put(self.waiting_words, "")

    def show_current(self, asked: Asked | None) -> None:
        """Say whether what is shown is still about what stands in the form."""
        is_other = self._asked is not None and asked is not None and asked != self._asked
        if is_other and self.state in {"done", "failed"}:
            self._current = asked
            self.stale.say(tr("The recipe has changed since it was checked."))
        else:
            self.stale.hide()

    def is_about(self, asked: Asked | None) -> bool:
        """Whether what is shown, or under way, is the check of that very recipe."""
        return asked is not None and asked == self._asked and self.state in {"running", "done"}

    def stops(self, asked: Asked | None) -> list[Finding]:
        """What this check holds a start of that very recipe up with."""
        if asked != self._asked or self.state != "done":
            return []
        return [
            entry for entry in self._findings if entry.state == "stop" and entry.code not in self._accepted
        ]

    def close_down(self) -> None:
        """End what runs; for a window that closes."""
        self.process.close()

    # --------------------------------------------------------------------------------- what is known

    def _forget(self) -> None:
        self.report = None
        self._current = None
        self._doing = tr("Starting…")
        self._window: FirstWindow | None = None
        self._shares: ClassShares | None = None
        self._findings: list[Finding] = []
        self._accepted = frozenset()
        self.stale.hide()
        self.classes.hide()
        self.values.hide()
        self.said.hide()
        self.stack.setCurrentWidget(self.waiting)
        put(self.waiting_words, "")

    def _hear(self, message: AnyCheckMessage) -> None:
        match message:
            case CheckProgress():
                self._doing = check_progress(message, tr)
            case FirstWindow():
                self._window = message
                self._show_window()
            case ClassShares():
                self._shares = message
                self.classes.show_shares(message)
                self.classes.show()
                self._show_window()
            case PictureValues():
                self.values.show_values(message)
                self.values.show()
            case DataDecisions():
                self._show_said(message.sentences)
            case Finding():
                self._findings.append(message)
            case _:
                return
        self._show()

    def _show_window(self) -> None:
        window = self._window
        if window is None:
            return
        if any(isinstance(row, PictureRow) for row in window.rows):
            entries = () if self._shares is None else self._shares.entries
            undecided = frozenset(entry.value for entry in entries if entry.meaning == "undecided")
            self.pictures.show_window(window, undecided)
            self.stack.setCurrentWidget(self.pictures)
        elif window.rows:
            self.tokens.show_window(window)
            self.stack.setCurrentWidget(self.tokens)

    def _show_said(self, sentences: tuple[str, ...]) -> None:
        put(self.said_words, "\n\n".join(dict.fromkeys(sentences)))
        self.said.setVisible(bool(sentences))

    def _show(self) -> None:
        running = self.state == "running"
        figures = [] if self._window is None else figures_of(self._window, self._shares)
        if running:
            headline = tr("Checking…")
            more = self._doing
            if self._window is not None and not self._window.whole:
                more += " " + tr("Shown so far: the first {count:,} records.").format(
                    count=self._window.looked_at
                )
            self.verdict.say(headline, more, "", figures)
            if self._window is None:
                put(self.waiting_words, self._doing)
        else:
            headline, more, tone = verdict_words(self._findings, self._accepted)
            self.verdict.say(headline, more, tone, figures)
        self.findings.show_findings(self._findings, self._accepted, self._doing if running else "")

    def _set_state(self, state: State) -> None:
        self.state = state
        self._show()
        self.changed.emit()

    # ------------------------------------------------------------------------------------- the ends

    def _finish(self, report: CheckReport) -> None:
        self.report = report
        if self._window is None:
            put(self.waiting_words, tr("The data could not be read, so there is nothing to show."))
        whole = tr("whole data set, {duration:.1f} s").format(duration=report.duration_s)
        self.findings.hint.setText(whole)
        self._set_state("done")

    def _fail(self, sentence: str, said: str) -> None:
        self._set_state("failed")
        self.verdict.say(tr("The recipe could not be checked"), sentence, "bad", [])
        put(self.waiting_words, said)

    def _cancelled(self) -> None:
        if self._asked is not None and self.state == "running":
            asked, self._asked = self._asked, None
            self.check(asked, self._known)
        elif self.state == "running":
            self._set_state("failed")
            self.verdict.say(
                tr("The check was cancelled"), tr("What was found so far is shown below."), "", []
            )

    def _accept(self, code: str) -> None:
        self._accepted |= {code}
        self._show()
        self.changed.emit()

    def _again(self) -> None:
        if self._current is not None:
            self.check(self._current, self._known)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Where it is narrow the side column takes less."""
        super().resizeEvent(event)
        self.side.setFixedWidth(SIDE_WIDTH if self.width() > NARROW else max(300, self.width() * 2 // 5))
