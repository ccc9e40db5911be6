"""What the equivalence certificate is, and how to get one."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLineEdit, QVBoxLayout, QWidget

from gradacc_gui.theme import mono_font, space
from gradacc_gui.window.parts import Panel, label
from gradacc_gui.words import tr


class VerifyPage(QWidget):
    """One large batch against N micro-batches, for this model, loss and data."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        column = QVBoxLayout(self)
        column.setContentsMargins(space(5), space(4), space(5), space(4))
        column.setSpacing(space(3))
        column.addWidget(label(tr("Verify"), "page-title"))
        panel = Panel(tr("Is accumulation exact for your model?"))
        panel.setMaximumWidth(720)
        text = tr(
            "The certificate takes one large batch and the same samples as N micro-batches, and compares "
            "their gradients in fp64 and in the run's own precision: relative error, cosine, and the layers "
            "or losses that break equality, by name. It runs beside your training, in a terminal:"
        )
        panel.body.addWidget(label(text, wrap=True))
        self.command = QLineEdit("gradacc verify RECIPE")
        self.command.setReadOnly(True)
        self.command.setFont(mono_font())
        self.command.setAccessibleName(tr("Command"))
        panel.body.addWidget(self.command)
        column.addWidget(panel, 0, Qt.AlignmentFlag.AlignTop)
        column.addStretch(1)
