"""The five groups of an import's account, counted; a press goes to the group."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from PySide6.QtCore import QEvent, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QWidget

from gradacc_gui.importing.account import TITLES, Imported, KeyClass
from gradacc_gui.theme import current_theme, set_role, space
from gradacc_gui.widgets.parts import clear_widget, label, put
from gradacc_gui.words import tr

Group: TypeAlias = KeyClass | Literal["open"]
TOKENS: Final[dict[Group, str]] = {
    "taken": "ok",
    "translated": "accent",
    "changes-the-run": "warning",
    "harmless": "muted",
    "open": "accent",
}
"""The colour of each group in the theme."""
OPEN_TITLE: Final = "To be filled in"
SIDE: Final = 10


def group_title(group: Group) -> str:
    """What a group is called."""
    return tr(OPEN_TITLE if group == "open" else TITLES[group])


class Swatch(QWidget):
    """A small square in a group's colour; dashed where something is still to come."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group = group
        self.setFixedSize(SIDE, SIDE)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Filled or dashed."""
        painter = QPainter(self)
        colour = QColor(getattr(current_theme(), TOKENS[self._group]))
        if self._group == "open":
            painter.setPen(QPen(colour, 2, Qt.PenStyle.DotLine))
            painter.drawRect(QRectF(1, 1, SIDE - 2, SIDE - 2))
        else:
            painter.fillRect(QRectF(1, 1, SIDE - 2, SIDE - 2), colour)
        painter.end()

    def changeEvent(self, event: QEvent) -> None:
        """Draw anew in a new theme."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange:
            self.update()


class TallyCard(QPushButton):
    """One group: its colour, how many keys, what it is called."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group = group
        self._title = group_title(group)
        set_role(self, "card")
        row = QHBoxLayout(self)
        row.setContentsMargins(space(3), 0, space(3), 0)
        row.setSpacing(space(2))
        self.number = label("0", "number")
        self.words = label(self._title)
        row.addWidget(Swatch(group))
        row.addWidget(self.number)
        row.addWidget(self.words, 1)
        for made in (self.number, self.words):
            made.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.show_count(0)

    def sizeHint(self) -> QSize:
        """Of what stands in it."""
        layout = self.layout()
        assert layout is not None
        return layout.sizeHint()

    def minimumSizeHint(self) -> QSize:
        """The words may not be cut."""
        return self.sizeHint()

    def show_count(self, count: int) -> None:
        """How many keys; a group that asks for attention is framed, an empty one is pale."""
        put(self.number, str(count))
        set_role(self.words, "" if count and self._group != "harmless" else "muted")
        asks = count and self._group in ("changes-the-run", "open")
        set_role(self, f"card-{TOKENS[self._group]}" if asks else "card")
        self.setAccessibleName(f"{self._title}: {count}")
        self.setEnabled(bool(count))


class AccountTally(QWidget):
    """The cards in a row."""

    chosen = Signal(str)
    """The group whose card was pressed."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(space(2))
        self.cards = {group: TallyCard(group) for group in TOKENS}
        for group, card in self.cards.items():
            card.clicked.connect(lambda _checked=False, group=group: self.chosen.emit(group))
            row.addWidget(card, 1)

    def show_import(self, imported: Imported) -> None:
        """Count; defaults that were written out stand among what was translated."""
        for group, card in self.cards.items():
            if group == "open":
                card.show_count(len(imported.open))
            elif group == "translated":
                card.show_count(len(imported.of(group)) + len(imported.defaults))
            else:
                card.show_count(len(imported.of(group)))


def group_head(group: Group, hint: str) -> QWidget:
    """Square, title, and a few words on what the group is."""
    made = clear_widget()
    row = QHBoxLayout(made)
    row.setContentsMargins(0, 0, 0, 0)
    row.setSpacing(space(2))
    row.addWidget(Swatch(group))
    row.addWidget(label(group_title(group), "title"))
    row.addWidget(label(hint, "help"))
    row.addStretch(1)
    return made
