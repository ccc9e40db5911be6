"""The panel of N: typed, checked, asked, answered; and what else would change, never silently."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QSizePolicy

from gradacc_gui.run.asks import Ask, told
from gradacc_gui.run.numbers import count, real
from gradacc_gui.run.requests import parse_count
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.parts import IconButton, Panel, button, label, put
from gradacc_gui.window.companions import CompanionRows
from gradacc_gui.words import tr
from trainer_backend.config import LARGEST
from trainer_backend.protocol import SetAccumulation
from trainer_backend.settings import Settings


class CountEdit(QLineEdit):
    """A whole number to type, or to step with the arrow keys; it never rewrites what is typed."""

    stepped = Signal(int)
    """+1 or −1 was asked for."""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Arrow keys step, all else types."""
        match event.key():
            case Qt.Key.Key_Up:
                self.stepped.emit(1)
            case Qt.Key.Key_Down:
                self.stepped.emit(-1)
            case _:
                super().keyPressEvent(event)


class NPanel(Panel):
    """Accumulation steps N of a live run."""

    asked = Signal(object)
    """A `SetAccumulation` to send; who asks is filled in by the page."""

    def __init__(self) -> None:
        super().__init__(tr("Accumulation steps N"))
        self._settings: Settings | None = None
        self._live = False
        self._touched = False
        self._previews = False
        self._asked_for: int | None = None
        """N of an ask that is still open: it is not asked for twice."""
        self._build_row()
        self.problem = label(role="error", wrap=True)
        self.problem.hide()
        self.body.addWidget(self.problem)
        self.apply = button(tr("Apply at next step"), role="primary", clicked=self._ask)
        self.body.addWidget(self.apply)
        self.answer = label(wrap=True)
        self.answer.hide()
        self.body.addWidget(self.answer)
        self.preview = label(role="help", wrap=True)
        self.body.addWidget(self.preview)
        self.companions = CompanionRows()
        self.body.addWidget(self.companions)
        self._refresh()

    def _build_row(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(space(2))
        self.edit = CountEdit()
        set_role(self.edit, "n")
        self.edit.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.edit.setAccessibleName(tr("Accumulation steps N"))
        self.edit.setMaxLength(40)
        self.edit.textEdited.connect(self._on_edited)
        self.edit.returnPressed.connect(self._ask)
        self.edit.stepped.connect(self._step)
        self.fewer = self._step_button("minus", tr("One fewer"), -1)
        self.more = self._step_button("plus", tr("One more"), 1)
        row.addWidget(self.fewer)
        row.addWidget(self.edit, 1)
        row.addWidget(self.more)
        self.body.addLayout(row)

    def _step_button(self, icon_name: str, name: str, by: int) -> IconButton:
        made = IconButton("", icon_name)
        made.setAccessibleName(name)
        made.setToolTip(name)
        made.setMinimumSize(QSize(56, 34))
        made.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Preferred)
        made.setAutoRepeat(True)
        made.clicked.connect(lambda: self._step(by))
        return made

    # ------------------------------------------------------------------ what it is told

    def set_settings(self, settings: Settings | None, *, live: bool) -> None:
        """What is in force now, and whether anybody listens."""
        if settings == self._settings and live == self._live:
            return
        if settings is not None and self.wanted() == settings.accumulation_steps:
            self._touched = False
        self._settings, self._live = settings, live
        if settings is not None and not self._touched:
            self.edit.setText(str(settings.accumulation_steps))
        self._refresh()

    def forget(self) -> None:
        """Clear what belongs to the run shown so far: what was typed was not for the next one."""
        self._touched = False
        self._settings = None
        self.edit.clear()
        self.answer.hide()
        self._refresh()

    def show_ask(self, ask: Ask | None) -> None:
        """How far the last asked N came."""
        asked_for = _steps_of(ask) if ask is not None and ask.is_open else None
        if asked_for != self._asked_for:
            self._asked_for = asked_for
            self._refresh()
        shown = ask is not None and not self._is_past(ask)
        self.answer.setVisible(shown)
        self._show_hint()
        if ask is None or not shown:
            return
        role = {"asked": "pending", "accepted": "pending", "done": "answered", "refused": "refused"}[
            ask.answer
        ]
        set_role(self.answer, role)
        steps, effective = _steps_of(ask), None
        if steps is not None and self._settings is not None:
            effective = self._settings.samples_a_round * steps
        put(self.answer, told(ask, effective=effective if ask.answer != "refused" else None))

    def _is_past(self, ask: Ask) -> bool:
        """Whether N is another by now: a kept effective batch, a schedule or another window changed it."""
        now = self._settings.accumulation_steps if self._settings is not None else None
        return ask.answer == "done" and now is not None and now != _steps_of(ask)

    # ------------------------------------------------------------------ what is typed

    def wanted(self) -> int | str:
        """N as typed, or what is wrong with it."""
        return parse_count(self.edit.text(), "N")

    def _on_edited(self) -> None:
        self._touched = True
        self._refresh()

    def _step(self, by: int) -> None:
        now = self.wanted()
        if isinstance(now, str):
            now = self._settings.accumulation_steps if self._settings else 1
        self.edit.setText(str(min(max(now + by, 1), LARGEST)))
        self._on_edited()

    def _refresh(self) -> None:
        wanted = self.wanted()
        wrong = wanted if isinstance(wanted, str) and self._touched else ""
        put(self.problem, wrong)
        self.problem.setVisible(bool(wrong))
        set_role(self.edit, "n-invalid" if wrong else "n")
        ready = self._live and self._settings is not None
        for widget in (self.edit, self.fewer, self.more):
            widget.setEnabled(ready)
        self.apply.setEnabled(ready and isinstance(wanted, int) and self._differs(wanted))
        put(
            self.hint,
            tr("now {count}").format(count=count(self._settings.accumulation_steps))
            if self._settings
            else "",
        )
        self._preview(wanted)

    def _differs(self, wanted: int) -> bool:
        now = self._settings.accumulation_steps if self._settings is not None else None
        return now is not None and wanted != (self._asked_for or now)

    def _preview(self, wanted: int | str) -> None:
        if self._settings is None or isinstance(wanted, str) or not self._differs(wanted):
            self.companions.show_for(None, 1)
            put(self.preview, tr("Enter a new N. The current step still finishes with the old one."))
            self._previews = False
            self._show_hint()
            return
        ratio = self._settings.kappa(wanted)
        after = self._settings.samples_a_round * wanted
        text = tr("Effective batch {before} → {after} (× {ratio}). Also adjust:")
        put(
            self.preview,
            text.format(before=count(self._settings.effective_batch), after=count(after), ratio=real(ratio)),
        )
        self._previews = True
        self._show_hint()
        self.companions.show_for(self._settings, wanted)

    def _show_hint(self) -> None:
        """The line below Apply: a preview, or else a hint as long as nothing was answered."""
        self.preview.setVisible(self._previews or (self._live and self.answer.isHidden()))

    def _ask(self) -> None:
        wanted = self.wanted()
        if not self.apply.isEnabled() or isinstance(wanted, str):
            return
        choice = self.companions.choice()
        self._touched = False
        self.asked.emit(
            SetAccumulation(
                steps=wanted,
                learning_rate_rule=choice.learning_rate_rule,
                scale_beta2=choice.beta2,
                scale_weight_decay=choice.weight_decay,
                scale_ema=choice.ema,
            )
        )


def _steps_of(ask: Ask) -> int | None:
    """N that was asked for."""
    return ask.command.steps if isinstance(ask.command, SetAccumulation) else None
