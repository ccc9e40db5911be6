"""The shipped window, and its grid of charts alone: style, size, a run behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PySide6.QtWidgets import QApplication

    from gradacc_gui.charts import ChartGrid
    from gradacc_gui.store import RunStore
    from gradacc_gui.window.main_window import MainWindow
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


@contextmanager
def main_window(run: RunDirectory) -> Iterator[tuple[MainWindow, QApplication]]:
    """The window as `gradacc` opens it, at 1440 x 900, showing a run's charts."""
    from gradacc_gui.app import finish_start, make_application
    from gradacc_gui.remembered import Preferences
    from gradacc_gui.theme import Themes
    from gradacc_gui.window.main_window import MainWindow

    app = make_application(["gradacc"])
    preferences = Preferences()
    preferences.keep_awake = False
    window = MainWindow(Themes(app, "dark"), preferences)
    window.resize(1440, 900)
    window.open_run(run)
    window.show()
    finish_start(window)
    app.processEvents()
    try:
        yield window, app
    finally:
        window.timer.stop()
        window._may_close = True
        window.close()
