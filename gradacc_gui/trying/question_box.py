"""Where a person asks: a prompt with its options, or a picture."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QCheckBox, QDoubleSpinBox, QHBoxLayout, QPlainTextEdit, QSpinBox, QVBoxLayout

from gradacc_gui.form.editors import PathEdit
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.line_edit import clean
from gradacc_gui.widgets.parts import Panel, button, label
from gradacc_gui.words import tr
from trainer_backend.trying.try_messages import Look, Opened, Prompt


class PromptBox(Panel):
    """A prompt, how it is posed, and how long the answer may be."""

    asked = Signal(object)
    """A `Prompt`."""
    cancel_asked = Signal()

    def __init__(self) -> None:
        super().__init__(tr("Prompt"), tr("Ctrl+Enter asks"))
        self._busy = False
        self.text = QPlainTextEdit()
        self.text.setTabChangesFocus(True)
        self.text.setPlaceholderText(tr("Write what you want to ask the model."))
        self.text.setAccessibleName(tr("Prompt"))
        self.text.setFixedHeight(76)
        self.body.addWidget(self.text)
        self.chat = QCheckBox(tr("As a chat message"))
        self.chat.setToolTip(tr("Pose the prompt by the chat template, as chats are trained."))
        self.thinks = QCheckBox(tr("Let it reason"))
        self.base = QCheckBox(tr("Ask the base model too"))
        self.tokens = QSpinBox()
        self.tokens.setRange(1, 65_536)
        self.tokens.setValue(200)
        self.tokens.setAccessibleName(tr("Most tokens"))
        self.temperature = QDoubleSpinBox()
        self.temperature.setRange(0.0, 5.0)
        self.temperature.setSingleStep(0.1)
        self.temperature.setAccessibleName(tr("Temperature"))
        self.temperature.setToolTip(tr("0 takes the likeliest token each time."))
        self.ask = button(tr("Ask"), role="primary", clicked=self._press)
        row = QHBoxLayout()
        row.setSpacing(space(3))
        for widget in (self.chat, self.thinks, self.base):
            row.addWidget(widget)
        row.addStretch(1)
        for words, spin in ((tr("Most tokens"), self.tokens), (tr("Temperature"), self.temperature)):
            row.addWidget(label(words, "muted"))
            row.addWidget(spin)
        row.addWidget(self.ask)
        self.body.addLayout(row)
        for keys in ("Ctrl+Return", "Ctrl+Enter"):
            shortcut = QShortcut(QKeySequence(keys), self.text)
            shortcut.setContext(Qt.ShortcutContext.WidgetShortcut)
            shortcut.activated.connect(self._press)
        self.text.textChanged.connect(self._refresh)
        self.reset(is_chat=False, has_base=False)

    def reset(self, *, is_chat: bool, has_base: bool) -> None:
        """Another run; what it can do is known once it is opened."""
        self.chat.setVisible(is_chat)
        self.chat.setChecked(is_chat)
        self.thinks.hide()
        self.base.setVisible(has_base)
        self.base.setChecked(has_base)
        self._refresh()

    def take(self, opened: Opened) -> None:
        """Offer what the opened run can do."""
        self.chat.setVisible(opened.has_template)
        self.thinks.setVisible(opened.has_thinking)
        self.base.setVisible(opened.has_base)

    def set_busy(self, busy: bool) -> None:
        """While one question is answered the button cancels it."""
        self._busy = busy
        self._refresh()

    def _refresh(self) -> None:
        self.ask.setText(tr("Cancel") if self._busy else tr("Ask"))
        set_role(self.ask, "" if self._busy else "primary")
        self.ask.setEnabled(self._busy or bool(self.text.toPlainText().strip()))

    def _press(self) -> None:
        if self._busy:
            self.cancel_asked.emit()
        elif self.ask.isEnabled():
            self.asked.emit(
                Prompt(
                    text=clean(self.text.toPlainText()),
                    as_chat=self.chat.isChecked(),
                    thinks=self.thinks.isChecked(),
                    most_tokens=self.tokens.value(),
                    temperature=self.temperature.value(),
                    with_base=self.base.isChecked(),
                )
            )


class PictureBox(Panel):
    """A picture's file."""

    asked = Signal(object)
    """A `Look`."""
    cancel_asked = Signal()

    def __init__(self) -> None:
        super().__init__(tr("Picture"), tr("type a path, browse, or drop a file"))
        self._busy = False
        self.path = PathEdit("file")
        self.path.edited.connect(self._edited)
        self._path = ""
        self.look = button(tr("Look at it"), role="primary", clicked=self._press)
        row = QHBoxLayout()
        row.setSpacing(space(2))
        row.addWidget(self.path, 1)
        row.addWidget(self.look)
        column = QVBoxLayout()
        column.addLayout(row)
        self.body.addLayout(column)
        self._refresh()

    def reset(self, folder: Path) -> None:
        """Another run, whose data lies near `folder`."""
        self.path.set_folder(folder)
        self._refresh()

    def set_busy(self, busy: bool) -> None:
        """While one picture is looked at the button cancels it."""
        self._busy = busy
        self._refresh()

    def _edited(self, text: str) -> None:
        self._path = text.strip()
        self._refresh()

    def _refresh(self) -> None:
        self.look.setText(tr("Cancel") if self._busy else tr("Look at it"))
        set_role(self.look, "" if self._busy else "primary")
        self.look.setEnabled(self._busy or bool(self._path))

    def _press(self) -> None:
        if self._busy:
            self.cancel_asked.emit()
        else:
            self.asked.emit(Look(path=str(Path(self._path).expanduser())))
