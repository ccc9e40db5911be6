"""What fills a page that has nothing to show: no run yet, or one that is still loading."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QProgressBar, QVBoxLayout, QWidget

from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import IconLabel, button, label, put
from gradacc_gui.words import tr
from trainer_backend.run_directory import runs_folder


class EmptyState(QWidget):
    """One button that starts the demo, one for a recipe."""

    demo_requested = Signal()
    recipe_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("clear")
        column = QVBoxLayout(self)
        column.setAlignment(Qt.AlignmentFlag.AlignCenter)
        column.setSpacing(space(3))
        column.addWidget(IconLabel("live", "accent", 40), 0, Qt.AlignmentFlag.AlignCenter)
        self.title = label(tr("No run yet"), "page-title")
        self.title.setAlignment(Qt.AlignmentFlag.AlignCenter)
        column.addWidget(self.title)
        self.words = label(
            tr(
                "The demo trains a small language model on the source of Python's own standard library: "
                "nothing is downloaded, and the first points appear within ten seconds. You can also "
                "open a recipe, or fill in the form on New run."
            ),
            "muted",
            wrap=True,
        )
        self.words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.words.setFixedWidth(460)
        column.addWidget(self.words, 0, Qt.AlignmentFlag.AlignCenter)
        row = QHBoxLayout()
        row.setAlignment(Qt.AlignmentFlag.AlignCenter)
        row.setSpacing(space(2))
        self.demo = button(tr("Start the demo"), role="primary", clicked=self.demo_requested.emit)
        self.recipe = button(tr("Open a recipe…"), clicked=self.recipe_requested.emit)
        for made in (self.demo, self.recipe):
            made.setMinimumWidth(150)
            row.addWidget(made)
        column.addLayout(row)

    def showEvent(self, event: QShowEvent) -> None:
        """Say "No run yet" only where there is none."""
        super().showEvent(event)
        folder = runs_folder()
        has_runs = folder.is_dir() and any(folder.iterdir())
        put(self.title, tr("No run is open") if has_runs else tr("No run yet"))


class LoadingState(QWidget):
    """The middle of a page while nothing can be drawn yet: what happens now, moving bar, explanation."""

    def __init__(self) -> None:
        super().__init__()
        column = QVBoxLayout(self)
        column.setAlignment(Qt.AlignmentFlag.AlignCenter)
        column.setSpacing(space(3))
        self.sentence = label(role="page-title")
        self.more = label(role="muted", wrap=True)
        self.more.setMaximumWidth(480)
        self.more.setMinimumWidth(360)
        for text in (self.sentence, self.more):
            text.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.bar = QProgressBar()
        self.bar.setRange(0, 0)
        self.bar.setTextVisible(False)
        self.bar.setFixedWidth(240)
        column.addWidget(self.sentence)
        column.addWidget(self.bar, 0, Qt.AlignmentFlag.AlignCenter)
        column.addWidget(self.more)

    def say(self, sentence: str, more: str, *, moving: bool) -> None:
        """What happens now; `moving` shows that it is being worked on."""
        put(self.sentence, sentence)
        put(self.more, more)
        self.bar.setVisible(moving)
