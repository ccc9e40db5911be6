"""What was answered: texts side by side, or what a picture shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QPlainTextEdit, QVBoxLayout, QWidget

from gradacc_gui.run.numbers import count
from gradacc_gui.session.background import Background
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.artifact_files import LoadedPicture, Unreadable, load_picture
from gradacc_gui.widgets.parts import Bar, ElidedLabel, Panel, clear_widget, label, put
from gradacc_gui.widgets.picture_view import PictureView
from gradacc_gui.words import tr
from trainer_backend.trying.try_messages import Who, Written

CLASSES: Final = 8
LARGEST: Final = QSize(1600, 640)


class TextAnswer(Panel):
    """One model's answer, growing while it is written."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setAccessibleName(title)
        self.text.setTabChangesFocus(True)
        self.text.setMinimumHeight(96)
        set_role(self.text, "log")
        self.body.addWidget(self.text, 1)

    def clear(self, hint: str = "") -> None:
        """Nothing is answered yet."""
        self.text.clear()
        put(self.hint, hint)

    def add(self, text: str) -> None:
        """More of it."""
        cursor = self.text.textCursor()
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text)

    def finish(self, written: Written) -> None:
        """All of it."""
        self.text.setPlainText(written.text)
        speed = written.tokens / written.duration_s if written.duration_s else 0.0
        words = tr("{tokens} tokens, {speed} per second").format(
            tokens=count(written.tokens), speed=f"{speed:.1f}"
        )
        if not written.ended:
            words = tr("{tokens} tokens (the limit), {speed} per second").format(
                tokens=count(written.tokens), speed=f"{speed:.1f}"
            )
        put(self.hint, words)

    def fail(self, sentence: str) -> None:
        """Why there is none."""
        self.text.setPlainText(sentence)
        put(self.hint, tr("no answer"))


class TextAnswers(QWidget):
    """The run's answer beside the base model's."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("clear")
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(space(3))
        self.of: dict[Who, TextAnswer] = {
            "run": TextAnswer(tr("This run")),
            "base": TextAnswer(tr("Base model")),
        }
        for panel in self.of.values():
            row.addWidget(panel, 1)

    def begin(self, *, with_base: bool) -> None:
        """A question was asked."""
        for panel in self.of.values():
            panel.clear()
        self.of["base"].setVisible(with_base)


class PictureAnswer(Panel):
    """A picture and the shares of its classes."""

    def __init__(self) -> None:
        super().__init__(tr("This run"))
        row = QHBoxLayout()
        row.setSpacing(space(4))
        self.picture = PictureView()
        row.addWidget(self.picture, 3, Qt.AlignmentFlag.AlignTop)
        self._side = clear_widget()
        self._grid = QGridLayout(self._side)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(space(3))
        column = QVBoxLayout()
        column.addWidget(self._side)
        column.addStretch(1)
        row.addLayout(column, 2)
        self.body.addLayout(row)
        self._background: Background | None = None
        self.names: list[str] = []
        """Of the classes that are shown, the likeliest first."""

    def begin(self, path: Path) -> None:
        """Show the picture that is asked about."""
        self._show_shares(())
        self._show(path)

    def finish(self, shares: Sequence[tuple[str, float]], picture: str) -> None:
        """Show what was found in it."""
        self._show_shares(shares)
        if picture:
            self._show(Path(picture))

    def _show(self, path: Path) -> None:
        """A thread decodes it. One that Qt cannot read is not shown: the trainer may read it all the same."""
        self.picture.release()
        if self._background is None:
            self._background = Background()
        self._background.submit(
            lambda: load_picture(path, LARGEST), self._shown, lambda _sentence: None, only_one="picture"
        )

    def _shown(self, loaded: LoadedPicture | Unreadable) -> None:
        if isinstance(loaded, LoadedPicture):
            self.picture.show_picture(loaded)

    def tick(self) -> None:
        """Take a picture that was decoded."""
        if self._background is not None:
            self._background.poll()

    def shut_down(self) -> None:
        """Let the decoding thread go."""
        if self._background is not None:
            self._background.close()
            self._background = None

    def _show_shares(self, shares: Sequence[tuple[str, float]]) -> None:
        while item := self._grid.takeAt(0):
            widget = item.widget()
            if widget is not None:
                widget.hide()
                widget.deleteLater()
        self.names = [name for name, _ in shares[:CLASSES]]
        for place, (name, share) in enumerate(shares[:CLASSES]):
            bar = Bar(0)
            bar.set_ratio(share)
            bar.setMinimumWidth(60)
            self._grid.addWidget(ElidedLabel(name), place, 0)
            self._grid.addWidget(bar, place, 1)
            self._grid.addWidget(label(f"{share:.1%}", "help"), place, 2, Qt.AlignmentFlag.AlignRight)
        self._grid.setColumnStretch(0, 2)
        self._grid.setColumnStretch(1, 3)
