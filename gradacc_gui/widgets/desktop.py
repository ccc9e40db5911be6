"""What widgets hand to the desktop: table rows for the clipboard, folders for the file manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, Qt, QUrl
from PySide6.QtGui import QAction, QDesktopServices, QGuiApplication, QKeySequence
from PySide6.QtWidgets import QAbstractItemView, QFileDialog, QWidget

from gradacc_gui.words import tr

Index: TypeAlias = QModelIndex | QPersistentModelIndex
"""What Qt hands a table's or list's model: either kind of place in it."""


def tab_separated(rows: Sequence[Sequence[str]]) -> str:
    """One line a row; a tab or a line's end inside a cell would break the table, so it is a blank."""
    return "\n".join("\t".join(" ".join(cell.split()) for cell in row) for row in rows)


def selected_rows(view: QAbstractItemView) -> list[list[str]]:
    """The texts of the selected cells, row by row."""
    rows: dict[int, dict[int, str]] = {}
    for index in view.selectionModel().selectedIndexes():
        text = index.data(Qt.ItemDataRole.DisplayRole)
        rows.setdefault(index.row(), {})[index.column()] = "" if text is None else str(text)
    return [[cells[column] for column in sorted(cells)] for _, cells in sorted(rows.items())]


def offer_copy(target: QWidget, text: Callable[[], str]) -> QAction:
    """Give `target` a menu with Copy, and its key; `text` tells what is copied then."""
    action = QAction(tr("Copy"), target)
    action.setShortcut(QKeySequence(QKeySequence.StandardKey.Copy))
    action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
    action.triggered.connect(lambda: _copy(text()))
    target.addAction(action)
    target.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
    return action


def offer_rows(view: QAbstractItemView) -> QAction:
    """Let the selected rows of a table or list be copied."""
    return offer_copy(view, lambda: tab_separated(selected_rows(view)))


def _copy(text: str) -> None:
    if text:  # nothing selected: what was copied before stays
        QGuiApplication.clipboard().setText(text)


def ask_for_file(
    parent: QWidget, title: str, start: Path, taken: Callable[[Path], None], filters: str = ""
) -> QFileDialog:
    """Ask for a file that exists; `taken` gets its path, unless the person cancels."""
    return _ask(parent, title, start, taken, filters, QFileDialog.FileMode.ExistingFile)


def ask_for_folder(parent: QWidget, title: str, start: Path, taken: Callable[[Path], None]) -> QFileDialog:
    """Ask for a folder that exists; `taken` gets its path, unless the person cancels."""
    return _ask(parent, title, start, taken, "", QFileDialog.FileMode.Directory)


def ask_where_to_save(
    parent: QWidget, title: str, start: Path, taken: Callable[[Path], None], filters: str = ""
) -> QFileDialog:
    """Ask for a file to write, `start` proposed; the dialog itself asks before an existing one is chosen."""
    dialog = _ask(parent, title, start.parent, taken, filters, QFileDialog.FileMode.AnyFile)
    dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
    dialog.setDefaultSuffix(start.suffix.removeprefix("."))
    dialog.selectFile(start.name)
    return dialog


def _ask(
    parent: QWidget,
    title: str,
    folder: Path,
    taken: Callable[[Path], None],
    filters: str,
    mode: QFileDialog.FileMode,
) -> QFileDialog:
    # Opened, not executed: an executed dialog runs an event loop of its own inside the caller, and whatever
    # that lets happen (a closed page, another run) would meet a caller that is still half-way through.
    dialog = QFileDialog(parent, title, str(folder), filters)
    dialog.setFileMode(mode)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.fileSelected.connect(lambda text: taken(Path(text)))
    dialog.open()
    return dialog


def open_folder(path: Path) -> str:
    """Ask the system to show `path`; gives a sentence with the path when nothing here can, else ""."""
    if not path.is_dir():
        return tr("The folder {path} no longer exists.").format(path=path)
    if QDesktopServices.openUrl(QUrl.fromLocalFile(str(path))):
        return ""
    words = tr("No file manager was found. Select and copy the path: {path}")
    return words.format(path=path)


def show_file(path: Path) -> None:
    """Open a file with the program that the system has for it; where it has none, nothing is lost."""
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(path)))
