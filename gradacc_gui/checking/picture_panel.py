"""The first optimizer step as pictures, micro-batch by micro-batch."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QScrollArea, QSlider, QVBoxLayout

from gradacc_gui.checking.picture_tile import PictureTile, TileGrid, TileGroup
from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import Panel, Segments, clear_widget, label, rule
from gradacc_gui.words import tr
from trainer_backend.preflight.findings import FirstWindow, PictureRow

MOST_TILES: Final = 96


class PicturePanel(Panel):
    """Tiles with their masks; how strong the masks are drawn is chosen below."""

    def __init__(self) -> None:
        super().__init__(tr("First optimizer step"))
        self.tiles: list[PictureTile] = []
        self.mode = Segments(
            [("both", tr("Image and mask")), ("picture", tr("Image")), ("mask", tr("Mask"))],
            tr("What is shown"),
        )
        self.mode.chosen.connect(lambda _key: self._look())
        self.head.addWidget(self.mode)
        self.area = QScrollArea()
        self.area.setWidgetResizable(True)
        self.area.setObjectName("clear")
        self.area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.body.addWidget(self.area, 1)
        self.body.addWidget(rule())
        self.foot = clear_widget()
        row = QHBoxLayout(self.foot)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(space(2))
        row.addStretch(1)
        row.addWidget(label(tr("Mask opacity"), "help"))
        self.opacity = QSlider(Qt.Orientation.Horizontal)
        self.opacity.setRange(5, 100)
        self.opacity.setValue(45)
        self.opacity.setFixedWidth(160)
        self.opacity.setAccessibleName(tr("Mask opacity"))
        self.percent = label("45 %", "title")
        self.opacity.valueChanged.connect(self._look)
        row.addWidget(self.opacity)
        row.addWidget(self.percent)
        self.body.addWidget(self.foot)

    def show_window(self, window: FirstWindow, undecided: frozenset[int]) -> None:
        """The micro-batches of another first step."""
        self.tiles = []
        self.hint.setText(
            tr("{steps:,} micro-batches of {size:,}").format(steps=window.steps, size=window.micro_batch_size)
        )
        if undecided:
            self.title.setText(tr("Pictures whose masks need a decision"))
            self.hint.setText("")
        else:
            self.title.setText(tr("First optimizer step"))
        groups: list[TileGroup] = []
        holder = clear_widget()
        column = QVBoxLayout(holder)
        column.setContentsMargins(0, 0, space(2), 0)
        column.setSpacing(space(2))
        for number, batch in enumerate(window.micro_batches, 1):
            rows = [row for row in batch.rows if isinstance(row, PictureRow)]
            if not rows or len(self.tiles) >= MOST_TILES:
                continue
            tiles = [PictureTile(row, undecided) for row in rows]
            self.tiles += tiles
            words = tr("Micro-batch {number:,}").format(number=number)
            groups.append(TileGroup(title=words, more=_share(batch.weights, len(rows)), tiles=tiles))
        if undecided:  # none can be put together yet
            groups = [TileGroup(title="", more="", tiles=self.tiles)]
        column.addWidget(TileGrid(groups))
        column.addStretch(1)
        self.area.setWidget(holder)
        has_masks = any(tile.row.mask for tile in self.tiles)
        self.mode.setVisible(has_masks)
        self.foot.setVisible(has_masks)
        self._look()

    def _look(self) -> None:
        self.percent.setText(f"{self.opacity.value()} %")
        for tile in self.tiles:
            tile.set_look(self.mode.choice(), self.opacity.value() / 100)


def _share(weights: dict[str, float], count: int) -> str:
    pictures = tr("1 picture") if count == 1 else tr("{count:,} pictures").format(count=count)
    if not weights:
        return pictures
    return tr("{weight:,.10g} of D").format(weight=next(iter(weights.values())))
