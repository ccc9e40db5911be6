"""The bar on the left: one button a page, with its word."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QButtonGroup, QFrame, QSizePolicy, QToolButton, QVBoxLayout

from gradacc_gui.theme import current_theme, icon, set_role, space
from gradacc_gui.words import tr

Page: TypeAlias = Literal["live", "new-run", "runs", "verify", "settings"]
PAGES: Final[tuple[tuple[Page, str, str], ...]] = (
    ("live", "Live", "Ctrl+L"),
    ("new-run", "New run", "Ctrl+N"),
    ("runs", "Runs", "Ctrl+R"),
    ("verify", "Verify", "Ctrl+E"),
    ("settings", "Settings", "Ctrl+,"),
)
"""Pages from top to bottom; the last stands at the bar's foot."""
WIDTH: Final = 90


class Navigation(QFrame):
    """Which page is shown."""

    chosen = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._group = QButtonGroup(self)
        self._buttons: dict[str, QToolButton] = {}
        set_role(self, "navigation")
        self.setFixedWidth(WIDTH)
        self.setAccessibleName(tr("Pages"))
        column = QVBoxLayout(self)
        column.setContentsMargins(space(2), space(3), space(2), space(3))
        column.setSpacing(space(1))
        for page, word, keys in PAGES:
            if page == PAGES[-1][0]:
                column.addStretch(1)
            column.addWidget(self._build_button(page, tr(word), keys))
        self._draw_icons()
        self.choose("live")

    def _build_button(self, page: Page, word: str, keys: str) -> QToolButton:
        made = QToolButton()
        made.setText(word)
        made.setCheckable(True)
        made.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextUnderIcon)
        made.setIconSize(QSize(20, 20))
        made.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        made.setToolTip(f"{word} ({keys})")
        made.setAccessibleName(word)
        made.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        set_role(made, "nav")
        made.clicked.connect(lambda: self.chosen.emit(page))
        self._group.addButton(made)
        self._buttons[page] = made
        return made

    def choose(self, page: str) -> None:
        """Mark `page` without emitting."""
        self._buttons[page].setChecked(True)

    def button(self, page: str) -> QToolButton:
        """The button of a page."""
        return self._buttons[page]

    def _draw_icons(self) -> None:
        theme = current_theme()
        for page, made in self._buttons.items():
            drawn = QIcon(icon(page, theme.muted))
            for ratio in (1, 2, 3):
                pixmap = icon(page, theme.accent).pixmap(QSize(20, 20), ratio)
                drawn.addPixmap(pixmap, QIcon.Mode.Normal, QIcon.State.On)
            made.setIcon(drawn)

    def changeEvent(self, event: QEvent) -> None:
        """Draw the icons anew in a new theme."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange:
            self._draw_icons()
