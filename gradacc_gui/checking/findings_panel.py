"""One list of checks: what stops a start, what is doubtful, what waits, what is right; each with its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QVBoxLayout, QWidget

from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.parts import SELECTABLE, IconLabel, Panel, button, clear_widget, label, rule
from gradacc_gui.words import tr
from trainer_backend.preflight.check_words import cost, sentence, title
from trainer_backend.preflight.findings import Amendment, Finding

DECISIONS: Final = frozenset({"masks-undecided", "range-unknown"})
"""Stops that are no mistake: only a person knows what is meant."""
ACTIONS: Final[dict[str, str]] = {
    "ids-beyond": "Add rows to the embedding",
    "n-exceeds": "Use N = {value}",
    "n-drops-all": "Use N = {value}",
    "warmup-exceeds": "Warm up for {value:,} samples",
    "values-low": "Use 0 to {high:,}",
    "range-unknown": "Use the measured range",
    "classes-missing": "Allow missing classes",
    "masks-undecided": "Decide below the masks",
}
"""What the button of a finding's change says; others say which key they set."""


def action_words(finding: Finding, change: Amendment) -> str:
    """What the one action of a finding does."""
    words = ACTIONS.get(finding.code)
    if words is None:
        return tr("Set {key}").format(key=change.key)
    value = change.value
    high = value[1] if isinstance(value, list) and len(value) == 2 else 0
    return tr(words).format(value=value, high=high)


class FindingsPanel(Panel):
    """The list, stops first."""

    change_requested = Signal(str, object)
    accepted = Signal(str)
    """The code of a stop that the person overrules."""

    def __init__(self) -> None:
        super().__init__(tr("Checks"))
        self._holder: QWidget | None = None
        self.rows: dict[str, QWidget] = {}
        """The row of each finding, by code; the last of several of one code."""

    def show_findings(self, findings: Sequence[Finding], accepted: frozenset[str], doing: str) -> None:
        """All of them anew; `doing`: what is still being checked, empty when all is done."""
        column = self._fresh_column()
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(2))
        for state in ("stop", "doubtful", "waits"):
            for finding in findings:
                if finding.state == state:
                    row = (
                        self._stop(finding, is_accepted=finding.code in accepted)
                        if state == "stop"
                        else self._doubt(finding, is_doubt=state == "doubtful")
                    )
                    self.rows[finding.code] = row
                    column.addWidget(row)
        if doing:
            column.addWidget(label(doing, "help"))
        right = [finding for finding in findings if finding.state == "ok"]
        if right:
            if len(right) < len(findings):
                column.addWidget(rule())
            column.addWidget(self._right(right))

    def _fresh_column(self) -> QVBoxLayout:
        if self._holder is not None:
            self.body.removeWidget(self._holder)
            self._holder.hide()
            self._holder.deleteLater()
        self.rows = {}
        self._holder = clear_widget()
        self.body.addWidget(self._holder)
        return QVBoxLayout(self._holder)

    def _stop(self, finding: Finding, *, is_accepted: bool) -> QWidget:
        frame = QFrame()
        is_mild = is_accepted or finding.code in DECISIONS
        set_role(frame, "notice-warning" if is_mild else "notice-bad")
        column = QVBoxLayout(frame)
        column.setContentsMargins(space(3), space(2), space(3), space(3))
        column.setSpacing(space(1))
        token = "warning" if is_mild else "bad"
        column.addLayout(self._head(finding, "warning", token, f"strong-{token}"))
        column.addWidget(_sentence(finding))
        row = QHBoxLayout()
        row.setSpacing(space(2))
        if finding.change is not None and finding.code != "masks-undecided":
            change = finding.change
            act = button(
                action_words(finding, change),
                role="primary",
                clicked=lambda: self.change_requested.emit(change.key, change.value),
            )
            act.setToolTip(f"{change.key} = {change.value}")
            row.addWidget(act)
        if finding.may_be_accepted and not is_accepted:
            row.addWidget(button(tr("Start anyway"), clicked=lambda: self.accepted.emit(finding.code)))
        if row.count():
            row.addStretch(1)
            column.addSpacing(space(1))
            column.addLayout(row)
        return frame

    def _head(self, finding: Finding, icon_name: str, token: str, role: str) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(space(2))
        row.addWidget(IconLabel(icon_name, token, 16))
        row.addWidget(label(title(finding, tr), role))
        row.addStretch(1)
        row.addWidget(label(cost(finding.duration_s), "help"))
        return row

    def _doubt(self, finding: Finding, *, is_doubt: bool) -> QWidget:
        holder = clear_widget()
        column = QVBoxLayout(holder)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(2)
        look = ("warning", "warning", "strong-warning") if is_doubt else ("info", "muted", "muted")
        column.addLayout(self._head(finding, *look))
        below = QVBoxLayout()
        below.setContentsMargins(16 + space(2), 0, 0, 0)
        below.setSpacing(2)
        below.addWidget(_sentence(finding, "" if is_doubt else "muted"))
        if finding.change is not None:
            change = finding.change
            act = button(
                action_words(finding, change),
                role="link",
                clicked=lambda: self.change_requested.emit(change.key, change.value),
            )
            act.setToolTip(f"{change.key} = {change.value}")
            below.addWidget(act, 0, Qt.AlignmentFlag.AlignLeft)
        column.addLayout(below)
        return holder

    def _right(self, findings: Sequence[Finding]) -> QWidget:
        holder = clear_widget()
        grid = QGridLayout(holder)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(space(2))
        grid.setVerticalSpacing(space(1))
        for line, finding in enumerate(findings):
            grid.addWidget(IconLabel("check", "ok", 16), line, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(label(title(finding, tr)), line, 1, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(label(sentence(finding, tr), "help", wrap=True), line, 2)
            grid.addWidget(
                label(cost(finding.duration_s), "help"), line, 3,
                Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignTop,
            )  # fmt: skip
            self.rows[finding.code] = holder
        grid.setColumnStretch(2, 1)
        return holder


def _sentence(finding: Finding, role: str = "") -> QWidget:
    made = label(sentence(finding, tr), role, wrap=True)
    made.setTextInteractionFlags(SELECTABLE)
    return made
