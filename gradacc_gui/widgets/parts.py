"""Small widgets that the window's pages are put together from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from PySide6.QtCore import QEvent, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QButtonGroup,
    QFrame,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.theme import current_theme, icon, set_role, space
from gradacc_gui.words import tr

SELECTABLE: Final = Qt.TextInteractionFlag.TextSelectableByMouse
"""Of labels whose words a person may want to copy: a path, an error."""
LEAST_NOTICE_WORDS_PX: Final = 380
"""Beside a notice's buttons, for its icon and sentence."""
ICON_PX: Final = 16
ICON_GAP_PX: Final = 4
"""Between a button's icon and its word, besides what the style leaves."""


def label(text: str = "", role: str = "", *, wrap: bool = False) -> QLabel:
    """A label in plain text (names and paths come from outside: no markup)."""
    made = QLabel(text)
    made.setTextFormat(Qt.TextFormat.PlainText)
    made.setWordWrap(wrap)
    if role:
        set_role(made, role)
    return made


def put(target: QLabel, text: str) -> None:
    """Set a label's text only when it differs: a header is told 30 times a second."""
    if target.text() != text:
        target.setText(text)


def button(
    text: str, *, role: str = "", icon_name: str = "", clicked: Callable[[], object] | None = None
) -> QPushButton:
    """A push-button with a word and perhaps an icon that follows the theme."""
    made = IconButton(text, icon_name) if icon_name else QPushButton(text)
    if role:
        set_role(made, role)
        if isinstance(made, IconButton):
            made.set_icon(icon_name)
    if clicked is not None:
        made.clicked.connect(lambda _checked=False: clicked())
    return made


class IconButton(QPushButton):
    """A button whose SVG icon is drawn in the colour of its word."""

    def __init__(self, text: str, icon_name: str) -> None:
        super().__init__(text)
        self._icon_name = icon_name
        self.setIconSize(QSize(ICON_PX + ICON_GAP_PX, ICON_PX))
        self.set_icon(icon_name)

    def set_icon(self, icon_name: str) -> None:
        """Show another icon."""
        self._icon_name = icon_name
        theme = current_theme()
        word = theme.on_accent if self.property("role") == "primary" else theme.text
        colour = word if self.isEnabled() else theme.muted
        self.setIcon(icon(icon_name, colour, ICON_PX, gap=ICON_GAP_PX))

    def changeEvent(self, event: QEvent) -> None:
        """Draw the icon anew in a new theme, or when enabled or disabled."""
        super().changeEvent(event)
        if event.type() in (QEvent.Type.PaletteChange, QEvent.Type.EnabledChange):
            self.set_icon(self._icon_name)


class IconLabel(QLabel):
    """An SVG icon in one of the theme's colours ("muted", "accent", "warning" …)."""

    def __init__(self, icon_name: str, token: str, pixels: int = 20) -> None:
        super().__init__()
        self._icon_name, self._token, self._pixels = icon_name, token, pixels
        self.setFixedSize(pixels, pixels)
        self._draw()

    def _draw(self) -> None:
        colour: str = getattr(current_theme(), self._token)
        self.setPixmap(icon(self._icon_name, colour, self._pixels).pixmap(self._pixels, self._pixels))

    def changeEvent(self, event: QEvent) -> None:
        """Draw anew in a new theme."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange:
            self._draw()


class Panel(QFrame):
    """A titled box with one hairline; put content into `body`."""

    def __init__(self, title: str, hint: str = "") -> None:
        super().__init__()
        set_role(self, "panel")
        self.setAccessibleName(title)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(space(3), space(3), space(3), space(3))
        outer.setSpacing(space(2))
        self.head = QHBoxLayout()
        self.title = label(title, "title")
        self.hint = label(hint, "help")
        self.head.addWidget(self.title)
        self.head.addStretch(1)
        self.head.addWidget(self.hint)
        outer.addLayout(self.head)
        self.body = QVBoxLayout()
        self.body.setSpacing(space(2))
        outer.addLayout(self.body)


class ElidedLabel(QLabel):
    """One line that is cut in the middle (or at its end) when too long; all of it is in the tool-tip."""

    def __init__(
        self, text: str = "", role: str = "", mode: Qt.TextElideMode = Qt.TextElideMode.ElideMiddle
    ) -> None:
        super().__init__()
        self._full = ""
        self._mode = mode
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        if role:
            set_role(self, role)
        self.set_full_text(text)

    def set_full_text(self, text: str) -> None:
        """Show `text`, cut as needed."""
        if text != self._full:
            self._full = text
            self.setAccessibleName(text)
            self.updateGeometry()
            self._cut()

    def full_text(self) -> str:
        """What it would say with room enough."""
        return self._full

    def natural_width(self) -> int:
        """Pixels the whole text takes."""
        return self.fontMetrics().horizontalAdvance(self._full) + 2

    def sizeHint(self) -> QSize:
        """Of the whole text: what is shown may be cut already."""
        return QSize(self.natural_width(), super().sizeHint().height())

    def _cut(self) -> None:
        shown = self._shown()
        self.setText(shown)
        self.setToolTip(self._full if shown != self._full else "")

    def _shown(self) -> str:
        """What fits into the present width."""
        return self.fontMetrics().elidedText(self._full, self._mode, max(self.width(), 1))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Elide the text anew for the new width."""
        super().resizeEvent(event)
        self._cut()


class Segments(QWidget):
    """A row of buttons of which one is down."""

    chosen = Signal(str)

    def __init__(self, choices: Sequence[tuple[str, str]], name: str) -> None:
        """`choices`: key and word of each; `name` is what a screen reader says."""
        super().__init__()
        self.setAccessibleName(name)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        self._group = QButtonGroup(self)
        self._buttons: dict[str, QPushButton] = {}
        for key, word in choices:
            made = QPushButton(word)
            made.setCheckable(True)
            made.setAccessibleName(f"{name}: {word}")
            set_role(made, "segment" if self._buttons else "segment-first")
            made.clicked.connect(lambda _checked, key=key: self.chosen.emit(key))
            self._group.addButton(made)
            self._buttons[key] = made
            row.addWidget(made)
        self._buttons[choices[0][0]].setChecked(True)

    def choice(self) -> str:
        """The key of the button that is down."""
        return next(key for key, made in self._buttons.items() if made.isChecked())

    def choose(self, key: str) -> None:
        """Press `key` without emitting."""
        self._buttons[key].setChecked(True)

    def button(self, key: str) -> QPushButton:
        """The button of `key`."""
        return self._buttons[key]


class Bar(QWidget):
    """A share of a whole, as a flat bar in one series colour."""

    HEIGHT: Final = 6

    def __init__(self, series: int) -> None:
        super().__init__()
        self._series = series
        self._ratio: float | None = None
        self.setFixedHeight(self.HEIGHT)

    def set_ratio(self, ratio: float | None) -> None:
        """Fill `ratio` (0 … 1) of it; None: not known, drawn empty."""
        clean = None if ratio is None else min(max(ratio, 0.0), 1.0)
        if clean != self._ratio:
            self._ratio = clean
            self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Groove, then the filled share."""
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(theme.line))
        painter.drawRoundedRect(QRectF(self.rect()), 3, 3)
        if self._ratio:
            painter.setBrush(QColor(theme.series[self._series]))
            painter.drawRoundedRect(QRectF(0, 0, max(self.width() * self._ratio, 4), self.height()), 3, 3)
        painter.end()


class Notice(QFrame):
    """A banner with an icon, a sentence, perhaps some lines below it, and buttons."""

    dismissed = Signal()

    def __init__(self, role: str = "notice", *, dismissible: bool = True) -> None:
        super().__init__()
        set_role(self, role)
        token = {"notice": "accent", "notice-warning": "warning", "notice-bad": "bad"}[role]
        row = QHBoxLayout(self)
        row.setContentsMargins(space(3), space(2), space(2), space(2))
        row.setSpacing(space(3))
        row.addWidget(
            IconLabel("info" if role == "notice" else "warning", token), 0, Qt.AlignmentFlag.AlignTop
        )
        words = QVBoxLayout()
        words.setSpacing(2)
        self.sentence = label(wrap=True)
        self.sentence.setTextInteractionFlags(SELECTABLE)
        self.more = label(role="help", wrap=True)
        self.more.setTextInteractionFlags(SELECTABLE)
        words.addWidget(self.sentence)
        words.addWidget(self.more)
        self._words_and_buttons = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._words_and_buttons.setSpacing(space(3))
        self._words_and_buttons.addLayout(words, 1)
        self.buttons = QHBoxLayout()
        self._words_and_buttons.addLayout(self.buttons)
        self._words_and_buttons.setAlignment(self.buttons, Qt.AlignmentFlag.AlignRight)
        row.addLayout(self._words_and_buttons, 1)
        if dismissible:
            close = QToolButton()
            close.setText(tr("Dismiss"))
            set_role(close, "quiet")
            close.clicked.connect(self._dismiss)
            row.addWidget(close, 0, Qt.AlignmentFlag.AlignTop)
        self.hide()

    def minimumSizeHint(self) -> QSize:
        """Narrow enough for words above buttons."""
        least = self.buttons.minimumSize().width() + 4 * space(4)
        return QSize(least, super().minimumSizeHint().height())

    def say(self, sentence: str, more: str = "") -> None:
        """Show the banner with these words."""
        put(self.sentence, sentence)
        put(self.more, more)
        self.more.setVisible(bool(more))
        self.setAccessibleName(sentence)
        self.show()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Where buttons would leave too little room for the words, they stand below them."""
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        room = self.width() - self.buttons.sizeHint().width()
        beside = room >= LEAST_NOTICE_WORDS_PX
        wanted = QBoxLayout.Direction.LeftToRight if beside else QBoxLayout.Direction.TopToBottom
        if self._words_and_buttons.direction() != wanted:
            self._words_and_buttons.setDirection(wanted)

    def _dismiss(self) -> None:
        self.hide()
        self.dismissed.emit()


def rule() -> QFrame:
    """A hairline."""
    made = QFrame()
    set_role(made, "rule")
    return made


def clear_widget() -> QWidget:
    """A widget without a surface of its own, for grouping."""
    made = QWidget()
    made.setObjectName("clear")
    return made
