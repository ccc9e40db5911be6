"""Start, Verify, and what stands in the way of both."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QBoxLayout, QVBoxLayout, QWidget

from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import button, label, put
from gradacc_gui.words import tr


class StartBar(QWidget):
    """The buttons are enabled only while everything is right."""

    start_clicked = Signal()
    verify_clicked = Signal()
    look_clicked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.setMinimumWidth(200)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(2))
        self.box = QBoxLayout(QBoxLayout.Direction.TopToBottom)
        self.box.setSpacing(space(2))
        self.look = button("", role="fault", clicked=self.look_clicked.emit)
        self.why = label("", "error", wrap=True)
        self.verify = button(tr("Verify equality first"), clicked=self.verify_clicked.emit)
        self.verify.setToolTip(
            tr("Compares the gradients of N micro-batches with those of one large batch, on this model.")
        )
        self.start = button(tr("Start"), role="primary", clicked=self.start_clicked.emit)
        self.start.setShortcut(QKeySequence("Ctrl+Return"))
        self.start.setToolTip(tr("Start the run (Ctrl+Return)"))
        column.addWidget(self.look)
        column.addWidget(self.why)
        column.addLayout(self.box)
        self.box.addWidget(self.verify)
        self.box.addWidget(self.start)
        for made in (self.verify, self.start):
            made.setMinimumHeight(34)
        self.say(faults=0, why="")

    def say(self, *, faults: int, why: str) -> None:
        """How many fields need a look, and what else is in the way ("" is nothing)."""
        words = (
            tr("One field needs a look before the run can start.")
            if faults == 1
            else tr("{count} fields need a look before the run can start.").format(count=faults)
        )
        self.look.setText(words)
        self.look.setVisible(bool(faults))
        put(self.why, "" if faults else why)
        self.why.setVisible(bool(self.why.text()))
        for made in (self.verify, self.start):
            made.setEnabled(not faults and not why)

    def set_horizontal(self, horizontal: bool) -> None:
        """One row at the page's foot, or a column at its side."""
        direction = QBoxLayout.Direction.LeftToRight if horizontal else QBoxLayout.Direction.TopToBottom
        self.box.setDirection(direction)
