"""The list of runs as a table's data, and how its cells are painted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from PySide6.QtCore import QAbstractTableModel, QEvent, QModelIndex, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QMouseEvent, QPainter, QPen, QPolygonF
from PySide6.QtWidgets import QStyledItemDelegate, QStyleOptionViewItem

from gradacc_gui import words
from gradacc_gui.run.header_state import STATE_WORDS
from gradacc_gui.run.run_columns import BY_KEY, SHOWN_FIRST, RunColumn
from gradacc_gui.session.runs import RunSummary
from gradacc_gui.theme import current_theme
from gradacc_gui.widgets.desktop import Index
from gradacc_gui.words import tr
from trainer_backend.run_facts import RunState

STAR: Final = 0
"""The first column: a star, drawn, not written."""
MOST_TAGS: Final = 4
LONGEST_TAG_PX: Final = 140


class RunsModel(QAbstractTableModel):
    """Runs in the order in which they are given, in the columns that are chosen."""

    def __init__(self) -> None:
        super().__init__()
        self._runs: list[RunSummary] = []
        self._columns: tuple[RunColumn, ...] = tuple(BY_KEY[key] for key in SHOWN_FIRST)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own default
        """Runs."""
        return 0 if parent.isValid() else len(self._runs)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own default
        """The star, and what is chosen."""
        return 0 if parent.isValid() else 1 + len(self._columns)

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:  # noqa: ANN401
        """Column titles."""
        if orientation != Qt.Orientation.Horizontal:
            return None
        column = self.column(section)
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _alignment(column)
        if column is None:
            return tr("Starred") if role == Qt.ItemDataRole.ToolTipRole else None
        return tr(column.title) if role == Qt.ItemDataRole.DisplayRole else None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401 - Qt's API
        """Texts; why a run ended as tool-tip; the summary itself."""
        if not index.isValid():
            return None
        summary, column = self._runs[index.row()], self.column(index.column())
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return column.text(summary) if column is not None else ""
            case Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(column)
            case Qt.ItemDataRole.ToolTipRole:
                return _tool_tip(summary)
            case Qt.ItemDataRole.AccessibleTextRole if column is None:
                return tr("starred") if summary.about.starred else tr("not starred")
            case Qt.ItemDataRole.UserRole:
                return summary
            case _:
                return None

    def column(self, section: int) -> RunColumn | None:
        """What stands in a column; None for the star."""
        return None if section == STAR or section > len(self._columns) else self._columns[section - 1]

    def section(self, key: str) -> int:
        """Where a column stands; -1 where it is not shown."""
        keys = self.column_keys()
        return keys.index(key) + 1 if key in keys else -1

    def column_keys(self) -> tuple[str, ...]:
        """The columns that are shown, without the star."""
        return tuple(column.key for column in self._columns)

    def set_columns(self, keys: Sequence[str]) -> None:
        """Show these columns."""
        if tuple(keys) == self.column_keys():
            return
        self.beginResetModel()
        self._columns = tuple(BY_KEY[key] for key in keys)
        self.endResetModel()

    def set_runs(self, runs: Sequence[RunSummary]) -> None:
        """Show another list; rows that stay keep their place, so that a selection survives."""
        if list(runs) == self._runs:
            return
        if [summary.run for summary in runs] == [summary.run for summary in self._runs]:
            self._runs = list(runs)
            self.dataChanged.emit(self.index(0, 0), self.index(len(runs) - 1, len(self._columns)))
            return
        self.beginResetModel()
        self._runs = list(runs)
        self.endResetModel()

    def runs(self) -> list[RunSummary]:
        """The runs in the order of the rows."""
        return list(self._runs)


def _tool_tip(summary: RunSummary) -> str:
    about = summary.about
    parts = (why(summary), ", ".join(about.tags), about.note, str(summary.run.path))
    return "\n".join(part[:1000] for part in parts if part)


def _alignment(column: RunColumn | None) -> int:
    right = column is not None and column.number
    side = Qt.AlignmentFlag.AlignRight if right else Qt.AlignmentFlag.AlignLeft
    return int(side | Qt.AlignmentFlag.AlignVCenter)


def why(summary: RunSummary) -> str:
    """Why a run is no longer live, in words."""
    match summary.state:
        case RunState.FINISHED | RunState.STOPPED:
            return words.end_reason(summary.reason)
        case RunState.INTERRUPTED:
            return tr("Interrupted at step {step:,}: the trainer stopped without reporting why.").format(
                step=summary.step
            )
        case _:
            return summary.reason


class RunsDelegate(QStyledItemDelegate):
    """Paints the cells: a star, a dot before a state, tags behind a name."""

    def __init__(self, parent: Any, star_clicked: Callable[[RunSummary], None]) -> None:  # noqa: ANN401 - a view
        super().__init__(parent)
        self._star_clicked = star_clicked

    def initStyleOption(self, option: QStyleOptionViewItem, index: Index) -> None:
        """All but the words of cells that are painted here."""
        super().initStyleOption(option, index)
        if _painted(index) is not None:
            option.text = ""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """What any item has, then what this cell has besides."""
        super().paint(painter, option, index)
        draw = _painted(index)
        if draw is None:
            return
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        # As the style places the other columns' words.
        draw(painter, option.rect.adjusted(0, 0, 0, -3), index.data(Qt.ItemDataRole.UserRole), option.font)
        painter.restore()

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        """Room for the dot."""
        hint = super().sizeHint(option, index)
        return QSize(hint.width() + 28, hint.height())

    def editorEvent(
        self,
        event: QEvent,
        model: Any,  # noqa: ANN401 - Qt's API
        option: QStyleOptionViewItem,
        index: Index,
    ) -> bool:
        """A click on the star sets or removes it."""
        if index.column() == STAR and isinstance(event, QMouseEvent):
            if event.type() == QEvent.Type.MouseButtonRelease:
                self._star_clicked(index.data(Qt.ItemDataRole.UserRole))
            return True
        return super().editorEvent(event, model, option, index)


Draw = Callable[[QPainter, QRect, RunSummary, QFont], None]


def _painted(index: Index) -> Draw | None:
    model = index.model()
    assert isinstance(model, RunsModel)
    column = model.column(index.column())
    if column is None:
        return _draw_star
    return {"state": _draw_state, "name": _draw_name}.get(column.key)


def _draw_state(painter: QPainter, rect: QRect, summary: RunSummary, _font: QFont) -> None:
    word, token = STATE_WORDS[summary.state]
    colour = QColor(getattr(current_theme(), token))
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(colour)
    painter.drawEllipse(rect.x() + 8, rect.center().y() - 3, 8, 8)
    painter.setPen(colour)
    painter.drawText(rect.adjusted(24, 0, 0, 0), _LEFT, tr(word))


_LEFT: Final = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft)
_STAR_POINTS: Final = (
    (0.0, -1.0), (0.29, -0.4), (0.95, -0.31), (0.47, 0.15), (0.59, 0.81),
    (0.0, 0.5), (-0.59, 0.81), (-0.47, 0.15), (-0.95, -0.31), (-0.29, -0.4),
)  # fmt: skip
"""Corners of a five-pointed star in a circle of radius 1."""


def _draw_star(painter: QPainter, rect: QRect, summary: RunSummary, _font: QFont) -> None:
    theme, middle, radius = current_theme(), rect.center(), 7.0
    shape = QPolygonF(
        [QPointF(middle.x() + x * radius, middle.y() + 1 + y * radius) for x, y in _STAR_POINTS]
    )
    painter.setPen(QPen(QColor(theme.warning if summary.about.starred else theme.muted), 1.2))
    painter.setBrush(QColor(theme.warning) if summary.about.starred else Qt.BrushStyle.NoBrush)
    painter.drawPolygon(shape)


def _draw_name(painter: QPainter, rect: QRect, summary: RunSummary, font: QFont) -> None:
    """The name, then as many tags as there is room for, then the note or what it waits for."""
    theme = current_theme()
    bold, small = QFont(font), QFont(font)
    bold.setWeight(QFont.Weight.DemiBold)
    small.setPixelSize(12)
    room = rect.adjusted(8, 0, -6, 0)
    painter.setFont(bold)
    painter.setPen(QColor(theme.text))
    metrics = painter.fontMetrics()
    name = metrics.elidedText(
        summary.name.replace("\n", " ")[:400], Qt.TextElideMode.ElideMiddle, room.width()
    )
    painter.drawText(room, _LEFT, name)
    x = room.x() + metrics.horizontalAdvance(name) + 8
    painter.setFont(small)
    for tag in summary.about.tags[:MOST_TAGS]:
        x = _draw_tag(painter, tag, x, room)
    painter.setPen(QColor(theme.muted))
    waits = summary.reason if summary.state is RunState.WAITING else ""
    rest = (waits or " ".join(summary.about.note[:400].split())).strip()
    if rest and room.right() - x > 30:
        cut = painter.fontMetrics().elidedText(rest, Qt.TextElideMode.ElideRight, room.right() - x)
        painter.drawText(QRect(x, room.y(), room.right() - x, room.height()), _LEFT, cut)


def _draw_tag(painter: QPainter, tag: str, x: int, room: QRect) -> int:
    """One tag in a box; gives where the next may begin."""
    theme, metrics = current_theme(), painter.fontMetrics()
    text = metrics.elidedText(tag[:200], Qt.TextElideMode.ElideRight, LONGEST_TAG_PX)
    width = metrics.horizontalAdvance(text) + 12
    if x + width > room.right():
        return x
    box = QRectF(x, room.center().y() - 9, width, 19)
    painter.setPen(QColor(theme.line))
    painter.setBrush(QColor(theme.raised))
    painter.drawRoundedRect(box, 4, 4)
    painter.setPen(QColor(theme.text))
    painter.drawText(box, int(Qt.AlignmentFlag.AlignCenter), text)
    return x + width + 6
