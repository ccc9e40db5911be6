"""The list of runs as a table's data, and how a state is painted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QSize, Qt
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QStyledItemDelegate, QStyleOptionViewItem

from gradacc_gui import words
from gradacc_gui.run.header_state import STATE_WORDS
from gradacc_gui.run.numbers import DASH, count, day_and_time, real
from gradacc_gui.session.runs import RunSummary
from gradacc_gui.theme import current_theme
from gradacc_gui.widgets.desktop import Index
from gradacc_gui.words import tr
from trainer_backend.run_facts import RunState

COLUMNS: Final = ("State", "Name", "Step", "Samples", "Loss", "Started", "Last event", "Id")
_RIGHT: Final = frozenset((2, 3, 4))


class RunsModel(QAbstractTableModel):
    """The list, newest first."""

    def __init__(self) -> None:
        super().__init__()
        self._runs: list[RunSummary] = []

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own default
        """Runs."""
        return 0 if parent.isValid() else len(self._runs)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own default
        """How many columns `COLUMNS` names."""
        return 0 if parent.isValid() else len(COLUMNS)

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:  # noqa: ANN401
        """Column titles."""
        if orientation != Qt.Orientation.Horizontal:
            return None
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _alignment(section)
        return tr(COLUMNS[section]) if role == Qt.ItemDataRole.DisplayRole else None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401 - Qt's API
        """Texts; why a run ended as tool-tip; the summary itself."""
        if not index.isValid():
            return None
        summary = self._runs[index.row()]
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return _texts(summary)[index.column()]
            case Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(index.column())
            case Qt.ItemDataRole.ToolTipRole:
                return "\n".join(filter(None, (why(summary), str(summary.run.path))))
            case Qt.ItemDataRole.UserRole:
                return summary
            case _:
                return None

    def set_runs(self, runs: Sequence[RunSummary]) -> None:
        """Show another list; rows that stay keep their place, so that a selection survives."""
        if list(runs) == self._runs:
            return
        if [summary.run for summary in runs] == [summary.run for summary in self._runs]:
            self._runs = list(runs)
            self.dataChanged.emit(self.index(0, 0), self.index(len(runs) - 1, len(COLUMNS) - 1))
            return
        self.beginResetModel()
        self._runs = list(runs)
        self.endResetModel()

    def runs(self) -> list[RunSummary]:
        """The runs in the order of the rows."""
        return list(self._runs)


def _texts(summary: RunSummary) -> tuple[str, ...]:
    started, seen = summary.started_at, summary.seen_at
    return (
        tr(STATE_WORDS[summary.state][0]),
        f"{summary.name}  ({summary.reason.partition(',')[0]})"
        if summary.state is RunState.WAITING
        else summary.name,
        count(summary.step) if summary.step else DASH,
        count(summary.samples_seen) if summary.samples_seen else DASH,
        real(summary.loss),
        day_and_time(started) if started else DASH,
        day_and_time(seen) if seen else DASH,
        summary.run.id,
    )


def _alignment(column: int) -> int:
    side = Qt.AlignmentFlag.AlignRight if column in _RIGHT else Qt.AlignmentFlag.AlignLeft
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


class StateDelegate(QStyledItemDelegate):
    """A dot in the state's colour before its word."""

    def initStyleOption(self, option: QStyleOptionViewItem, index: Index) -> None:
        """All but the word, which is painted in its colour."""
        super().initStyleOption(option, index)
        option.text = ""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """What any item has, then the dot and the word."""
        summary: RunSummary = index.data(Qt.ItemDataRole.UserRole)
        word, token = STATE_WORDS[summary.state]
        super().paint(painter, option, index)
        colour = QColor(getattr(current_theme(), token))
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        rect = option.rect.adjusted(0, 0, 0, -3)  # as the style places the other columns' words
        painter.drawEllipse(rect.x() + 10, rect.center().y() - 3, 8, 8)
        painter.setPen(colour)
        flags = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft)
        painter.drawText(rect.adjusted(26, 0, 0, 0), flags, tr(word))
        painter.restore()

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        """Room for the dot."""
        hint = super().sizeHint(option, index)
        return QSize(hint.width() + 28, hint.height())
