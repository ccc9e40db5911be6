"""The decision log: what changed, when, by whom and why; newest first, worded from facts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from PySide6.QtCore import QAbstractListModel, QModelIndex, QRect, QSize, Qt
from PySide6.QtGui import QColor, QFont, QPainter
from PySide6.QtWidgets import (
    QListView,
    QSizePolicy,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
)

from gradacc_gui import words
from gradacc_gui.run.numbers import day_and_time, time_of_day
from gradacc_gui.theme import current_theme, set_role, space
from gradacc_gui.widgets.desktop import Index, offer_rows
from gradacc_gui.widgets.parts import Panel, label
from gradacc_gui.words import LogLine, tr
from trainer_backend.protocol import FACTS, CheckpointSaved, Record

MOST_LINES: Final = 1000
"""Older lines leave the window (the journal keeps them); a list of any length would grow with the run."""
_TONES: Final = {"plain": "text", "accent": "accent", "good": "ok", "warning": "warning", "bad": "bad"}


class Entry(msgspec.Struct, frozen=True):
    """A line with its instant."""

    at: float
    line: LogLine

    @property
    def text(self) -> str:
        """The line with who asked."""
        return f"{self.line.text} ({self.line.by})" if self.line.by else self.line.text


class DecisionModel(QAbstractListModel):
    """The decision log's lines, newest first, of which a bounded number is kept."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[Entry] = []

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own default
        """Lines kept."""
        return 0 if parent.isValid() else len(self._entries)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401 - Qt's API
        """Text, tool-tip, and the entry itself for the delegate."""
        if not index.isValid():
            return None
        entry = self._entries[index.row()]
        match role:
            case Qt.ItemDataRole.DisplayRole | Qt.ItemDataRole.AccessibleTextRole:
                return f"{time_of_day(entry.at)} {entry.text}"
            case Qt.ItemDataRole.ToolTipRole:
                return "\n".join(filter(None, (day_and_time(entry.at), entry.text, entry.line.detail)))
            case Qt.ItemDataRole.UserRole:
                return entry
            case _:
                return None

    def add(self, entries: Iterable[Entry]) -> None:
        """Put newer entries (given oldest first) on top."""
        new = list(entries)[-MOST_LINES:][::-1]
        if not new:
            return
        self.beginInsertRows(QModelIndex(), 0, len(new) - 1)
        self._entries[:0] = new
        self.endInsertRows()
        if len(self._entries) > MOST_LINES:
            self.beginRemoveRows(QModelIndex(), MOST_LINES, len(self._entries) - 1)
            del self._entries[MOST_LINES:]
            self.endRemoveRows()

    def clear(self) -> None:
        """Clear what belongs to the run shown so far; another one follows."""
        self.beginResetModel()
        self._entries.clear()
        self.endResetModel()

    def entries(self) -> list[Entry]:
        """Newest first."""
        return list(self._entries)


class _LineDelegate(QStyledItemDelegate):
    """Time muted, text in its tone, wrapped."""

    TIME_WIDTH: Final = 62

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        entry: Entry = index.data(Qt.ItemDataRole.UserRole)
        view = option.widget
        width = (view.viewport().width() if isinstance(view, QListView) else 260) - self.TIME_WIDTH - 4
        box = option.fontMetrics.boundingRect(
            QRect(0, 0, max(width, 60), 10_000), int(Qt.TextFlag.TextWordWrap), entry.text
        )
        return QSize(width + self.TIME_WIDTH, box.height() + 5)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        entry: Entry = index.data(Qt.ItemDataRole.UserRole)
        theme = current_theme()
        painter.save()
        if option.state & QStyle.StateFlag.State_Selected:
            painter.fillRect(option.rect, QColor(theme.raised))
        rect = option.rect.adjusted(2, 2, -2, -2)
        top_left = int(Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft)
        painter.setFont(option.font)
        painter.setPen(QColor(theme.muted))
        painter.drawText(rect, top_left, time_of_day(entry.at))
        painter.setPen(QColor(getattr(theme, _TONES[entry.line.tone])))
        if entry.line.tone == "accent":
            font = QFont(option.font)
            font.setWeight(QFont.Weight.DemiBold)
            painter.setFont(font)
        painter.drawText(
            rect.adjusted(self.TIME_WIDTH, 0, 0, 0), top_left | int(Qt.TextFlag.TextWordWrap), entry.text
        )
        painter.restore()


class DecisionLog(Panel):
    """The panel with the list."""

    def __init__(self) -> None:
        super().__init__(tr("Decision log"))
        self._saved: CheckpointSaved | None = None
        self.model = DecisionModel()
        self.view = QListView()
        set_role(self.view, "bare")
        self.view.setModel(self.model)
        self.view.setItemDelegate(_LineDelegate(self.view))
        self.view.setWordWrap(True)
        self.view.setResizeMode(QListView.ResizeMode.Adjust)
        self.view.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        self.view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.view.setSelectionMode(QListView.SelectionMode.ExtendedSelection)
        offer_rows(self.view)
        self.view.setAccessibleName(tr("Decision log, newest first"))
        self.view.setMinimumHeight(96)
        self.view.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.empty = label(tr("Changes to this run are listed here, with when and why."), "help", wrap=True)
        self.body.addWidget(self.empty, 0, Qt.AlignmentFlag.AlignTop)
        self.body.addWidget(self.view, 1)
        outer = self.layout()
        assert isinstance(outer, QVBoxLayout)
        outer.setStretch(1, 1)
        outer.setContentsMargins(space(3), space(3), space(2), space(2))
        self.view.hide()

    def take(self, records: Iterable[Record]) -> None:
        """Word the facts among `records`."""
        told = [record for record in records if is_fact(record) and not self._is_told(record)]
        lines = [(record.at, words.line(record.event)) for record in told]  # type: ignore[arg-type]
        self.add([Entry(at, line) for at, line in lines if line is not None])

    def _is_told(self, record: Record) -> bool:
        """Whether a checkpoint stands in the log already: saved by the clock, it also answers who asks."""
        if not isinstance(record.event, CheckpointSaved):
            return False
        saved = msgspec.structs.replace(record.event, command_id=None)
        is_told, self._saved = saved == self._saved, saved
        return is_told

    def add(self, entries: list[Entry]) -> None:
        """Put entries on top."""
        if entries:
            self.model.add(entries)
            self.empty.hide()
            self.view.show()

    def forget(self) -> None:
        """Clear what belongs to the run shown so far; another one follows."""
        self.model.clear()
        self.view.hide()
        self.empty.show()


def is_fact(record: Record) -> bool:
    """Whether the record's event is a fact (few, worded) rather than a measurement."""
    return type(record.event).__name__ in FACTS
