"""Saves a run's weights for other programs, and shows the commands that make a GGUF file of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PySide6.QtCore import Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QPlainTextEdit, QPushButton

from gradacc_gui.run.numbers import gibibytes
from gradacc_gui.theme import mono_font, set_role
from gradacc_gui.widgets.desktop import ask_for_folder
from gradacc_gui.widgets.parts import SELECTABLE, Panel, button, label, put
from gradacc_gui.words import tr
from trainer_backend.config import RunConfig
from trainer_backend.kinds.causal_lm import CausalLMTask
from trainer_backend.trying.try_messages import ExportKind, HandedOver, HandOver

NAMES: Final[dict[ExportKind, str]] = {
    "merged": "Save merged weights…",
    "adapter": "Save adapter…",
    "model": "Save weights…",
}


def exports_of(config: RunConfig | None) -> tuple[ExportKind, ...]:
    """What a run of this recipe can give, as its task says once it is opened."""
    if config is None or config.kind in ("custom", "language-model"):
        return ()
    if isinstance(config.task, CausalLMTask):
        by_method: dict[str, tuple[ExportKind, ...]] = {"full": ("model",), "qlora": ("adapter",)}
        return by_method.get(config.task.method, ("merged", "adapter"))
    return ("model",)


class ExportPanel(Panel):
    """Buttons for what can be saved, and where it went."""

    asked = Signal(object)
    """A `HandOver`."""

    def __init__(self) -> None:
        super().__init__(tr("For other programs"))
        self.buttons: dict[ExportKind, QPushButton] = {}
        self._name = ""
        for what, words in NAMES.items():
            made = button(tr(words), clicked=functools.partial(self._choose, what))
            self.buttons[what] = made
            self.head.insertWidget(self.head.count() - 1, made)
        self.where = label(wrap=True)
        self.where.setTextInteractionFlags(SELECTABLE)
        self.commands = QPlainTextEdit()
        self.commands.setReadOnly(True)
        self.commands.setFont(mono_font(12))
        self.commands.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.commands.setTabChangesFocus(True)
        self.commands.setAccessibleName(tr("Commands for a GGUF file"))
        set_role(self.commands, "log")
        self.copy = button(tr("Copy"), role="quiet", clicked=self._copy)
        for widget in (self.where, self.commands, self.copy):
            self.body.addWidget(widget)
        self.set_exports((), "")

    def set_exports(self, exports: Sequence[ExportKind], name: str) -> None:
        """Another run: `name` begins the folders that are proposed."""
        self._name = name
        for what, made in self.buttons.items():
            made.setVisible(what in exports)
        self.setVisible(bool(exports))
        for widget in (self.where, self.commands, self.copy):
            widget.hide()

    def set_busy(self, busy: bool) -> None:
        """One thing at a time."""
        for made in self.buttons.values():
            made.setEnabled(not busy)

    def finish(self, handed: HandedOver) -> None:
        """Say where it lies, and how a GGUF file is made of it."""
        words = tr("Saved to {folder} ({size}).").format(
            folder=handed.folder, size=gibibytes(handed.size_bytes)
        )
        if handed.commands:
            words += " " + tr("For a GGUF file (llama.cpp, Ollama, LM Studio), run in a terminal:")
        put(self.where, words)
        self.where.show()
        self.commands.setPlainText("\n".join(handed.commands))
        lines = len(handed.commands) + 1
        self.commands.setFixedHeight(self.commands.fontMetrics().lineSpacing() * lines + 30)
        for widget in (self.commands, self.copy):
            widget.setVisible(bool(handed.commands))

    def _choose(self, what: ExportKind) -> None:
        ask_for_folder(
            self,
            tr("Save a new folder in"),
            Path.home(),
            lambda folder: self.asked.emit(HandOver(what=what, folder=str(self._free(folder, what)))),
        )

    def _free(self, folder: Path, what: ExportKind) -> Path:
        wanted = folder / f"{self._name}-{what}"
        number = 2
        while wanted.exists():
            wanted = folder / f"{self._name}-{what}-{number}"
            number += 1
        return wanted

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.commands.toPlainText())
