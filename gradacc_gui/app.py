"""The application: Qt set up once, one window, and a sentence where there is no display."""

from __future__ import annotations

import functools
import gc
import os
import sys
from typing import Final

from PySide6.QtCore import QMessageLogContext, QTimer, QtMsgType, qInstallMessageHandler
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QApplication

from gradacc_gui.assets import asset
from gradacc_gui.remembered import Preferences
from gradacc_gui.theme import Themes, application_font
from gradacc_gui.window.main_window import MainWindow, close_on_interrupt
from trainer_backend.errors import GradaccError
from trainer_backend.run_directory import RunDirectory, all_runs, find_run

NO_DISPLAY: Final = (
    "gradacc cannot open its window: {why}. Without a window: gradacc run RECIPE (see gradacc --help)."
)
EXIT_NO_DISPLAY: Final = 2
FIRST_SIZE: Final = (1440, 900)
TITLE_BAR: Final = 40
"""Logical pixels that a window manager may put above a window."""
_is_up: list[bool] = []
"""Filled once the application stands; until then Qt's lines are only remembered."""
_said: list[str] = []
"""What Qt said while it started; on failure its reason is among it."""


def _on_message(kind: QtMsgType, _context: QMessageLogContext, text: str) -> None:
    """Qt aborts the process when there is no display; only here can a sentence be said before."""
    if kind == QtMsgType.QtFatalMsg:
        print(NO_DISPLAY.format(why=_reason(_said, text)), file=sys.stderr, flush=True)  # noqa: T201
        os._exit(EXIT_NO_DISPLAY)
    if not _is_up:
        _said.append(text)
    elif kind != QtMsgType.QtDebugMsg:
        print(f"Qt: {text}", file=sys.stderr)  # noqa: T201


def _reason(said: list[str], fatal: str) -> str:
    """The most telling of Qt's lines: a library or a display that is missing, else its last word."""
    for line in said:
        if "could not connect to display" in line:
            return "there is no display" + line.partition("display")[2].rstrip(". ")
        if "is needed" in line:
            return line.strip().rstrip(".")
    return fatal.splitlines()[0].strip().rstrip(".") if fatal else "Qt could not start"


def make_application(arguments: list[str] | None = None) -> QApplication:
    """Fusion, our font and icon. Exits with a sentence where there is no display."""
    qInstallMessageHandler(_on_message)
    QApplication.setApplicationName("gradacc")
    QApplication.setDesktopFileName("gradacc")
    app = QApplication(arguments or ["gradacc"])
    _is_up.append(True)
    app.setStyle("Fusion")
    app.setFont(application_font())
    app.setWindowIcon(QIcon(str(asset("icons/gradacc.svg"))))
    return app


def open_window(*, demo: bool = False, run: str | None = None) -> int:
    """Open the window and stay until it is closed; gives the exit code. Raises UsageError for an unknown run.

    demo: start the demo run at once. run: an id, a name or a directory to show.
    """
    wanted = find_run(run) if run is not None else None
    app = make_application()
    preferences = Preferences()
    themes = Themes(app, preferences.theme)
    window = MainWindow(themes, preferences)
    close_on_interrupt(window)
    if preferences.geometry.isEmpty() or not window.restoreGeometry(preferences.geometry):
        fit_on_screen(window)
    first_page(window, wanted, demo=demo)
    window.show()
    window.pages.setFocus()
    # Charts take half a second to import; once the window is there nobody waits for that.
    QTimer.singleShot(200, window, functools.partial(finish_start, window))
    return app.exec()


def finish_start(window: MainWindow) -> None:
    """Bring the charts, and leave what lives as long as the window out of garbage collection.

    A full collection would walk a hundred thousand of those objects, for 50 ms, in the middle of a tick.
    """
    window.live.ensure_charts()
    gc.collect()
    gc.freeze()


def fit_on_screen(window: MainWindow) -> None:
    """1440 x 900, or what the screen has beside its panels and the title bar."""
    room = window.screen().availableSize()
    window.resize(min(FIRST_SIZE[0], room.width()), min(FIRST_SIZE[1], room.height() - TITLE_BAR))


def first_page(window: MainWindow, wanted: RunDirectory | None, *, demo: bool) -> None:
    """The run that was asked for, else one that is live, else the form."""
    if demo:
        window.show_page("live")
        window.start_demo()
        return
    live = wanted or next((run for run in all_runs() if run.is_alive()), None)
    if live is not None:
        window.open_run(live)
    else:
        window.show_page("new-run")


def main(argv: list[str] | None = None) -> int:
    """For `python -m gradacc_gui.app`: the window without the command line."""
    arguments = sys.argv[1:] if argv is None else argv
    names = [argument for argument in arguments if not argument.startswith("-")]
    try:
        return open_window(demo="--demo" in arguments, run=names[0] if names else None)
    except GradaccError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
