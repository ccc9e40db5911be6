"""The pages of the window, built when they are first wanted where building takes long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtWidgets import QStackedWidget, QWidget


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


def make_form() -> Any:  # noqa: ANN401 - FormPage, imported late
    """The New-run page."""
    from gradacc_gui.form.new_run_page import FormPage  # noqa: PLC0415 - only once it is wanted

    return FormPage()


def make_verify() -> Any:  # noqa: ANN401 - VerifyPage, imported late
    """The page of certificates."""
    from gradacc_gui.verify.verify_page import VerifyPage  # noqa: PLC0415 - only once it is wanted

    return VerifyPage()
