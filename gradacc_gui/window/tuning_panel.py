"""The other settings of a live run: micro-batch size, learning rate, clipping; folded away until wanted."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QGridLayout, QLineEdit, QPushButton, QVBoxLayout, QWidget

from gradacc_gui.run.asks import Ask, told
from gradacc_gui.run.numbers import count, real
from gradacc_gui.run.requests import parse_count, parse_positive
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.parts import Panel, button, label, put
from gradacc_gui.words import tr
from trainer_backend.protocol import AnyCommand, SetLearningRate, SetMaxGradNorm, SetMicroBatchSize
from trainer_backend.settings import Settings


class Field:
    """One value with its own Apply: typed, checked, asked."""

    def __init__(self, name: str, check: Callable[[str], object]) -> None:
        self.name = name
        self._check = check
        self.label = label(name)
        self.edit = QLineEdit()
        self.edit.setAccessibleName(name)
        self.apply = QPushButton(tr("Apply"))
        self.apply.setAccessibleName(tr("Apply {name}").format(name=name))
        self.problem = label(role="error", wrap=True)
        self.problem.hide()
        self.touched = False
        self.in_force = ""
        self.edit.textEdited.connect(self._on_edited)
        self.edit.returnPressed.connect(self.apply.click)
        self.apply.setEnabled(False)

    def show_in_force(self, text: str, *, live: bool) -> None:
        """What is in force, unless somebody is typing another value."""
        self.in_force = text
        if not self.touched and self.edit.text() != text:
            self.edit.setText(text)
        self.edit.setEnabled(live)
        self.refresh(live=live)

    def _on_edited(self) -> None:
        self.touched = True
        self.refresh(live=True)

    def refresh(self, *, live: bool) -> None:
        """Judge what is typed."""
        problem = self._check(self.edit.text()) if self.touched else ""
        wrong = problem if isinstance(problem, str) else ""
        put(self.problem, wrong)
        self.problem.setVisible(bool(wrong))
        set_role(self.edit, "invalid" if wrong else "")
        changed = self.touched and self.edit.text().strip() != self.in_force
        self.apply.setEnabled(live and changed and not wrong)

    def taken(self) -> None:
        """It was asked; from here on the facts tell what is in force."""
        self.touched = False
        self.apply.setEnabled(False)


class TuningPanel(Panel):
    """Settings that change at the next step too."""

    asked = Signal(object)

    def __init__(self) -> None:
        super().__init__(tr("Other settings"))
        self._settings: Settings | None = None
        self._live = False
        self.fold = button(tr("Show"), role="link", clicked=self._toggle)
        self.hint.hide()
        header = self.layout().itemAt(0).layout()  # type: ignore[union-attr]  # Panel has a title row
        header.addWidget(self.fold)  # type: ignore[union-attr]
        self.content = QWidget()
        self.content.setObjectName("clear")
        column = QVBoxLayout(self.content)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(1))
        self.micro_batch = Field(tr("Micro-batch"), lambda text: parse_count(text, tr("The micro-batch")))
        self.learning_rate = Field(
            tr("Learning rate"), lambda text: parse_positive(text, tr("The learning rate"), zero=True)
        )
        self.clip = Field(tr("Clip norm"), _check_clip)
        self.clip.edit.setPlaceholderText(tr("no clipping"))
        grid = QGridLayout()
        grid.setHorizontalSpacing(space(2))
        grid.setVerticalSpacing(space(1))
        grid.setColumnStretch(1, 1)
        self.keep = QCheckBox(tr("Keep the effective batch (N follows)"))
        self.keep.setChecked(True)
        self.keep.toggled.connect(self._preview)
        self.keep_words = label(role="help", wrap=True)
        row = 0
        for field in (self.micro_batch, self.learning_rate, self.clip):
            grid.addWidget(field.label, row, 0)
            grid.addWidget(field.edit, row, 1)
            grid.addWidget(field.apply, row, 2)
            grid.addWidget(field.problem, row + 1, 0, 1, 3)
            row += 2
            if field is self.micro_batch:
                grid.addWidget(self.keep, row, 0, 1, 3)
                grid.addWidget(self.keep_words, row + 1, 0, 1, 3)
                row += 2
        column.addLayout(grid)
        self.body.addWidget(self.content)
        self.answer = label(wrap=True)
        self.answer.hide()
        self.body.addWidget(self.answer)
        self.micro_batch.edit.textEdited.connect(self._preview)
        self.micro_batch.apply.clicked.connect(self._ask_micro_batch)
        self.learning_rate.apply.clicked.connect(self._ask_learning_rate)
        self.clip.apply.clicked.connect(self._ask_clip)
        self.content.hide()

    def _toggle(self) -> None:
        self.set_open(open_=self.content.isHidden())

    def set_open(self, *, open_: bool) -> None:
        """Show or hide the settings below the title."""
        self.content.setVisible(open_)
        self.fold.setText(tr("Hide") if open_ else tr("Show"))

    def set_settings(self, settings: Settings | None, *, live: bool) -> None:
        """What is in force now, and whether anybody listens."""
        if settings == self._settings and live == self._live:
            return
        self._settings, self._live = settings, live
        if settings is None:
            return
        self.micro_batch.show_in_force(str(settings.micro_batch_size), live=live)
        rate, clip = settings.learning_rate, settings.max_grad_norm
        self.learning_rate.show_in_force("" if rate is None else real(rate), live=live)
        self.clip.show_in_force("" if clip is None else real(clip), live=live)
        self._preview()

    def forget(self) -> None:
        """Clear what belongs to the run shown so far; another one follows."""
        self._settings = None
        self.answer.hide()
        for field in (self.micro_batch, self.learning_rate, self.clip):
            field.taken()
            field.edit.clear()

    def show_ask(self, ask: Ask | None) -> None:
        """How far the last asked setting came."""
        self.answer.setVisible(ask is not None)
        if ask is not None:
            roles = {"asked": "pending", "accepted": "pending", "done": "answered", "refused": "refused"}
            set_role(self.answer, roles[ask.answer])
            put(self.answer, told(ask))

    def _preview(self) -> None:
        size = parse_count(self.micro_batch.edit.text(), "")
        if self._settings is None or isinstance(size, str) or size == self._settings.micro_batch_size:
            self.keep_words.hide()
            return
        self.keep_words.show()
        if not self.keep.isChecked():
            after = msgspec.structs.replace(self._settings, micro_batch_size=size).effective_batch
            text = tr("The effective batch becomes {after}.").format(after=count(after))
        elif (steps := self._settings.steps_that_keep(size)) is not None:
            text = tr("N becomes {steps}; the effective batch stays {batch}.")
            text = text.format(steps=count(steps), batch=count(self._settings.effective_batch))
        else:
            text = tr(
                "The effective batch of {batch} is not a multiple of {size}. Enter a size that divides "
                "it, or allow it to change."
            )
            text = text.format(size=count(size), batch=count(self._settings.effective_batch))
        put(self.keep_words, text)

    def _send(self, field: Field, command: AnyCommand) -> None:
        field.taken()
        self.asked.emit(command)

    def _ask_micro_batch(self) -> None:
        size = parse_count(self.micro_batch.edit.text(), "")
        if isinstance(size, int):
            self._send(
                self.micro_batch, SetMicroBatchSize(size=size, keep_effective_batch=self.keep.isChecked())
            )

    def _ask_learning_rate(self) -> None:
        value = parse_positive(self.learning_rate.edit.text(), "", zero=True)
        if isinstance(value, float):
            self._send(self.learning_rate, SetLearningRate(value=value))

    def _ask_clip(self) -> None:
        text = self.clip.edit.text()
        value = parse_positive(text, "") if text.strip() else None
        if not isinstance(value, str):
            self._send(self.clip, SetMaxGradNorm(value=value))


def _check_clip(text: str) -> object:
    return parse_positive(text, tr("The clipping bound")) if text.strip() else None
