"""Show a folder in the system's file manager, or say where it lies when there is none."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices

from gradacc_gui.words import tr


def open_folder(path: Path) -> str:
    """Ask the system to show `path`; gives a sentence with the path when nothing here can, else ""."""
    if not path.is_dir():
        return tr("There is no folder {path} any more.").format(path=path)
    if QDesktopServices.openUrl(QUrl.fromLocalFile(str(path))):
        return ""
    words = tr("No program here shows folders. Select and copy where it lies: {path}")
    return words.format(path=path)
