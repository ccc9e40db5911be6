"""The grid of charts as the window shows it: its style, its size, a store behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PySide6.QtWidgets import QApplication

    from gradacc_gui.charts import ChartGrid
    from gradacc_gui.store import RunStore
    from trainer_backend.run_directory import RunDirectory


@contextmanager
def chart_window(run: RunDirectory) -> Iterator[tuple[RunStore, ChartGrid, QApplication]]:
    """A shown grid in the shipped style, of the size it has in a window of 1440 x 900."""
    from PySide6.QtWidgets import QApplication

    from gradacc_gui.charts import ChartGrid
    from gradacc_gui.store import RunStore
    from gradacc_gui.theme import Themes, application_font

    app = QApplication.instance() or QApplication([])
    assert isinstance(app, QApplication)
    app.setStyle("Fusion")
    app.setFont(application_font())
    themes = Themes(app, "dark")
    store, grid = RunStore(run), ChartGrid()
    grid.resize(1016, 800)
    grid.set_store(store)
    grid.show()
    app.processEvents()
    try:
        yield store, grid, app
    finally:
        store.close()
        grid.close()
        grid.deleteLater()
        themes.deleteLater()
        app.processEvents()
