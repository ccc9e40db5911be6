"""What a new N may take along: learning rate, β₂, weight decay, EMA; each previewed with its numbers."""

from __future__ import annotations

import msgspec
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QVBoxLayout, QWidget

from gradacc_gui.run.numbers import real
from gradacc_gui.run.requests import RULES, Companion, companions
from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import Segments, label, put
from gradacc_gui.words import tr
from trainer_backend.settings import Rule, Settings


class CompanionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What shall change together with N."""

    learning_rate_rule: Rule
    beta2: bool
    weight_decay: bool
    ema: bool


class CompanionRows(QWidget):
    """The rows; only those the run has, and none while N is unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self._settings: Settings | None = None
        self._steps = 1
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(1))
        row = QHBoxLayout()
        row.setSpacing(space(2))
        self.rate_words = label(tr("Learning rate"), wrap=False)
        self.rule = Segments([(key, tr(word)) for key, word in RULES.items()], tr("Learning rate rule"))
        self.rule.chosen.connect(self._refresh)
        row.addWidget(self.rate_words)
        row.addStretch(1)
        row.addWidget(self.rule)
        column.addLayout(row)
        self.rate_after = label(role="help")
        column.addWidget(self.rate_after)
        self.beta2, self.weight_decay, self.ema = QCheckBox(), QCheckBox(), QCheckBox()
        reasons = (
            tr("β₂ to the power of the batch ratio: the second moment keeps its half-life in samples."),
            tr("Weight decay times the batch ratio: the decay per sample stays the same."),
            tr("EMA decay to the power of the batch ratio: the average keeps its half-life in samples."),
        )
        for box, reason in zip((self.beta2, self.weight_decay, self.ema), reasons, strict=True):
            box.setToolTip(reason)
            box.setAccessibleName(reason)
            column.addWidget(box)
        self.hide()

    def show_for(self, settings: Settings | None, steps: int) -> None:
        """Show what N = `steps` would make of `settings`; None hides the rows."""
        self._settings, self._steps = settings, steps
        self.setVisible(settings is not None)
        if settings is not None:
            self._refresh()

    def _refresh(self) -> None:
        settings = self._settings
        if settings is None:
            return
        rule = self._rule()
        after, offered = companions(settings, self._steps, rule)
        self._show_rate(settings.learning_rate, after.learning_rate, rule)
        for box, field in (
            (self.beta2, "beta2"),
            (self.weight_decay, "weight_decay"),
            (self.ema, "ema_decay"),
        ):
            _show_companion(box, offered.get(field))

    def _show_rate(self, before: float | None, after: float | None, rule: Rule) -> None:
        if before is None or after is None:
            text = tr("The run's learning rate is not known yet.")
        elif rule == "none":
            text = tr("Learning rate stays {value}").format(value=real(before))
        else:
            text = tr("Learning rate {before} → {after}").format(before=real(before), after=real(after))
        put(self.rate_after, text)

    def _rule(self) -> Rule:
        match self.rule.choice():
            case "sqrt":
                return "sqrt"
            case "linear":
                return "linear"
            case _:
                return "none"

    def choice(self) -> CompanionChoice:
        """What is ticked, as far as the run has it."""
        shown = self._settings is not None
        return CompanionChoice(
            learning_rate_rule=self._rule() if shown else "none",
            beta2=shown and self._counts(self.beta2),
            weight_decay=shown and self._counts(self.weight_decay),
            ema=shown and self._counts(self.ema),
        )

    @staticmethod
    def _counts(box: QCheckBox) -> bool:
        return not box.isHidden() and box.isChecked()


def _show_companion(box: QCheckBox, companion: Companion | None) -> None:
    box.setVisible(companion is not None)
    if companion is not None and box.text() != companion.text:
        box.setText(companion.text)
