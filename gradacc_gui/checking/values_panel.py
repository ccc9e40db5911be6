"""The numbers in pictures of more than 8 bits: their distribution, and the range that becomes 0 to 1."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QWidget

from gradacc_gui.theme import application_font, current_theme, space
from gradacc_gui.widgets.parts import Panel, button, label, put
from gradacc_gui.words import tr
from trainer_backend.preflight.check_words import cost
from trainer_backend.preflight.findings import PictureValues

HEIGHT: Final = 110
FOOT: Final = 16


class Histogram(QWidget):
    """Bars from the lowest to the highest number, their ends named."""

    def __init__(self) -> None:
        super().__init__()
        self._values: PictureValues | None = None
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(tr("Distribution of the values"))

    def sizeHint(self) -> QSize:
        """Wide enough for sixty-four bars."""
        return QSize(260, HEIGHT)

    def show_values(self, values: PictureValues) -> None:
        """Another distribution."""
        self._values = values
        self.setAccessibleDescription(f"{values.low:g} – {values.high:g}")
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Bars over a hairline, the ends below."""
        if self._values is None:
            return
        theme, values = current_theme(), self._values
        painter = QPainter(self)
        floor = self.height() - FOOT - 2
        highest = max(values.counts, default=1) or 1
        each = self.width() / max(1, len(values.counts))
        for place, count in enumerate(values.counts):
            tall = floor * (count / highest) ** 0.5  # small parts stay visible
            painter.fillRect(
                QRectF(place * each, floor - tall, max(1.0, each - 1), tall), QColor(theme.series[0])
            )
        painter.setPen(QPen(QColor(theme.line)))
        painter.drawLine(0, floor, self.width(), floor)
        painter.setPen(QColor(theme.muted))
        painter.setFont(application_font(12))
        foot = self.rect().adjusted(0, floor + 2, 0, 0)
        painter.drawText(foot, Qt.AlignmentFlag.AlignLeft, f"{values.low:,.6g}")
        painter.drawText(foot, Qt.AlignmentFlag.AlignRight, f"{values.high:,.6g}")
        painter.end()


class ValuesPanel(Panel):
    """Histogram, what it means, and the range to use."""

    change_requested = Signal(str, object)

    def __init__(self) -> None:
        super().__init__(tr("Values in the pictures"))
        self.histogram = Histogram()
        self.words = label("", wrap=True)
        self.use = button(tr("Use the measured range"), clicked=self._use)
        self.writes = label("", "help", wrap=True)
        self._values: PictureValues | None = None
        self.body.addWidget(self.histogram)
        self.body.addWidget(self.words)
        row = QHBoxLayout()
        row.setSpacing(space(2))
        row.addWidget(self.use)
        row.addWidget(self.writes, 1)
        self.body.addLayout(row)

    def show_values(self, values: PictureValues) -> None:
        """Another measurement."""
        self._values = values
        self.hint.setText(
            tr("{count:,} pictures, {cost}").format(count=values.pictures, cost=cost(values.duration_s))
        )
        self.histogram.show_values(values)
        low, high = values.proposed
        put(self.words, _words(values))
        needed = values.stated != values.proposed
        self.use.setVisible(needed)
        self.writes.setVisible(needed)
        self.use.setText(tr("Use {low:,.6g} to {high:,.6g}").format(low=low, high=high))
        put(self.writes, tr("writes data.value_range = [{low:g}, {high:g}]").format(low=low, high=high))

    def _use(self) -> None:
        if self._values is not None:
            self.change_requested.emit("data.value_range", list(self._values.proposed))


def _words(values: PictureValues) -> str:
    if values.stated is not None:
        words = tr("{kind} values. The recipe scales all pictures by one range, {low:,.6g} to {high:,.6g}.")
        return words.format(kind=values.kind, low=values.stated[0], high=values.stated[1])
    if values.kind.startswith("uint"):
        bits = round(values.proposed[1] + 1).bit_length() - 1
        words = tr(
            "{kind} files that hold {bits} bits: {low:,.6g} to {high:,.6g}. Now they are divided by 65,535."
        )
        return words.format(kind=values.kind, bits=bits, low=values.low, high=values.high)
    words = tr("{kind} values have no fixed scale: {low:,.6g} to {high:,.6g} occur.")
    return words.format(kind=values.kind, low=values.low, high=values.high)
