"""A panel of fields, as many abreast as fit; rare ones wait behind *More*."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QVBoxLayout, QWidget

from gradacc_gui.form.field_view import FieldView
from gradacc_gui.recipe.arrangement import Arrangement, is_rare, span_of
from gradacc_gui.recipe.field_specs import FieldSpec
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.flow import empty
from gradacc_gui.widgets.parts import ElidedLabel, button, label
from gradacc_gui.words import tr

NARROWEST_FIELD: Final = 192
MOST_ABREAST: Final = 4


class SectionPanel(QFrame):
    """The fields of one arrangement. Views of fields behind *More* are made when it is first opened."""

    opened = Signal()

    def __init__(self, arrangement: Arrangement, make_view: Callable[[FieldSpec], FieldView]) -> None:
        super().__init__()
        set_role(self, "panel")
        self.arrangement = arrangement
        self.setAccessibleName(tr(arrangement.title))
        self._make_view = make_view
        self._specs: tuple[FieldSpec, ...] = ()
        self._applies: Callable[[str], bool] = lambda _path: True
        self._views: dict[str, FieldView] = {}
        self._leading: list[QWidget] = []
        self._columns = 0
        self._open = False
        self._brought: set[str] = set()
        """Rare fields that are shown though *More* is closed."""
        column = QVBoxLayout(self)
        column.setContentsMargins(space(4), space(3), space(4), space(3))
        column.setSpacing(space(2))
        row = QHBoxLayout()
        row.setSpacing(space(2))
        row.addWidget(label(tr(arrangement.title), "title"))
        self._hint = ElidedLabel(tr(arrangement.hint), "help", Qt.TextElideMode.ElideRight)
        row.addWidget(self._hint, 1)
        self.more = button(tr("More"), role="link", clicked=self._toggle)
        row.addWidget(self.more)
        column.addLayout(row)
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(space(4))
        self._grid.setVerticalSpacing(space(3))
        column.addLayout(self._grid)
        self._column = column

    # ------------------------------------------------------------------ what it holds

    def add_leading(self, widget: QWidget) -> None:
        """A widget before all fields."""
        self._leading.append(widget)

    def add_trailing(self, widget: QWidget) -> None:
        """A widget below all fields."""
        self._column.addWidget(widget)

    def set_specs(
        self, specs: Iterable[FieldSpec], applies: Callable[[str], bool], brought: Callable[[str], bool]
    ) -> None:
        """The fields of the present kind; views of fields that are gone go with them.

        `brought` tells which rare fields are shown though *More* is closed.
        """
        self._specs, self._applies = tuple(specs), applies
        kept = {spec.path: spec for spec in self._specs}
        for path, view in list(self._views.items()):
            if path not in kept or (view.spec.path == path and kept[path] != view.spec):
                self._views.pop(path).deleteLater()
                view.hide()
        self._brought = {path for path in self.rare_paths() if brought(path)}
        self.arrange()

    def view(self, path: str) -> FieldView | None:
        """A field's view, if it has been made."""
        return self._views.get(path)

    def specs(self) -> tuple[FieldSpec, ...]:
        """Its fields in order, shown or not."""
        return self._specs

    def views(self) -> tuple[FieldView, ...]:
        """Every view that has been made."""
        return tuple(self._views.values())

    def reveal(self, path: str) -> FieldView | None:
        """Make sure that a field is on the page, behind *More* or not."""
        spec = next((spec for spec in self._specs if spec.path == path), None)
        if spec is None:
            return None
        hidden = (is_rare(spec, self.arrangement) and not self._open) or not self._applies(path)
        if hidden or path not in self._views:
            self._brought.add(path)
            self.arrange()
        return self._views[path]

    # ------------------------------------------------------------------ more and less

    def _toggle(self) -> None:
        self.set_open(not self._open)

    @property
    def is_open(self) -> bool:
        """Whether the rare fields are shown."""
        return self._open

    def set_open(self, is_open: bool) -> None:
        """Show the rare fields or put them away."""
        if is_open != self._open:
            self._open = is_open
            self.arrange()
            if is_open:
                self.opened.emit()

    def rare_paths(self) -> tuple[str, ...]:
        """Fields behind *More*."""
        return tuple(spec.path for spec in self._specs if is_rare(spec, self.arrangement))

    def _waits(self, spec: FieldSpec) -> bool:
        return is_rare(spec, self.arrangement) and spec.path not in self._brought

    # ------------------------------------------------------------------ the grid

    def arrange(self) -> None:
        """Put the fields that apply into the grid."""
        some = [spec for spec in self._specs if self._applies(spec.path) or spec.path in self._brought]
        waiting = [spec for spec in some if self._waits(spec)]
        shown = some if self._open else [spec for spec in some if spec not in waiting]
        self.more.setVisible(bool(waiting))
        self.more.setText(tr("Less") if self._open else tr("{count} more…").format(count=len(waiting)))
        self.more.setAccessibleName(f"{tr(self.arrangement.title)}: {self.more.text()}")
        empty(self._grid)
        columns = max(self._columns, 1)
        cells: list[QWidget] = [*self._leading]
        for spec in shown:
            if spec.path not in self._views:
                self._views[spec.path] = self._make_view(spec)
            cells.append(self._views[spec.path])
        place = 0
        for cell in cells:
            span = span_of(cell.spec, columns) if isinstance(cell, FieldView) else 1
            if place % columns + span > columns:
                place += columns - place % columns
            self._grid.addWidget(cell, place // columns, place % columns, 1, span)
            place += span
        for view in self._views.values():
            if view.isHidden() == (view in cells):
                view.setVisible(view in cells)
        self._keep_tab_order(cells)

    def _keep_tab_order(self, cells: list[QWidget]) -> None:
        before: QWidget = self.more
        for cell in cells:
            for child in [cell, *cell.findChildren(QWidget)]:
                takes_tab = child.focusPolicy() & Qt.FocusPolicy.TabFocus and child.focusProxy() is None
                if (
                    takes_tab and child.window() is before.window()
                ):  # a combo box's list is a window of its own
                    QWidget.setTabOrder(before, child)
                    before = child

    def set_columns(self, columns: int) -> None:
        """Set the number of fields in a row."""
        if columns != self._columns:
            for column in range(max(columns, self._columns)):
                self._grid.setColumnStretch(column, 1 if column < columns else 0)
            self._columns = columns
            self.arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fit as many fields abreast as have room."""
        super().resizeEvent(event)
        room = self.width() - 2 * space(4) + space(4)
        self.set_columns(min(max(room // (NARROWEST_FIELD + space(4)), 1), MOST_ABREAST))
        self._hint.setVisible(self.width() > 420)
