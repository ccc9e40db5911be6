"""As published beside as run here, and the learning rate carried over by a named rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from gradacc_gui.form.editors import ComboBox, TableEdit, set_names
from gradacc_gui.recipe.published_rules import RULES, effective_batch_of, learning_rate_of, scaled
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.parts import button, label, put
from gradacc_gui.words import tr
from trainer_backend.published import Difference, number_text
from trainer_backend.settings import Rule

EXAMPLE = """source = "Author 2025, table 3"
[accumulation]
effective_batch_size = 4096
[optimizer]
learning_rate = 3e-4"""


class PublishedPanel(QFrame):
    """Edits the recipe's [published] table as TOML and shows it beside what is run here."""

    edited = Signal(str)
    fill_requested = Signal(str)
    """A learning rate to be filled in."""

    def __init__(self) -> None:
        super().__init__()
        set_role(self, "panel")
        self.setAccessibleName(tr("As published"))
        column = QVBoxLayout(self)
        column.setContentsMargins(space(4), space(3), space(4), space(3))
        column.setSpacing(space(2))
        row = QHBoxLayout()
        row.setSpacing(space(2))
        row.addWidget(label(tr("As published"), "title"))
        self._hint = label(tr("beside the values of this run"), "help")
        row.addWidget(self._hint)
        row.addStretch(1)
        self.edit = button(tr("Edit…"), role="link", clicked=self._toggle)
        row.addWidget(self.edit)
        column.addLayout(row)
        self.source = label("", "help", wrap=True)
        column.addWidget(self.source)
        self._table = QGridLayout()
        self._table.setHorizontalSpacing(space(4))
        self._table.setVerticalSpacing(space(1))
        column.addLayout(self._table)
        self._shown: Sequence[Difference] = ()
        self._cells: list[QLabel] = []
        self._build_rule(column)
        self.toml = TableEdit()
        self.toml.setPlaceholderText(EXAMPLE)
        self.toml.edited.connect(self.edited)
        self.note = label("", "help", wrap=True)
        column.addWidget(self.toml)
        column.addWidget(self.note)
        self.toml.hide()
        self.set_error("")

    def _build_rule(self, column: QVBoxLayout) -> None:
        self.rule_row = QWidget()
        self.rule_row.setObjectName("clear")
        row = QHBoxLayout(self.rule_row)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(space(2))
        self.rule = ComboBox(list(RULES), [tr(word) for word in RULES.values()])
        self.rule.setMinimumContentsLength(max(map(len, RULES.values())))
        self.rule.setAccessibleName(tr("Rule for the learning rate"))
        self.rule.edited.connect(lambda _text: self._preview())
        self.preview = label("", wrap=True)
        self.fill = button(tr("Fill in"), clicked=self._fill)
        self.fill.setAccessibleName(tr("Fill in the learning rate"))
        row.addWidget(label(tr("Learning rate")))
        row.addWidget(self.rule)
        row.addWidget(self.preview, 1)
        row.addWidget(self.fill)
        column.addWidget(self.rule_row)
        self._kappa: float | None = None
        self._published_rate: float | None = None
        self.rule_row.hide()

    def _toggle(self) -> None:
        self.set_editing(self.toml.isHidden())

    def set_editing(self, editing: bool) -> None:
        """Show the TOML lines or put them away."""
        self.toml.setVisible(editing)
        self.note.setVisible(editing or bool(self.note.text() and self._error))
        self.edit.setText(tr("Done") if editing else tr("Edit…"))

    def set_error(self, sentence: str) -> None:
        """What is wrong with the lines; "" when nothing is."""
        self._error = sentence
        self.toml.set_invalid(bool(sentence))
        usual = tr("The recipe's keys with the published values, for comparison. They do not change the run.")
        put(self.note, sentence or usual)
        set_role(self.note, "error" if sentence else "help")
        self.note.setVisible(bool(sentence) or not self.toml.isHidden())
        set_names(self.toml, tr("As published"), self.note.text())

    @property
    def error(self) -> str:
        """What is said in red; empty: nothing."""
        return self._error

    def show_published(
        self, published: dict[str, Any], differences: Sequence[Difference], effective_batch: int | None
    ) -> None:
        """Show the table, and offer a learning rate where one can be carried over."""
        source = published.get("source", "")
        put(self.source, source if isinstance(source, str) else "")
        self.source.setVisible(bool(self.source.text()))
        self._hint.setVisible(bool(differences) or not published)
        if list(differences) != list(self._shown):
            self._shown = tuple(differences)
            self._fill_table()
        batch = effective_batch_of(published)
        self._published_rate = learning_rate_of(published)
        self._kappa = effective_batch / batch if batch and effective_batch else None
        self.rule_row.setVisible(self._published_rate is not None and self._kappa is not None)
        self._preview()

    def _fill_table(self) -> None:
        for old in self._cells:
            self._table.removeWidget(old)
            old.hide()
            old.deleteLater()
        self._cells = []
        if not self._shown:
            return
        for place, heading in enumerate(("", tr("as published"), tr("in this run"))):
            self._put(label(heading, "help"), 0, place)
        for row, difference in enumerate(self._shown, start=1):
            self._put(label(difference.title), row, 0)
            self._put(label(difference.published), row, 1)
            self._put(label(difference.here, "muted" if difference.same else "differs"), row, 2)
        for place in range(3):
            self._table.setColumnStretch(place, 1)

    def _put(self, cell: QLabel, row: int, place: int) -> None:
        self._cells.append(cell)
        self._table.addWidget(cell, row, place)

    def rows(self) -> list[tuple[str, str, str]]:
        """What the table shows: title, as published, as run here."""
        return [(entry.title, entry.published, entry.here) for entry in self._shown]

    def _rate(self) -> float | None:
        if self._kappa is None or self._published_rate is None:
            return None
        rule: Rule = "linear"
        for name in RULES:
            if name == self.rule.text():
                rule = name
        return scaled(self._published_rate, self._kappa, rule)

    def _preview(self) -> None:
        rate = self._rate()
        if rate is None or self._kappa is None or self._published_rate is None:
            return
        words = tr("{published} becomes {rate} (batch × {ratio:.4g})")
        put(
            self.preview,
            words.format(
                published=number_text(self._published_rate), rate=number_text(rate), ratio=self._kappa
            ),
        )

    def _fill(self) -> None:
        rate = self._rate()
        if rate is not None:
            self.fill_requested.emit(number_text(rate))
