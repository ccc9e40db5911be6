"""Which Python trains: chosen as in an IDE, probed beside the GUI thread, mended only after asking."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, assert_never

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QStyle, QStyleOptionComboBox, QStylePainter

from gradacc_gui.form.editors import ComboBox
from gradacc_gui.form.form_memory import FormMemory
from gradacc_gui.session import interpreter as found
from gradacc_gui.session.background import Background
from gradacc_gui.session.interpreter import Install, Interpreter
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.desktop import ask_for_file
from gradacc_gui.widgets.parts import Panel, button, label, put
from gradacc_gui.words import tr
from trainer_backend.errors import GradaccError
from trainer_backend.kinds import KINDS
from trainer_backend.optimizer_table import OPTIMIZERS

BROWSE: Final = "browse"
POLL_MS: Final = 40
ProbeAnswer: TypeAlias = tuple[Interpreter, list[Install]] | str
"""What a probe found and what must be installed first, or the sentence that says why it cannot train."""


class PathBox(ComboBox):
    """A choice of paths, the chosen one cut in the middle, all of it in the tool-tip."""

    def paintEvent(self, _event: QPaintEvent) -> None:
        """As usual, with the text cut in the middle."""
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        room = self.style().subControlRect(
            QStyle.ComplexControl.CC_ComboBox, option, QStyle.SubControl.SC_ComboBoxEditField, self
        )
        option.currentText = self.fontMetrics().elidedText(
            self.currentText(), Qt.TextElideMode.ElideMiddle, room.width() - space(1)
        )
        painter = QStylePainter(self)
        painter.drawComplexControl(QStyle.ComplexControl.CC_ComboBox, option)
        painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)
        painter.end()


class InterpreterPanel(Panel):
    """Runs with …; `changed` comes when the chosen interpreter or what is known of it changes."""

    changed = Signal()

    def __init__(self, memory: FormMemory) -> None:
        super().__init__(tr("Runs with"))
        self._memory = memory
        self._background: Background | None = None
        self._answers: dict[str, ProbeAnswer] = {}
        self._asking: set[str] = set()
        self._installing = ""
        self._timer = QTimer(self)
        self._timer.setInterval(POLL_MS)
        self._timer.timeout.connect(self._poll)
        self.box = PathBox()
        self.box.setAccessibleName(tr("Interpreter"))
        self.box.edited.connect(self._picked)
        self.words = label("", "help", wrap=True)
        self.mend = button(tr("Install…"), clicked=self._mend)
        self.cancel = button(tr("Not now"), clicked=self._forget_asking)
        row = QHBoxLayout()
        row.setSpacing(space(2))
        row.addWidget(self.mend)
        row.addWidget(self.cancel)
        row.addStretch(1)
        self.body.addWidget(self.box)
        self.body.addWidget(self.words)
        self.body.addLayout(row)
        self._asked_to_install = False
        self._chosen = memory.last_interpreter() or sys.executable
        self.offer(None)

    # ------------------------------------------------------------------ what is chosen

    @property
    def interpreter(self) -> str:
        """The chosen interpreter's path."""
        return self._chosen

    @property
    def answer(self) -> ProbeAnswer | None:
        """What is known of it; None while it is asked."""
        return self._answers.get(self._chosen)

    @property
    def known(self) -> Interpreter | None:
        """What a probe found; None while it is asked, or where it is no Python that trains."""
        match self.answer:
            case (Interpreter() as known, _):
                return known
            case _:
                return None

    @property
    def sentence(self) -> str:
        """Why it cannot start a run now; empty: it can, or is still being asked."""
        match self.answer:
            case str() as why:
                return why
            case (_, [*needed]) if needed:
                return tr("The interpreter lacks packages that the trainer needs.")
            case _:
                return ""

    def lacks(self, kind: str) -> tuple[str, ...]:
        """Modules that a kind of task needs and the chosen interpreter does not have."""
        match self.answer:
            case (Interpreter() as known, _):
                return tuple(name for name in KINDS[kind].requires if not known.modules.get(name, False))
            case _:
                return ()

    def package_for(self, optimizer: str) -> str:
        """What an optimizer needs and the chosen interpreter does not have; empty: it has all."""
        row = OPTIMIZERS.get(optimizer)
        match self.answer:
            case (Interpreter() as known, _) if row is not None and row.module:
                return "" if known.modules.get(row.module, False) else row.package
            case _:
                return ""

    def install_command(self, kind: str) -> str:
        """What a person types to get a kind's libraries into the chosen interpreter."""
        return f'"{self._chosen}" -m {KINDS[kind].install}'

    def offer(self, folder: Path | None) -> None:
        """List the interpreters that are found, those of `folder` (the recipe's) first."""
        paths = [self._chosen, *self._memory.interpreters(), *map(str, found.candidates(folder))]
        self.box.clear()
        for path in _each_once(paths):
            self.box.addItem(short_path(path), path)
            self.box.setItemData(self.box.count() - 1, path, Qt.ItemDataRole.ToolTipRole)
        self.box.addItem(tr("Browse…"), BROWSE)
        self.box.set_text(self._chosen)
        self._say()

    def choose(self, path: str) -> None:
        """Use another interpreter from now on."""
        self._chosen = path
        self._asked_to_install = False
        if self.box.findData(path) < 0:
            self.box.insertItem(0, short_path(path), path)
        self.box.set_text(path)
        self.ask()
        self.changed.emit()

    def _picked(self, path: str) -> None:
        if path == BROWSE:
            self.box.set_text(self._chosen)
            ask_for_file(self, tr("Choose a Python interpreter"), Path(self._chosen).parent, self._browsed)
            return
        self._memory.use_interpreter(path)
        self.choose(path)

    def _browsed(self, path: Path) -> None:
        self._memory.remember_interpreter(str(path))
        self._picked(str(path))

    # ------------------------------------------------------------------ asking it

    def ask(self) -> None:
        """Probe the chosen interpreter, unless it was or is being probed."""
        path = self._chosen
        self._say()
        if path in self._answers or path in self._asking:
            return
        self._asking.add(path)
        self._work().submit(lambda: _probe(path), partial(self._know, path), partial(self._know, path))
        self._timer.start()

    def _work(self) -> Background:
        if self._background is None:
            self._background = Background()
        return self._background

    def _know(self, path: str, answer: ProbeAnswer) -> None:
        self._asking.discard(path)
        self._answers[path] = answer
        if path == self._chosen:
            self._say()
            self.changed.emit()

    def _poll(self) -> None:
        if self._background is not None:
            self._background.poll()
            if self._background.is_busy:
                return
        self.shut_down()  # nothing is under way: no thread waits for the next question

    # ------------------------------------------------------------------ mending it

    def _mend(self) -> None:
        match self.answer:
            case (_, [*needed]) if needed and not self._asked_to_install:
                self._asked_to_install = True
                self._say()
            case (_, [*needed]) if needed:
                self._install(needed)
            case str():
                QGuiApplication.clipboard().setText(f'"{self._chosen}" -m pip install torch')
                put(self.words, tr("Copied. Run it in a terminal, then choose the interpreter again."))
                self._answers.pop(self._chosen)
            case _:
                return

    def _forget_asking(self) -> None:
        self._asked_to_install = False
        self._say()

    def _install(self, needed: list[Install]) -> None:
        path = self._installing = self._chosen
        self._say()
        self._work().submit(
            lambda: _install_and_probe(path, needed),
            partial(self._installed, path),
            partial(self._installed, path),
        )
        self._timer.start()

    def _installed(self, path: str, answer: ProbeAnswer) -> None:
        self._installing = ""
        self._asked_to_install = False
        self._know(path, answer)

    # ------------------------------------------------------------------ saying it

    def _say(self) -> None:
        self.box.setToolTip(self._chosen)
        self.mend.setVisible(False)
        self.cancel.setVisible(False)
        role, sentence = "help", tr("Reading its version and torch…")
        match self.answer:
            case None:
                pass
            case str() as why:
                role, sentence = "error", why
                self.mend.setVisible("no torch" in why)
                self.mend.setText(tr("Copy the command"))
            case (known, [*needed]) if needed:
                role = "warning"
                sentence = self._say_needed(known, needed)
            case (Interpreter() as known, _):
                sentence = _facts(known)
            case _ as never:
                assert_never(never)
        put(self.words, sentence)
        set_role(self.words, role)
        self.box.setAccessibleDescription(sentence)

    def _say_needed(self, known: Interpreter, needed: list[Install]) -> str:
        names = ", ".join(install.need.package for install in needed)
        if self._installing == self._chosen:
            return tr("Installing {names}…").format(names=names)
        self.mend.setVisible(True)
        self.cancel.setVisible(self._asked_to_install)
        if not self._asked_to_install:
            self.mend.setText(tr("Install…"))
            return tr("{facts}. It lacks {names}, which the trainer needs.").format(
                facts=_facts(known), names=names
            )
        self.mend.setText(tr("Install now"))
        return tr(
            "Install {names} with pip, from the package index that pip is set up for, into a folder of"
            " gradacc's own ({folder})? The interpreter itself is not changed."
        ).format(names=names, folder=str(needed[0].target.parent))

    def shut_down(self) -> None:
        """Wait for what is under way and let go of the worker thread."""
        self._timer.stop()
        if self._background is not None:
            self._background.close()
            self._background = None


def _each_once(paths: Iterable[str]) -> list[str]:
    """The first path to each interpreter: python, python3 and python3.11 of one folder are one.

    Links are not followed beyond the folder, for an environment's Python is a link to the system's.
    """
    first: dict[tuple[str, str], str] = {}
    for path in paths:
        stem = os.path.basename(path).removesuffix(".exe").rstrip("0123456789.")  # noqa: PTH119 - any text
        first.setdefault((os.path.realpath(os.path.dirname(path)), stem), path)  # noqa: PTH120 - likewise
    return list(first.values())


def _probe(path: str) -> ProbeAnswer:
    needed = {name for kind in KINDS.values() for name in kind.requires}
    modules = sorted(needed | {row.module for row in OPTIMIZERS.values() if row.module})
    try:
        known = found.probe(path, modules=modules)
        return known, found.installs(known)
    except GradaccError as error:
        return str(error)


def _install_and_probe(path: str, needed: list[Install]) -> ProbeAnswer:
    try:
        for install in needed:
            install.run()
    except GradaccError as error:
        return str(error)
    return _probe(path)


def _facts(known: Interpreter) -> str:
    cuda = tr("CUDA {version}").format(version=known.cuda_version) if known.cuda_version else tr("no CUDA")
    return tr("Python {python}, torch {torch}, {cuda}").format(
        python=known.version_text, torch=known.torch_version, cuda=cuda
    )


def short_path(path: str) -> str:
    """A path with the home folder as ~."""
    try:
        return str(Path("~") / Path(path).relative_to(Path.home()))
    except ValueError:
        return path
