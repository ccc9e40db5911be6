"""The table of runs: keys, sorting and the choice of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QMenu, QTableView

from gradacc_gui.remembered import Remembered
from gradacc_gui.run.run_columns import BY_KEY, COLUMNS, NEVER_HIDDEN, NEWEST_FIRST, SHOWN_FIRST
from gradacc_gui.session.runs import RunSummary
from gradacc_gui.theme import current_theme
from gradacc_gui.widgets.desktop import offer_rows
from gradacc_gui.window.runs_model import STAR, RunsDelegate, RunsModel
from gradacc_gui.words import tr

ROW_HEIGHT: Final = 34
STAR_WIDTH: Final = 34
LEAST_NAME_WIDTH: Final = 200


class ListMemory(Remembered):
    """What the list of runs remembers: columns with their widths, order, search."""

    @property
    def columns(self) -> tuple[tuple[str, int], ...]:
        """Keys and widths in pixels."""
        found = []
        for part in str(self._settings.value("runs/columns", "")).split(";"):
            key, _, width = part.partition(":")
            if key in BY_KEY and width.isdigit():
                found.append((key, min(max(int(width), 24), 2000)))
        if not set(NEVER_HIDDEN) <= {key for key, _ in found}:
            return tuple((key, BY_KEY[key].width) for key in SHOWN_FIRST)
        return tuple(found)

    @columns.setter
    def columns(self, columns: tuple[tuple[str, int], ...]) -> None:
        self._set("runs/columns", ";".join(f"{key}:{width}" for key, width in columns))

    @property
    def order(self) -> tuple[str, bool]:
        """The column that sorts, and whether the greatest comes first."""
        key, _, way = str(self._settings.value("runs/order", "")).partition(":")
        return (key, way == "down") if key in BY_KEY else NEWEST_FIRST

    @order.setter
    def order(self, order: tuple[str, bool]) -> None:
        self._set("runs/order", f"{order[0]}:{'down' if order[1] else 'up'}")

    @property
    def search(self) -> str:
        """What was searched for last."""
        return str(self._settings.value("runs/search", ""))

    @search.setter
    def search(self, text: str) -> None:
        self._set("runs/search", text)


class RunTable(QTableView):
    """Rows of runs; Return opens, Delete deletes, F2 names."""

    opened = Signal()
    delete_pressed = Signal()
    notes_pressed = Signal()
    star_clicked = Signal(object)
    """A `RunSummary`."""
    order_changed = Signal()

    def __init__(self, model: RunsModel, memory: ListMemory) -> None:
        super().__init__()
        self._memory = memory
        self.runs_model = model
        self.order = memory.order
        self.setModel(model)
        self.setAccessibleName(tr("Runs"))
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setWordWrap(False)
        self.verticalHeader().hide()
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self.verticalHeader().setDefaultSectionSize(ROW_HEIGHT)
        self.setItemDelegate(RunsDelegate(self, self.star_clicked.emit))
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self._arrange_header()
        self._show_columns(memory.columns)
        offer_rows(self)

    def _arrange_header(self) -> None:
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setMinimumSectionSize(24)
        header.setSectionsClickable(True)
        header.setSortIndicatorShown(True)
        header.sectionClicked.connect(self._sort_by)
        header.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        header.customContextMenuRequested.connect(
            lambda place: self.open_columns_menu(header.mapToGlobal(place))
        )

    def resizeEvent(self, event: QResizeEvent) -> None:
        """The names take what the other columns leave."""
        super().resizeEvent(event)
        self._fit_names()

    def _fit_names(self) -> None:
        place = self.runs_model.section("name")
        others = sum(
            self.columnWidth(other) for other in range(self.runs_model.columnCount()) if other != place
        )
        self.setColumnWidth(place, max(LEAST_NAME_WIDTH, self.viewport().width() - others))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Say why nothing is shown."""
        super().paintEvent(event)
        if not self.runs_model.rowCount():
            painter = QPainter(self.viewport())
            painter.setPen(QColor(current_theme().muted))
            rect = self.viewport().rect().adjusted(0, 48, 0, 0)
            where = Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop
            painter.drawText(rect, int(where), tr("No run fits this search."))
            painter.end()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Return, Delete and F2 act on the selected runs."""
        act: dict[int, Callable[[], object]] = {
            Qt.Key.Key_Return: self.opened.emit,
            Qt.Key.Key_Enter: self.opened.emit,
            Qt.Key.Key_Delete: self.delete_pressed.emit,
            Qt.Key.Key_F2: self.notes_pressed.emit,
        }
        if event.key() in act:
            act[event.key()]()
        else:
            super().keyPressEvent(event)

    def selected_runs(self) -> list[RunSummary]:
        """All selected runs, in the order of the rows."""
        rows = sorted(index.row() for index in self.selectionModel().selectedRows())
        runs = self.runs_model.runs()
        return [runs[row] for row in rows]

    # ------------------------------------------------------------------------------ columns, order

    def columns_now(self) -> tuple[tuple[str, int], ...]:
        """The columns that are shown, and how wide each is."""
        keys = self.runs_model.column_keys()
        return tuple((key, self.columnWidth(place + 1)) for place, key in enumerate(keys))

    def remember(self) -> None:
        """Keep columns, widths and order for the next start."""
        self._memory.columns = self.columns_now()
        self._memory.order = self.order

    def _show_columns(self, columns: tuple[tuple[str, int], ...]) -> None:
        self.runs_model.set_columns([key for key, _ in columns])
        self.setColumnWidth(STAR, STAR_WIDTH)
        for place, (_, width) in enumerate(columns, start=1):
            self.setColumnWidth(place, width)
        self._fit_names()
        self._mark_order()

    def set_column_shown(self, key: str, *, on: bool) -> None:
        """Show or hide one column; it stands where the list of all columns has it."""
        widths = dict(self.columns_now())
        if on:
            widths.setdefault(key, BY_KEY[key].width)
        elif key not in NEVER_HIDDEN:
            widths.pop(key, None)
        self._show_columns(
            tuple((column.key, widths[column.key]) for column in COLUMNS if column.key in widths)
        )
        self.remember()

    def open_columns_menu(self, place: QPoint) -> QMenu:
        """Offer the columns."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        shown = self.runs_model.column_keys()
        for column in COLUMNS:
            action = menu.addAction(tr(column.title))
            action.setCheckable(True)
            action.setChecked(column.key in shown)
            action.setEnabled(column.key not in NEVER_HIDDEN)
            action.toggled.connect(lambda on, key=column.key: self.set_column_shown(key, on=on))
        menu.popup(place)
        return menu

    def _sort_by(self, section: int) -> None:
        column = self.runs_model.column(section)
        if column is not None:
            before, descending = self.order
            first = column.number or column.key in ("started", "seen")
            self.order = (column.key, not descending if before == column.key else first)
            self.remember()
            self.order_changed.emit()
        self._mark_order()

    def _mark_order(self) -> None:
        key, descending = self.order
        way = Qt.SortOrder.DescendingOrder if descending else Qt.SortOrder.AscendingOrder
        self.horizontalHeader().setSortIndicator(self.runs_model.section(key), way)
