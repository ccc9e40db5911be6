"""A small table that a person fills in: from which sample on, N. Rows are added and taken away."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QGridLayout, QVBoxLayout, QWidget

from gradacc_gui.recipe.field_specs import FieldSpec, TextRow, rows_of, text_of_rows
from gradacc_gui.recipe.points import wrong_cells
from gradacc_gui.theme import space
from gradacc_gui.widgets.line_edit import CloseButton, LineEdit, clean
from gradacc_gui.widgets.parts import button, label
from gradacc_gui.words import tr


class PointsEdit(QWidget):
    """Speaks one text as the other editors do: "0: 4, 64000: 8". A row that is empty says nothing."""

    edited = Signal(str)

    def __init__(self, spec: FieldSpec) -> None:
        super().__init__()
        self.setObjectName("clear")
        self._spec = spec
        self._name, self._description = "", ""
        self._rows: list[_Row] = []
        self._invalid = False
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(1))
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(space(2))
        self._grid.setVerticalSpacing(space(1))
        self._headings = [label(tr(part.title), "help") for part in spec.columns]
        for place, heading in enumerate(self._headings):
            self._grid.addWidget(heading, 0, place)
            self._grid.setColumnStretch(place, 3 if place == 0 else 2)
        column.addLayout(self._grid)
        self.add = button(tr("Add a row"), role="link", clicked=self._add_row)
        column.addWidget(self.add, 0, Qt.AlignmentFlag.AlignLeft)
        self._follow()

    # ------------------------------------------------------------------ what it says

    def rows(self) -> list[TextRow]:
        """The text of each row, empty ones too."""
        return [row.texts() for row in self._rows]

    def cell(self, row: int, column: int) -> LineEdit:
        """The line at a place, counted from 0."""
        return self._rows[row].cells[column]

    def set_text(self, text: str) -> None:
        """Show `text` without emitting."""
        if text == text_of_rows(self.rows()):
            return
        for row in list(self._rows):
            self._drop(row)
        for texts in rows_of(text, len(self._spec.columns)):
            self._append().show_texts(texts)
        self._follow()

    def set_invalid(self, invalid: bool) -> None:
        """Draw the cells that need a look as such."""
        self._invalid = invalid
        self._follow()

    def set_names(self, name: str, description: str) -> None:
        """What a screen reader says of the table, its cells and its buttons."""
        self._name, self._description = name, description
        self._tell_screen_reader()

    # ------------------------------------------------------------------ rows come and go

    def _add_row(self) -> None:
        row = self._append()
        self._follow()
        row.cells[0].setFocus()

    def _append(self) -> _Row:
        row = _Row(len(self._spec.columns), self._tell, self._remove)
        self._rows.append(row)
        line = self._grid.rowCount()
        for place, widget in enumerate(row.widgets()):
            self._grid.addWidget(widget, line, place)
        return row

    def _remove(self, row: _Row) -> None:
        place = self._rows.index(row)
        self._drop(row)
        # The keyboard goes on where the row was, not to the top of the page.
        (self._rows[min(place, len(self._rows) - 1)].remove if self._rows else self.add).setFocus()
        self._tell()

    def _drop(self, row: _Row) -> None:
        self._rows.remove(row)
        for widget in row.widgets():
            self._grid.removeWidget(widget)
            widget.hide()
            widget.deleteLater()

    def _tell(self) -> None:
        self.edited.emit(text_of_rows(self.rows()))
        self._follow()

    def _follow(self) -> None:
        """Headings, marks, names and the way of the tab key, by the rows that stand there now."""
        wrong = wrong_cells(self._spec, self.rows())
        if self._invalid and not wrong and self._rows:  # a rule across fields: N before the first row
            wrong = [(0, 0)]
        for number, row in enumerate(self._rows):
            for place, cell in enumerate(row.cells):
                cell.set_invalid((number, place) in wrong)
        for heading in self._headings:
            heading.setVisible(bool(self._rows))
        first = self.cell(*wrong[0]) if wrong else self._rows[0].cells[0] if self._rows else self.add
        self.setFocusProxy(first)
        order = [widget for row in self._rows for widget in row.widgets()]
        for before, after in itertools.pairwise([*order, self.add]):
            QWidget.setTabOrder(before, after)
        self._tell_screen_reader()

    def _tell_screen_reader(self) -> None:
        self.setAccessibleName(self._name)
        self.setAccessibleDescription(self._description)
        self.add.setAccessibleName(tr("{name}: add a row").format(name=self._name))
        for number, row in enumerate(self._rows, start=1):
            place = tr("{name}, row {row}").format(name=self._name, row=number)
            for part, cell in zip(self._spec.columns, row.cells, strict=True):
                cell.setAccessibleName(f"{place}, {tr(part.title)}")
                cell.setAccessibleDescription(self._description)
            row.remove.setAccessibleName(tr("{place}: remove").format(place=place))


class _Row:
    """The lines of one row and the button that takes it away."""

    def __init__(self, columns: int, tell: Callable[[], None], remove: Callable[[_Row], None]) -> None:
        self.cells = [LineEdit() for _ in range(columns)]
        for cell in self.cells:
            cell.edited.connect(lambda _text: tell())
        self.remove = CloseButton(28, tr("Remove this row"))
        self.remove.clicked.connect(lambda: remove(self))

    def texts(self) -> TextRow:
        return tuple(clean(cell.text()) for cell in self.cells)

    def show_texts(self, texts: TextRow) -> None:
        for cell, text in zip(self.cells, texts, strict=True):
            cell.set_text(text)

    def widgets(self) -> list[QWidget]:
        return [*self.cells, self.remove]
