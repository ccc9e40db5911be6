"""One picture as the model will see it, with its mask over it and a strip of the mask's shares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from PySide6.QtCore import QPoint, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QImage, QPainter, QPaintEvent, QPen, QPixmap, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QWidget

from gradacc_gui.theme import application_font, current_theme, mix, space
from gradacc_gui.widgets.parts import ElidedLabel, label
from gradacc_gui.words import tr
from trainer_backend.preflight.findings import PictureRow

SMALLEST_SIDE: Final = 118
LARGEST_SIDE: Final = 240
HEADING: Final = 22
STRIP: Final = 5
CAPTION: Final = 18
STRIPES: Final = "#E69F00"
"""Over pictures, whose colours know no theme."""
UNLEARNT: Final = 255
"""The grey of a pixel without a loss in a mask's PNG."""


def class_colour(value: int) -> str:
    """Of a class over a picture, or beside its share: 0 is the background."""
    theme = current_theme()
    if value == 0:
        return mix(theme.muted, theme.panel, 0.35)
    return theme.series[(0, 3, 2, 1, 4)[(value - 1) % 5]]


def hatched(colour: str) -> QBrush:
    """Diagonal stripes: what is not decided, or has no loss."""
    pattern = QPixmap(8, 8)
    pattern.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pattern)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(QColor(colour), 2.4))
    for offset in (-8, 0, 8):
        painter.drawLine(offset, 8, offset + 8, 0)
    painter.end()
    return QBrush(pattern)


class PictureTile(QWidget):
    """Draws picture, mask or both; its file's name and its label stand below."""

    def __init__(self, row: PictureRow, undecided: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self._row, self._undecided = row, undecided
        self._picture = QImage(row.picture) if row.picture else QImage()
        self._mask = QImage(row.mask) if row.mask else QImage()
        self._overlay, self._stripes = QImage(), QImage()
        self._drawn_in = ""
        self._mode, self._opacity = "both", 0.45
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.setToolTip(self._words())
        self.setAccessibleName(self._words())

    @property
    def row(self) -> PictureRow:
        """What is shown."""
        return self._row

    def _words(self) -> str:
        size = " × ".join(map(str, self._row.shape))
        mean = ", ".join(f"{value:.3g}" for value in self._row.mean)
        said = [self._row.source, tr("{size}; mean {mean}").format(size=size, mean=mean)]
        if self._row.label:
            said.append(tr("class {name}").format(name=self._row.label))
        said += [
            tr("ignored: {share:.1%}").format(share=share)
            if name == "ignored"
            else tr("value {name}: {share:.1%}").format(name=name, share=share)
            for name, share in self._row.mask_shares.items()
        ]
        return "\n".join(said)

    def set_look(self, mode: str, opacity: float) -> None:
        """What is drawn ("both", "picture" or "mask"), and how strong the mask is."""
        self._mode, self._opacity = mode, opacity
        self.update()

    def set_side(self, side: int) -> None:
        """As wide as the grid's column."""
        self.setFixedSize(side, side + STRIP + CAPTION + space(1))

    # ------------------------------------------------------------------------------ drawing

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Picture, overlay, strip, caption."""
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
        frame = QRect(0, 0, self.width(), self.width())
        place = _fitted(self._picture.size(), frame)
        painter.fillRect(frame, QColor(mix(theme.background, theme.panel, 0.4)))
        if self._mode != "mask" and not self._picture.isNull():
            painter.drawImage(place, self._picture)
        if self._mode != "picture" and not self._mask.isNull():
            self._draw_overlay(painter, place)
        painter.setPen(QPen(QColor(theme.line)))
        painter.drawRect(frame.adjusted(0, 0, -1, -1))
        self._draw_strip(painter, QRectF(0, frame.bottom() + 3, self.width(), STRIP))
        self._draw_caption(painter, QRect(0, frame.bottom() + 4 + STRIP, self.width(), CAPTION))
        painter.end()

    def _draw_overlay(self, painter: QPainter, place: QRect) -> None:
        if self._drawn_in != current_theme().name:
            self._overlay, self._stripes = self._coloured()
            self._drawn_in = current_theme().name
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, False)
        painter.setOpacity(1.0 if self._mode == "mask" else self._opacity)
        painter.drawImage(place, self._overlay)
        painter.setOpacity(1.0 if self._mode == "mask" else min(1.0, 2 * self._opacity))
        painter.drawImage(place, self._stripes)
        painter.setOpacity(1.0)

    def _coloured(self) -> tuple[QImage, QImage]:
        """The mask in its classes' colours, and stripes where it is undecided or ignored."""
        indexed = self._mask.convertToFormat(QImage.Format.Format_Grayscale8)
        indexed.reinterpretAsFormat(QImage.Format.Format_Indexed8)
        apart = self._undecided | {UNLEARNT}
        clear = QColor(0, 0, 0, 0).rgba()
        indexed.setColorTable(
            [
                clear if value == 0 or value in apart else QColor(class_colour(value)).rgba()
                for value in range(256)
            ]
        )
        overlay = indexed.convertToFormat(QImage.Format.Format_ARGB32_Premultiplied)
        indexed.setColorTable([QColor(0, 0, 0).rgba() if value in apart else clear for value in range(256)])
        where = indexed.convertToFormat(QImage.Format.Format_ARGB32_Premultiplied)
        hatch = QImage(overlay.size(), QImage.Format.Format_ARGB32_Premultiplied)
        hatch.fill(QColor(0, 0, 0, 90))
        painter = QPainter(hatch)
        painter.fillRect(hatch.rect(), hatched(STRIPES))
        painter.setCompositionMode(QPainter.CompositionMode.CompositionMode_DestinationIn)
        painter.drawImage(QPoint(0, 0), where)
        painter.end()
        return overlay, hatch

    def _draw_strip(self, painter: QPainter, room: QRectF) -> None:
        begin = room.left()
        for name, share in self._row.mask_shares.items():
            width = room.width() * share
            is_apart = name == "ignored" or int(name) in self._undecided
            colour = current_theme().warning if is_apart else class_colour(int(name))
            painter.fillRect(QRectF(begin, room.top(), width, room.height()), QColor(colour))
            begin += width

    def _draw_caption(self, painter: QPainter, room: QRect) -> None:
        theme = current_theme()
        painter.setFont(application_font(12))
        metrics = painter.fontMetrics()
        tag = metrics.elidedText(self._row.label, Qt.TextElideMode.ElideRight, room.width() * 2 // 3)
        taken = metrics.horizontalAdvance(tag) + (space(2) if tag else 0)
        name = metrics.elidedText(
            Path(self._row.source).stem, Qt.TextElideMode.ElideMiddle, max(0, room.width() - taken)
        )
        painter.setPen(QColor(theme.accent))
        painter.drawText(room, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, name)
        painter.setPen(QColor(theme.muted))
        painter.drawText(room, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, tag)


def _fitted(size: QSize, frame: QRect) -> QRect:
    """The whole picture in the middle of its frame."""
    scaled = size.scaled(frame.size(), Qt.AspectRatioMode.KeepAspectRatio)
    left, top = (frame.width() - scaled.width()) // 2, (frame.height() - scaled.height()) // 2
    return QRect(QPoint(frame.left() + left, frame.top() + top), scaled)


class TileGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The tiles of one micro-batch, and what stands over them."""

    title: str
    more: str
    tiles: list[PictureTile]


class Place(msgspec.Struct, frozen=True):
    """Where a group begins in the grid, and how many tiles it has abreast."""

    row: int
    column: int
    abreast: int


class TileGrid(QWidget):
    """Groups of tiles one behind another, as many abreast as fit; each group under its heading."""

    def __init__(self, groups: Sequence[TileGroup]) -> None:
        super().__init__()
        self.setObjectName("clear")
        self._groups = groups
        self._heads: list[QWidget] = []
        for group in groups:
            head = QWidget(self)
            head.setObjectName("clear")
            row = QHBoxLayout(head)
            row.setContentsMargins(0, 0, 0, 0)
            row.setSpacing(space(2))
            row.addWidget(label(group.title, "title"))
            row.addWidget(ElidedLabel(group.more, "help", Qt.TextElideMode.ElideRight), 1)
            self._heads.append(head)
            for tile in group.tiles:
                tile.setParent(self)
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def _sides(self, width: int) -> tuple[int, int]:
        """How many tiles abreast, and the side of each."""
        gap = space(2)
        columns = max(1, (width + gap) // (SMALLEST_SIDE + gap))
        largest = max((len(group.tiles) for group in self._groups), default=1)
        columns = min(columns, max(largest, sum(len(group.tiles) for group in self._groups)))
        return columns, min(LARGEST_SIDE, (width - gap * (columns - 1)) // columns)

    def _places(self, columns: int) -> tuple[list[Place], int]:
        """Where each group begins, and how many rows of tiles there are."""
        places = []
        row = column = 0
        for group in self._groups:
            count = len(group.tiles)
            if column and column + count > columns:
                row, column = row + 1, 0
            places.append(Place(row, column, min(count, columns)))
            if count >= columns:
                row, column = row + -(-count // columns), 0
            else:
                column += count
        return places, row + (column > 0)

    def _tops(self, columns: int, side: int) -> list[int]:
        """Where the rows of tiles begin, and the end of the last; headings stand where groups begin."""
        places, rows = self._places(columns)
        headed = {place.row for place in places}
        tops = [0]
        for row in range(rows):
            tops.append(tops[-1] + HEADING * (row in headed) + side + STRIP + CAPTION + space(2))
        return tops

    def hasHeightForWidth(self) -> bool:
        """Rows are wrapped."""
        return True

    def heightForWidth(self, width: int) -> int:
        """As many rows as the tiles need."""
        return self._tops(*self._sides(width))[-1]

    def sizeHint(self) -> QSize:
        """For the width it has."""
        width = max(self.width(), SMALLEST_SIDE)
        return QSize(width, self.heightForWidth(width))

    def minimumSizeHint(self) -> QSize:
        """One tile."""
        return QSize(SMALLEST_SIDE, SMALLEST_SIDE)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Put every tile in its place."""
        super().resizeEvent(event)
        columns, side = self._sides(self.width())
        step, tops = side + space(2), self._tops(columns, side)
        self.setFixedHeight(tops[-1])  # a layout's own guess is that of another width
        for group, head, place in zip(self._groups, self._heads, self._places(columns)[0], strict=True):
            top = tops[place.row]
            head.setGeometry(place.column * step, top, place.abreast * step - space(2), HEADING)
            for number, tile in enumerate(group.tiles):
                row, column = divmod(number, place.abreast)
                tile.set_side(side)
                below = top + HEADING if row == 0 else tops[place.row + row]
                tile.move((place.column + column) * step, below)
