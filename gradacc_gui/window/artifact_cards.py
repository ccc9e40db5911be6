"""One card for each thing that an evaluation made: a picture, a text, a table."""

from __future__ import annotations

from typing import Any, Final

from PySide6.QtCore import QAbstractTableModel, QEvent, Qt, Signal
from PySide6.QtGui import QBrush, QColor, QPainter
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QHBoxLayout,
    QPlainTextEdit,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.run.evaluations import number
from gradacc_gui.theme import current_theme, mix, mono_font, set_role, space
from gradacc_gui.widgets.artifact_files import Loaded, LoadedPicture, TableExcerpt, TextExcerpt, Unreadable
from gradacc_gui.widgets.desktop import Index, offer_rows
from gradacc_gui.widgets.parts import ElidedLabel, label, put
from gradacc_gui.widgets.picture_view import PictureView
from gradacc_gui.words import tr
from trainer_backend.protocol import ArtifactSaved

TINT: Final = 0.5
"""Share of the accent in the cell with the greatest value; text stays readable on it in both themes."""
ROW_HEIGHT: Final = 28
LONGEST_NAME: Final = 28
"""Characters of a file's name; its end tells most."""
MOST_LINES_SHOWN: Final = 18
MOST_ROWS_SHOWN: Final = 14


class Card(QFrame):
    """A titled box that is filled when its file has been read; until then it keeps what it showed."""

    enlarge_asked = Signal(object)
    """The `ArtifactSaved` whose picture was pressed."""

    def __init__(self, artifact: ArtifactSaved) -> None:
        super().__init__()
        set_role(self, "panel")
        self.artifact = artifact
        self.is_waiting = True
        """Whether the file is still to be read."""
        column = QVBoxLayout(self)
        column.setContentsMargins(space(3), space(3), space(3), space(3))
        column.setSpacing(space(2))
        row = QHBoxLayout()
        row.setSpacing(space(2))
        self.caption = ElidedLabel("", "title", Qt.TextElideMode.ElideRight)
        self.file = label(role="help")
        row.addWidget(self.caption, 1)
        row.addWidget(self.file)
        column.addLayout(row)
        self.note = label(tr("Reading…"), "help", wrap=True)
        column.addWidget(self.note)
        self.content: QWidget | None = None
        if artifact.kind == "image":  # takes about the room that it will need, so that little moves later
            self._content(PictureView)
            self.note.hide()
        self._show_words()

    @property
    def key(self) -> tuple[str, str]:
        """What stays the same from one evaluation to the next: kind and file name."""
        return key_of(self.artifact)

    def set_artifact(self, artifact: ArtifactSaved) -> None:
        """Stand for the same thing of another evaluation."""
        if artifact is not self.artifact:
            self.artifact = artifact
            self.is_waiting = True
            self._show_words()

    def _show_words(self) -> None:
        name = self.artifact.path.rpartition("/")[2]
        caption = self.artifact.caption or name
        self.caption.set_full_text(caption)
        self.setAccessibleName(caption)
        put(
            self.file,
            "" if name == caption else name if len(name) <= LONGEST_NAME else f"…{name[-LONGEST_NAME:]}",
        )
        self.file.setToolTip(self.artifact.path)

    def show_loaded(self, loaded: Loaded) -> None:
        """The file has been read."""
        self.is_waiting = False
        note = loaded.note if isinstance(loaded, TextExcerpt | TableExcerpt) else ""
        if isinstance(loaded, Unreadable):
            note = loaded.sentence
        set_role(self.note, "warning" if isinstance(loaded, Unreadable) else "help")
        put(self.note, note)
        self.note.setVisible(bool(note))
        match loaded:
            case LoadedPicture():
                self._content(PictureView).show_picture(loaded)
                self._content(PictureView).setAccessibleName(
                    tr("Enlarge {caption}").format(caption=self.caption.full_text())
                )
            case TextExcerpt():
                self._content(TextView).show_text(loaded.text)
            case TableExcerpt():
                self._content(GridView).show_grid(loaded)
            case Unreadable():
                self._drop_content()

    def _content(self, kind: type[Any]) -> Any:  # noqa: ANN401 - one of three widgets
        if not isinstance(self.content, kind):
            self._drop_content()
            self.content = kind()
            if isinstance(self.content, PictureView):
                self.content.clicked.connect(lambda _checked=False: self.enlarge_asked.emit(self.artifact))
            layout = self.layout()
            assert isinstance(layout, QVBoxLayout)
            layout.addWidget(self.content)
        return self.content

    def _drop_content(self) -> None:
        if self.content is not None:
            self.content.hide()
            self.content.deleteLater()
            self.content = None

    def release(self) -> None:
        """Let a decoded picture go while nobody can see it; it is read again when somebody can."""
        if isinstance(self.content, PictureView) and self.content.holds_picture:
            self.content.release()
            self.is_waiting = True


def key_of(artifact: ArtifactSaved) -> tuple[str, str]:
    """Kind and file name: evaluations of one run mostly make the same."""
    return artifact.kind, artifact.path.rpartition("/")[2]


class TextView(QPlainTextEdit):
    """A text in the fixed-width face, as high as its lines, up to a bound."""

    def __init__(self) -> None:
        super().__init__()
        set_role(self, "log")
        self.setReadOnly(True)
        self.setTabChangesFocus(True)
        self.setFont(mono_font())
        self.setTabStopDistance(4 * self.fontMetrics().horizontalAdvance(" "))
        self.setAccessibleName(tr("Text"))

    def show_text(self, text: str) -> None:
        """Show it from its beginning."""
        self.setPlainText(text or tr("(empty)"))
        lines = min(max(self.blockCount(), 4) + 2, MOST_LINES_SHOWN)  # two more: long ones are wrapped
        self.setFixedHeight(lines * self.fontMetrics().lineSpacing() + space(6))


class GridModel(QAbstractTableModel):
    """A table's cells with their tint."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._grid = TableExcerpt(header=(), rows=(), heat=(), note="")

    def set_grid(self, grid: TableExcerpt) -> None:
        """Replace the table's header and rows."""
        self.beginResetModel()
        self._grid = grid
        self.endResetModel()

    def repaint_all(self) -> None:
        """Repaint all cells in the theme's colours."""
        if self._grid.rows:
            last = self.index(len(self._grid.rows) - 1, len(self._grid.header) - 1)
            self.dataChanged.emit(self.index(0, 0), last, [Qt.ItemDataRole.BackgroundRole])

    def rowCount(self, parent: Index | None = None) -> int:
        """Rows, without the header."""
        return 0 if parent is not None and parent.isValid() else len(self._grid.rows)

    def columnCount(self, parent: Index | None = None) -> int:
        """Columns."""
        return 0 if parent is not None and parent.isValid() else len(self._grid.header)

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:  # noqa: ANN401 - Qt's own
        """The file's first line; over numbers it stands to the right as they do."""
        if orientation is not Qt.Orientation.Horizontal:
            return None
        if role == Qt.ItemDataRole.TextAlignmentRole:
            over_numbers = any(row[section] is not None for row in self._grid.heat)
            side = Qt.AlignmentFlag.AlignRight if over_numbers else Qt.AlignmentFlag.AlignLeft
            return side | Qt.AlignmentFlag.AlignVCenter
        return self._grid.header[section] if role == Qt.ItemDataRole.DisplayRole else None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401 - Qt's own
        """Text, side and tint of a cell."""
        cell = self._grid.rows[index.row()][index.column()]
        match role:
            case Qt.ItemDataRole.DisplayRole | Qt.ItemDataRole.ToolTipRole:
                return cell
            case Qt.ItemDataRole.TextAlignmentRole:
                side = Qt.AlignmentFlag.AlignLeft if number(cell) is None else Qt.AlignmentFlag.AlignRight
                return side | Qt.AlignmentFlag.AlignVCenter
            case Qt.ItemDataRole.BackgroundRole:
                share = self._grid.heat[index.row()][index.column()]
                return None if not share else QBrush(QColor(tint(share)))
            case _:
                return None


def tint(share: float) -> str:
    """The colour of a cell: the panel's with some of the accent's."""
    theme = current_theme()
    return mix(theme.panel, theme.accent, TINT * share)


class TintDelegate(QStyledItemDelegate):
    """Fills a cell with its tint; a style sheet that says anything about items leaves that out."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Tint, then what the style draws."""
        brush = index.data(Qt.ItemDataRole.BackgroundRole)
        if isinstance(brush, QBrush):
            painter.fillRect(option.rect, brush)
        super().paint(painter, option, index)


class GridView(QTableView):
    """A table as high as its rows, up to a bound."""

    def __init__(self) -> None:
        super().__init__()
        set_role(self, "heat")
        self.grid = GridModel(self)
        self.setItemDelegate(TintDelegate(self))
        self.setModel(self.grid)
        self.setAccessibleName(tr("Table"))
        offer_rows(self)
        self.setTabKeyNavigation(False)
        self.setShowGrid(False)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ContiguousSelection)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(ROW_HEIGHT)
        self.horizontalHeader().setHighlightSections(False)
        self.horizontalHeader().setResizeContentsPrecision(50)
        self.horizontalHeader().setMinimumSectionSize(56)
        self.horizontalHeader().setMaximumSectionSize(240)

    def show_grid(self, grid: TableExcerpt) -> None:
        """Show a table's cells, tinted by their values."""
        self.grid.set_grid(grid)
        self.resizeColumnsToContents()
        rows = min(len(grid.rows), MOST_ROWS_SHOWN)
        bar = self.horizontalScrollBar().sizeHint().height()
        self.setFixedHeight(rows * ROW_HEIGHT + self.horizontalHeader().sizeHint().height() + bar + space(1))

    def changeEvent(self, event: QEvent) -> None:
        """Tint anew in a new theme."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange and hasattr(self, "grid"):
            self.grid.repaint_all()
