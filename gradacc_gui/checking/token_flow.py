"""Tokens drawn one behind another, coloured by what their loss weighs; special tokens as chips."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QEvent, QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetricsF, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from gradacc_gui.checking.token_pieces import ShownToken, pieces_of, shown, strip_of
from gradacc_gui.theme import current_theme, mix, mono_font, space
from gradacc_gui.words import tr
from trainer_backend.preflight.findings import TokenRow

LINE: Final = 23
CHIP_PAD: Final = 5
CHIP_GAP: Final = 3
CHIP_HEIGHT: Final = 18
STRIP_HEIGHT: Final = 6


class LossStrip(QWidget):
    """A bar as long as the row is among its neighbours; what is learnt stands out."""

    def __init__(self, row: TokenRow, longest: int) -> None:
        super().__init__()
        self._stretches = strip_of(row)
        self._length, self._longest = len(row.texts), max(1, longest)
        self.setFixedHeight(STRIP_HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(tr("Where the loss lies in this row"))

    def paintEvent(self, _event: QPaintEvent) -> None:
        """An empty groove for padding, then the parts."""
        theme = current_theme()
        painter = QPainter(self)
        painter.setPen(QPen(QColor(theme.line)))
        painter.drawRoundedRect(QRectF(0.5, 0.5, self.width() - 1, self.height() - 1), 2, 2)
        painter.setPen(Qt.PenStyle.NoPen)
        each = self.width() / self._longest
        colours = {
            "prompt": mix(theme.muted, theme.panel, 0.45),
            "learnt": theme.accent,
            "outside": theme.bad,
        }
        for stretch in self._stretches:
            begin, width = stretch.begin * each, (stretch.end - stretch.begin) * each
            painter.fillRect(QRectF(begin, 0, max(width, 1.0), self.height()), QColor(colours[stretch.kind]))
        painter.end()


class TokenFlow(QWidget):
    """One row's tokens, wrapped at words. A press or the arrow keys select a token."""

    selected = Signal(int)
    """The place of a token in its row."""

    def __init__(self, row: TokenRow, *, shortened: bool) -> None:
        super().__init__()
        self._row = row
        self._heaviest = max(row.weights, default=1.0) or 1.0
        self._pieces = pieces_of(row, shortened=shortened)
        self._boxes: list[QRectF] = []
        self._laid_out_for = -1
        self._chosen = -1
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(tr("Tokens of the row"))
        self.setAccessibleDescription("".join(row.texts)[:2000])

    # ------------------------------------------------------------------------------- layout

    def hasHeightForWidth(self) -> bool:
        """Lines are wrapped."""
        return True

    def heightForWidth(self, width: int) -> int:
        """As many lines as the tokens need."""
        self._lay_out(width)
        last = self._boxes[-1].bottom() if self._boxes else 0.0
        return round(last) + 2

    def sizeHint(self) -> QSize:
        """For the width it has."""
        width = self.width() if self.width() > 100 else 480
        return QSize(width, self.heightForWidth(width))

    def minimumSizeHint(self) -> QSize:
        """Any width will do."""
        return QSize(120, LINE)

    def _lay_out(self, width: int) -> None:
        """Places for all pieces; a word is broken only where it is longer than a line."""
        if width == self._laid_out_for:
            return
        self._laid_out_for = width
        metrics, chips = QFontMetricsF(self.font()), QFontMetricsF(mono_font(11))
        x, y = 0.0, 0.0
        boxes: list[QRectF] = []
        begin = 0  # of the word in hand
        for place, piece in enumerate(self._pieces):
            taken = self._width_of(piece, metrics, chips)
            is_break = piece.kind != "text" or piece.text[:1].isspace() or self._ends_word(place - 1)
            if is_break:
                begin = place
            if x + taken > width and x > 0:
                y += LINE
                # The space before a word is not seen where the word begins a line.
                x = -metrics.horizontalAdvance(" ") if piece.text.startswith(" ") else 0.0
                if not is_break and boxes[begin].left() > 0:  # the word goes on the new line whole
                    for moved in range(begin, place):
                        boxes[moved].moveTo(x, y)
                        x += boxes[moved].width()
            boxes.append(QRectF(x, y, taken, LINE))
            x += taken
        self._boxes = boxes

    def _ends_word(self, place: int) -> bool:
        return place < 0 or self._pieces[place].kind != "text" or self._pieces[place].text[-1:].isspace()

    def _width_of(self, piece: ShownToken, metrics: QFontMetricsF, chips: QFontMetricsF) -> float:
        if piece.kind == "text":
            return metrics.horizontalAdvance(shown(piece.text))
        return chips.horizontalAdvance(self._chip_text(piece)) + 2 * (CHIP_PAD + CHIP_GAP)

    @staticmethod
    def _chip_text(piece: ShownToken) -> str:
        if piece.kind == "gap":
            return tr("{count:,} tokens").format(count=piece.count)
        return shown(piece.text) or tr("(empty)")

    # ------------------------------------------------------------------------------ drawing

    def paintEvent(self, event: QPaintEvent) -> None:
        """Only what is in view."""
        self._lay_out(self.width())
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for place, (piece, box) in enumerate(zip(self._pieces, self._boxes, strict=True)):
            if box.bottom() < event.rect().top() or box.top() > event.rect().bottom():
                continue
            if piece.kind == "text":
                self._draw_text(painter, piece, box)
            else:
                self._draw_chip(painter, piece, box)
            if place == self._chosen:
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.setPen(QPen(QColor(current_theme().text), 1.5))
                painter.drawRoundedRect(box.adjusted(0.5, 1.5, -0.5, -1.5), 4, 4)
        painter.end()

    def _draw_text(self, painter: QPainter, piece: ShownToken, box: QRectF) -> None:
        theme = current_theme()
        if piece.is_learnt:
            share = 0.14 + 0.20 * piece.weight / self._heaviest
            begin, end = round(box.left()), round(box.right())  # whole pixels: no seam between neighbours
            room = QRect(begin, round(box.top()) + 2, end - begin, LINE - 4)
            painter.fillRect(room, QColor(mix(theme.panel, theme.accent, share)))
        painter.setFont(self.font())
        painter.setPen(QColor(theme.text if piece.is_learnt else theme.muted))
        painter.drawText(box, Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextDontClip, shown(piece.text))

    def _draw_chip(self, painter: QPainter, piece: ShownToken, box: QRectF) -> None:
        theme = current_theme()
        chip = QRectF(
            box.left() + CHIP_GAP, box.top() + (LINE - CHIP_HEIGHT) / 2,
            box.width() - 2 * CHIP_GAP, CHIP_HEIGHT,
        )  # fmt: skip
        colour = theme.bad if piece.outside else theme.accent if piece.is_learnt else theme.muted
        is_strong = piece.outside or piece.is_learnt
        pen = QPen(QColor(colour if is_strong else mix(theme.muted, theme.panel, 0.35)))
        if piece.kind == "gap":
            pen.setStyle(Qt.PenStyle.DashLine)
        painter.setPen(pen)
        painter.setBrush(QColor(mix(theme.panel, colour, 0.16 if is_strong else 0.0)))
        painter.drawRoundedRect(chip, 4, 4)
        painter.setFont(mono_font(11))
        painter.setPen(QColor(colour if piece.outside else theme.text if piece.is_learnt else theme.muted))
        painter.drawText(chip, Qt.AlignmentFlag.AlignCenter, self._chip_text(piece))

    def changeEvent(self, event: QEvent) -> None:
        """Another font needs another layout, another theme other colours."""
        super().changeEvent(event)
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self._laid_out_for = -1
            self.updateGeometry()
        self.update()

    # ----------------------------------------------------------------------------- choosing

    def piece_at(self, point: QPointF) -> int:
        """The number of the piece under a point; -1 where there is none."""
        return next((place for place, box in enumerate(self._boxes) if box.contains(point)), -1)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Select a token."""
        super().mousePressEvent(event)
        self._choose(self.piece_at(event.position()))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Left and right go from token to token."""
        step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()))
        if step is None:
            super().keyPressEvent(event)
            return
        self._choose(min(max(self._chosen + step, 0), len(self._pieces) - 1))

    def _choose(self, number: int) -> None:
        self._chosen = number
        if number >= 0:
            self.selected.emit(self._pieces[number].place)
        self.update()

    def clear_choice(self) -> None:
        """Another row has the selected token."""
        self._chosen = -1
        self.update()

    @property
    def row(self) -> TokenRow:
        """What is shown."""
        return self._row


def legend_chip(text: str, kind: str) -> QWidget:
    """One entry of the legend: "no loss", "learnt", "special", "outside the embedding"."""
    weight = 1.0 if kind in {"learnt", "special"} else 0.0
    row = TokenRow(
        source="",
        texts=(text,),
        weights=(weight,),
        special=(0,) if kind in {"special", "outside"} else (),
        outside=(0,) if kind == "outside" else (),
    )
    made = TokenFlow(row, shortened=False)
    made.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    made.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
    metrics, chips = QFontMetricsF(made.font()), QFontMetricsF(mono_font(11))
    width = made._width_of(made._pieces[0], metrics, chips)  # noqa: SLF001 - its own class's
    made.setFixedSize(round(width) + space(1), LINE)
    return made
