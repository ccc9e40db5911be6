"""A picture scaled to fit, which opens large when pressed."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QColor, QImage, QPainter, QPaintEvent, QPixmap, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QDialog,
    QHBoxLayout,
    QLabel,
    QScrollArea,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.theme import current_theme, set_role, space
from gradacc_gui.widgets.artifact_files import LoadedPicture
from gradacc_gui.widgets.parts import ElidedLabel, button, label, put
from gradacc_gui.words import tr

TALLEST: Final = 320
"""Of a picture among others, in logical pixels."""
MOST_ENLARGED: Final = 6
"""A small picture is drawn so many times as large at most."""
CRISP_BELOW: Final = 128
"""Pixels; a smaller picture is enlarged without smoothing, as its pixels are what is looked at."""


def fitted(picture: QSize, room: QSize) -> QSize:
    """The size at which a picture is drawn in `room`."""
    size = picture.scaled(room, Qt.AspectRatioMode.KeepAspectRatio)
    return size if size.width() <= picture.width() * MOST_ENLARGED else picture * MOST_ENLARGED


class PictureView(QAbstractButton):
    """As high as its picture at the width it has."""

    def __init__(self) -> None:
        super().__init__()
        self._image: QImage | None = None
        self._whole = QSize(480, 320)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setEnabled(False)
        self.setFixedHeight(120)

    @property
    def holds_picture(self) -> bool:
        """Whether a decoded picture is in memory."""
        return self._image is not None

    def show_picture(self, picture: LoadedPicture) -> None:
        """Show another picture, scaled to fit."""
        self._image = picture.image
        self._whole = QSize(picture.width, picture.height)
        self.setEnabled(True)
        self._take_height()
        self.update()

    def release(self) -> None:
        """Let the decoded picture go; the room that it took stays."""
        self._image = None
        self.setEnabled(False)
        self.update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """A new width may need another height."""
        super().resizeEvent(event)
        self._take_height()

    def _take_height(self) -> None:
        height = fitted(self._whole, QSize(max(self.width(), 1), TALLEST)).height()
        self.setFixedHeight(max(height, 24))

    def paintEvent(self, _event: QPaintEvent) -> None:
        """The picture at the left, and a frame when it has the focus."""
        if self._image is None:
            return
        painter = QPainter(self)
        size = fitted(self._whole, self.size()).expandedTo(QSize(1, 1))
        smooth = max(self._whole.width(), self._whole.height()) >= CRISP_BELOW
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, smooth)
        place = QRect(0, 0, size.width(), size.height())
        painter.drawImage(place, self._image)
        if self.hasFocus() or self.underMouse():
            painter.setPen(QColor(current_theme().accent))
            painter.drawRect(place.adjusted(0, 0, -1, -1))
        painter.end()


class Enlarged(QDialog):
    """One picture, as large as the window allows, or pixel by pixel with scroll bars."""

    def __init__(self, caption: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(caption or tr("Picture"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._picture: LoadedPicture | None = None
        column = QVBoxLayout(self)
        column.setContentsMargins(space(3), space(3), space(3), space(3))
        row = QHBoxLayout()
        self.caption = ElidedLabel(caption, "title")
        self.note = label(role="help")
        self.actual = button(tr("Actual size"))
        self.actual.setCheckable(True)
        set_role(self.actual, "quiet")
        self.actual.toggled.connect(self._draw)
        row.addWidget(self.caption, 1)
        row.addWidget(self.note)
        row.addWidget(self.actual)
        row.addWidget(button(tr("Close"), clicked=self.close))
        column.addLayout(row)
        self.area = QScrollArea()
        self.area.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.view = QLabel(tr("Reading the picture…"))
        self.view.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.area.setWidget(self.view)
        column.addWidget(self.area, 1)
        window = parent.window().size()
        self.resize(max(480, window.width() * 9 // 10), max(360, window.height() * 9 // 10))

    def show_picture(self, picture: LoadedPicture) -> None:
        """Show the picture in full size, or fitted when it is larger than the window."""
        self._picture = picture
        shown = picture.image.width()
        text = tr("{width:,} × {height:,} pixels").format(width=picture.width, height=picture.height)
        if shown < picture.width:
            text += tr(", shown at {percent:.0f} %").format(percent=100 * shown / picture.width)
        put(self.note, text)
        self._draw()

    def say(self, sentence: str) -> None:
        """Why there is no picture."""
        put(self.view, sentence)
        self.view.adjustSize()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Scale the picture anew to the new size."""
        super().resizeEvent(event)
        self._draw()

    def _draw(self) -> None:
        if self._picture is None:
            self.view.adjustSize()
            return
        image = self._picture.image
        if not self.actual.isChecked():
            room = self.area.maximumViewportSize()
            mode = (
                Qt.TransformationMode.SmoothTransformation
                if max(image.width(), image.height()) >= CRISP_BELOW
                else Qt.TransformationMode.FastTransformation
            )
            size = fitted(image.size(), room)
            image = image.scaled(size, Qt.AspectRatioMode.KeepAspectRatio, mode)
        self.view.setPixmap(QPixmap.fromImage(image))
        self.view.resize(image.size())
