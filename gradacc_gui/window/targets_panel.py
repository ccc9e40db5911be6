"""The run's targets: what each is, what was reached, and whether it is met so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QLabel

from gradacc_gui.run.target_lines import VERDICTS, Standing, TargetLine
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.parts import Panel, clear_widget, label, put
from gradacc_gui.words import tr

ROLES: Final[dict[Standing, str]] = {"met": "ok", "missed": "error", "unknown": "help"}


class TargetsPanel(Panel):
    """Hidden where the recipe states none."""

    def __init__(self) -> None:
        super().__init__(tr("Targets"))
        self._holder = clear_widget()
        self._grid = QGridLayout(self._holder)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(space(2))
        self._grid.setVerticalSpacing(2)
        self._grid.setColumnStretch(0, 1)
        self.body.addWidget(self._holder)
        self.rows: list[tuple[QLabel, QLabel, QLabel]] = []
        """Quantity, verdict, and below them what was reached and the bound."""
        self._shown: list[TargetLine] = []
        self.hide()

    def show_lines(self, lines: Sequence[TargetLine]) -> None:
        """Show how they stand; none hides the panel."""
        if list(lines) == self._shown:
            return
        self._shown = list(lines)
        self.setVisible(bool(lines))
        self._lay_out(len(lines))
        for line, (quantity, verdict, detail) in zip(lines, self.rows, strict=True):
            put(quantity, line.quantity)
            put(verdict, tr("missed, went on") if line.overridden else tr(VERDICTS[line.verdict]))
            set_role(verdict, ROLES[line.verdict])
            put(detail, f"{line.reached}, {line.bound}" if line.reached else line.bound)
            for widget in (quantity, verdict, detail):
                widget.setToolTip(line.evidence)
        missed = sum(line.verdict == "missed" for line in lines)
        put(self.hint, tr("{count} missed").format(count=missed) if missed else "")

    def _lay_out(self, count: int) -> None:
        while len(self.rows) > count:
            for widget in self.rows.pop():
                self._grid.removeWidget(widget)
                widget.hide()
                widget.deleteLater()
        while len(self.rows) < count:
            place = 2 * len(self.rows)
            made = label(wrap=True), label(), label(role="help", wrap=True)
            self._grid.addWidget(made[0], place, 0)
            self._grid.addWidget(made[1], place, 1, Qt.AlignmentFlag.AlignRight)
            self._grid.addWidget(made[2], place + 1, 0, 1, 2)
            made[2].setContentsMargins(0, 0, 0, space(1))
            self.rows.append(made)
