"""The pages of the window: the bar that chooses one, and the stack that builds each when first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import (
    QButtonGroup,
    QFrame,
    QSizePolicy,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.theme import current_theme, icon, set_role, space
from gradacc_gui.words import tr

PageName: TypeAlias = Literal["live", "new-run", "runs", "verify", "settings"]
PAGES: Final[tuple[tuple[PageName, str, str], ...]] = (
    ("live", "Live", "Ctrl+L"),
    ("new-run", "New run", "Ctrl+N"),
    ("runs", "Runs", "Ctrl+R"),
    ("verify", "Verify", "Ctrl+E"),
    ("settings", "Settings", "Ctrl+,"),
)
"""Pages from top to bottom; the last stands at the bar's foot."""
WIDTH: Final = 90


class Navigation(QFrame):
    """The bar on the left, with one button for each page."""

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

    def _build_button(self, page: PageName, word: str, keys: str) -> QToolButton:
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


class Pages(QStackedWidget):
    """Pages by name, one in front."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[str, Any] = {}
        self._makers: dict[str, Callable[[], Any]] = {}

    def add(self, name: str, page: QWidget) -> None:
        """A page that is there from the start."""
        self._made[name] = page
        self.addWidget(page)

    def add_later(self, name: str, make: Callable[[], Any]) -> None:
        """A page that `make` builds when it is first asked for."""
        self._makers[name] = make

    def get(self, name: str) -> Any:  # noqa: ANN401 - each page has its own type
        """The page, built now if it has not been."""
        if name not in self._made:
            self.add(name, self._makers[name]())
        return self._made[name]

    def if_made(self, name: str) -> Any:  # noqa: ANN401 - likewise
        """The page, or None when nobody has wanted it yet."""
        return self._made.get(name)

    def bring(self, name: str) -> None:
        """Put a page in front."""
        self.setCurrentWidget(self.get(name))

    def front(self) -> str:
        """The name of the page in front."""
        return next(name for name, page in self._made.items() if page is self.currentWidget())


def make_charts() -> QWidget:
    """The grid of charts; pyqtgraph and numpy take half a second."""
    from gradacc_gui.charts import ChartGrid  # noqa: PLC0415 - only once charts are wanted

    return ChartGrid()


def make_results() -> Any:  # noqa: ANN401 - ResultsTab, imported late
    """What evaluations made; it reads recipes, which takes a library that the charts do without."""
    from gradacc_gui.window.results_tab import ResultsTab  # noqa: PLC0415 - only once it is wanted

    return ResultsTab()


def make_try() -> Any:  # noqa: ANN401 - TryTab, imported late
    """Where the newest checkpoint is asked."""
    from gradacc_gui.trying.try_tab import TryTab  # noqa: PLC0415 - only once it is wanted

    return TryTab()


def make_form() -> Any:  # noqa: ANN401 - FormPage, imported late
    """The New-run page."""
    from gradacc_gui.form.new_run_page import FormPage  # noqa: PLC0415 - only once it is wanted

    return FormPage()


def make_verify() -> Any:  # noqa: ANN401 - VerifyPage, imported late
    """The page of certificates."""
    from gradacc_gui.verify.verify_page import VerifyPage  # noqa: PLC0415 - only once it is wanted

    return VerifyPage()


def make_compare() -> Any:  # noqa: ANN401 - ComparePage, imported late
    """The page of runs side by side; pyqtgraph and numpy take half a second."""
    from gradacc_gui.comparing.compare_page import ComparePage  # noqa: PLC0415 - only once it is wanted

    return ComparePage()
