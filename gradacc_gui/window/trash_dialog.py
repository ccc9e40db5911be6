"""The deleted runs: put back, or removed for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QAbstractItemView,
    QDialog,
    QHBoxLayout,
    QListWidget,
    QListWidgetItem,
    QMessageBox,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import button, label, put
from gradacc_gui.words import tr
from trainer_backend.run_directory import RunDirectory


class TrashDialog(QDialog):
    """Lists what lies in the trash. It asks; the window acts and calls `show_runs` again."""

    put_back_requested = Signal(list)
    remove_requested = Signal(list)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(tr("Trash"))
        self.resize(520, 360)
        column = QVBoxLayout(self)
        column.setSpacing(space(2))
        self.words = label(role="help", wrap=True)
        self.list = QListWidget()
        self.list.setAccessibleName(tr("Deleted runs"))
        self.list.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.list.itemSelectionChanged.connect(self._refresh)
        row = QHBoxLayout()
        self.put_back = button(tr("Put back"), role="primary", clicked=self._put_back)
        self.remove = button(tr("Delete for good…"), icon_name="delete", clicked=self._remove)
        close = button(tr("Close"), clicked=self.close)
        row.addStretch(1)
        for made in (self.remove, close, self.put_back):
            row.addWidget(made)
        column.addWidget(self.words)
        column.addWidget(self.list, 1)
        column.addLayout(row)
        self.question: QMessageBox | None = None
        self.show_runs(())

    def show_runs(self, runs: Sequence[RunDirectory]) -> None:
        """Show what lies in the trash now."""
        self.list.clear()
        for run in runs:
            item = QListWidgetItem(f"{run.asked_name}   {run.id}" if run.asked_name else run.id)
            item.setData(Qt.ItemDataRole.UserRole, run)
            item.setToolTip(str(run.path))
            self.list.addItem(item)
        put(
            self.words,
            tr("Deleted runs keep their disk space until you delete them for good.")
            if runs
            else tr("The trash is empty."),
        )
        self._refresh()

    def chosen(self) -> list[RunDirectory]:
        """The selected runs."""
        return [item.data(Qt.ItemDataRole.UserRole) for item in self.list.selectedItems()]

    def _refresh(self) -> None:
        for made in (self.put_back, self.remove):
            made.setEnabled(bool(self.list.selectedItems()))

    def _put_back(self) -> None:
        self.put_back_requested.emit(self.chosen())

    def _remove(self) -> None:
        runs = self.chosen()
        self.question = ask_to_delete(
            self,
            tr("Delete {count} runs for good, with their checkpoints?").format(count=len(runs))
            if len(runs) > 1
            else tr("Delete {name} for good, with its checkpoints?").format(name=runs[0].id),
            tr("This cannot be undone."),
            lambda: self.remove_requested.emit(runs),
        )


def ask_to_delete(parent: QWidget, text: str, more: str, yes: Callable[[], object]) -> QMessageBox:
    """Open the question, Cancel being its default; `yes` is called when the person agrees."""
    question = QMessageBox(parent)
    question.setWindowTitle(tr("Delete"))
    question.setTextFormat(Qt.TextFormat.PlainText)
    question.setText(text)
    question.setInformativeText(more)
    question.setStandardButtons(QMessageBox.StandardButton.Cancel)
    delete = question.addButton(tr("Delete"), QMessageBox.ButtonRole.DestructiveRole)
    question.setDefaultButton(QMessageBox.StandardButton.Cancel)
    question.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    question.buttonClicked.connect(lambda clicked: yes() if clicked is delete else None)
    question.open()
    return question
