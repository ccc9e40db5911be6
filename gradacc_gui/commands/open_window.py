"""`gradacc` and `gradacc --demo`: the window."""

from __future__ import annotations

import argparse
import os
import sys

from trainer_backend.errors import UsageError


def open_window(arguments: argparse.Namespace) -> int:
    """Open the window. Raises UsageError when there is no display or no Qt."""
    _check_display()
    try:
        from gradacc_gui import app  # noqa: PLC0415 - Qt is imported for the window alone
    except ImportError as error:
        message = (
            f"The window cannot be opened: {error}. `gradacc doctor` tells what is missing;"
            " `gradacc run RECIPE` trains without a window."
        )
        raise UsageError(message) from error
    return app.open_window(demo=arguments.demo)


def _check_display() -> None:
    """Qt ends the process without a word where there is no display; this says it first."""
    if sys.platform in ("win32", "darwin"):
        return
    asked = os.environ.get("QT_QPA_PLATFORM", "").partition(":")[0]
    if asked and asked not in ("xcb", "wayland"):
        return
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        message = (
            "There is no display here (neither DISPLAY nor WAYLAND_DISPLAY is set): the window cannot open."
            " `gradacc run RECIPE` trains without one, and a window on any machine that sees"
            " GRADACC_HOME can watch it."
        )
        raise UsageError(message)
