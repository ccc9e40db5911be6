"""Asks a run's newest checkpoint: a prompt or a picture, its answers, and weights for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, assert_never

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QHBoxLayout, QScrollArea, QVBoxLayout, QWidget

from gradacc_gui.run.attachment import Attachment
from gradacc_gui.run.numbers import count
from gradacc_gui.theme import space
from gradacc_gui.trying.answer_panel import PictureAnswer, TextAnswers
from gradacc_gui.trying.export_panel import ExportPanel, exports_of
from gradacc_gui.trying.question_box import PictureBox, PromptBox
from gradacc_gui.trying.try_process import TryProcess
from gradacc_gui.widgets.parts import Notice, label, put
from gradacc_gui.words import tr
from trainer_backend.kinds.causal_lm import CausalLMTask
from trainer_backend.run_directory import checkpoints_in
from trainer_backend.trying.try_messages import (
    Answered,
    AnswerPart,
    AnyQuestion,
    AnyTryMessage,
    HandedOver,
    HandOver,
    Look,
    Opened,
    PictureClasses,
    Prompt,
    TryProgress,
    TryRefused,
    Written,
)

Takes: TypeAlias = Literal["prompt", "picture", "nothing"]
TAKES: Final[dict[str, Takes]] = {
    "causal-lm": "prompt",
    "language-model": "prompt",
    "image-classification": "picture",
    "segmentation": "picture",
}
"""By kind of task."""
RETRY_MS: Final = 50
DOING: Final = {
    "importing-torch": "Starting the trainer's Python…",
    "opening-run": "Loading the newest checkpoint…",
    "opening-base": "Loading the base model…",
    "writing": "Writing…",
    "looking": "Looking…",
    "exporting": "Saving weights…",
}


class TryTab(QWidget):
    """One question at a time; the model stays in memory until another run, or a newer checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("clear")
        self._run: Attachment | None = None
        self._takes: Takes = "nothing"
        self._opened: Opened | None = None
        self._busy = False
        self._next: AnyQuestion | None = None
        """Asked while an older checkpoint was let go."""
        self.process = TryProcess(self)
        self.process.heard.connect(self._hear)
        self.process.failed.connect(self._fail)
        self.process.cancelled.connect(self._cancelled)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setWidget(self._build())
        outer.addWidget(area)

    def _build(self) -> QWidget:
        page = QWidget()
        page.setObjectName("page")
        column = QVBoxLayout(page)
        column.setContentsMargins(0, 0, space(2), 0)
        column.setSpacing(space(3))
        head = QHBoxLayout()
        self.title = label(role="title")
        self.doing = label(role="help")
        head.addWidget(self.title)
        head.addWidget(self.doing)
        head.addStretch(1)
        column.addLayout(head)
        self.problem = Notice("notice-warning")
        self.empty = label(role="muted", wrap=True)
        self.prompt = PromptBox()
        self.picture = PictureBox()
        self.texts = TextAnswers()
        self.seen = PictureAnswer()
        self.exports = ExportPanel()
        for widget in (self.problem, self.empty, self.prompt, self.picture):
            column.addWidget(widget)
        column.addWidget(self.texts, 1)
        column.addWidget(self.seen)
        column.addWidget(self.exports)
        column.addStretch(0)
        for box in (self.prompt, self.picture):
            box.asked.connect(self.ask)
            box.cancel_asked.connect(self.cancel)
        self.exports.asked.connect(self.ask)
        return page

    # -------------------------------------------------------------------------- which run

    def set_run(self, run: Attachment | None) -> None:
        """Another run, or none: the model of the one before is let go."""
        self._next = None
        self.process.cancel()
        self._run, self._opened = run, None
        config = None if run is None else run.config
        self._takes = TAKES.get(config.kind, "nothing") if config is not None else "nothing"
        task = None if config is None else config.task
        is_tuned = isinstance(task, CausalLMTask)
        self.prompt.reset(is_chat=is_tuned, has_base=is_tuned)
        if run is not None and config is not None:
            self.picture.reset(_source_folder(run))
        self.exports.set_exports(exports_of(config), "" if run is None else run.run.id)
        self.texts.begin(with_base=is_tuned)
        self.problem.hide()
        self._set_busy(busy=False)
        self.tick()

    def shut_down(self) -> None:
        """The window closes: no model stays in memory."""
        self.process.close()
        self.seen.shut_down()

    def tick(self) -> None:
        """Say which checkpoint is asked; called while the tab is in front."""
        self.seen.tick()
        if self._run is None:
            return
        step = self._newest()
        there = step is not None and self._takes != "nothing"
        self.prompt.setVisible(there and self._takes == "prompt")
        self.texts.setVisible(there and self._takes == "prompt")
        self.picture.setVisible(there and self._takes == "picture")
        self.seen.setVisible(there and self._takes == "picture")
        self.exports.setVisible(there and any(not made.isHidden() for made in self.exports.buttons.values()))
        self.empty.setVisible(not there)
        put(self.empty, self._nothing(step))
        asked = self._opened.step if self._opened is not None and self._busy else step
        put(self.title, tr("Try step {step}").format(step=count(asked)) if asked is not None else tr("Try"))

    def _nothing(self, step: int | None) -> str:
        if self._takes == "nothing":
            return tr(
                "A task of your own has no prompt or picture box. What its artifacts(model, folder) makes is"
                " shown under Results."
            )
        if step is None:
            return tr("There is no checkpoint to try yet. Press Checkpoint, or wait for the first one.")
        return ""

    def _newest(self) -> int | None:
        assert self._run is not None
        return next(reversed(checkpoints_in(self._run.run.checkpoints_path)), None)

    # -------------------------------------------------------------------------- asking

    def ask(self, question: AnyQuestion) -> None:
        """Ask the newest checkpoint."""
        if self._run is None or self._busy:
            return
        self.problem.hide()
        self._set_busy(busy=True)
        self._show_asked(question)
        if self.process.is_running and (self._opened is None or self._opened.step != self._newest()):
            self._next = question  # a newer one was saved: the old one is let go first
            self.process.cancel()
            return
        if not self.process.is_running:
            self._opened = None
            put(self.doing, tr(DOING["importing-torch"]))
        self.process.ask(self._run.run, question)

    def cancel(self) -> None:
        """End the answer at once; the model is let go with it."""
        self._next = None
        self.process.cancel()

    def _show_asked(self, question: AnyQuestion) -> None:
        match question:
            case Prompt(with_base=with_base):
                self.texts.begin(with_base=with_base)
            case Look(path=path):
                self.seen.begin(Path(path))
            case HandOver():
                pass
            case _:
                assert_never(question)

    def _set_busy(self, *, busy: bool) -> None:
        self._busy = busy
        for box in (self.prompt, self.picture, self.exports):
            box.set_busy(busy)
        if not busy:
            put(self.doing, self._standing())

    def _standing(self) -> str:
        if self._opened is None or not self._opened.device:
            return ""
        words = tr("on {device}").format(device=self._opened.device)
        return words + (tr(", averaged weights") if self._opened.is_average else "")

    # -------------------------------------------------------------------------- answers

    def _hear(self, message: AnyTryMessage) -> None:
        match message:
            case TryProgress(code=code):
                put(self.doing, tr(DOING.get(code, "")))
            case Opened():
                self._opened = message
                self.prompt.take(message)
            case AnswerPart(who=who, text=text):
                self.texts.of[who].add(text)
            case Written(who=who):
                self.texts.of[who].finish(message)
            case PictureClasses(shares=shares, picture=picture):
                self.seen.finish(shares, picture)
            case HandedOver():
                self.exports.finish(message)
            case TryRefused(message=sentence, who=who):
                if who is None:
                    self.problem.say(sentence)
                else:
                    self.texts.of[who].fail(sentence)
            case Answered():
                self._set_busy(busy=False)
            case _:
                assert_never(message)

    def _fail(self, sentence: str, lines: str) -> None:
        self._opened = None
        self.problem.say(sentence, lines if sentence != self.problem.sentence.text() else "")
        self._set_busy(busy=False)

    def _cancelled(self) -> None:
        self._opened = None
        if self._next is not None and self.process.is_running:
            QTimer.singleShot(RETRY_MS, self, self._cancelled)  # it is still being started
            return
        question, self._next = self._next, None
        if question is not None and self._run is not None:
            self.process.ask(self._run.run, question)
            return
        self._set_busy(busy=False)


def _source_folder(run: Attachment) -> Path:
    recipe: Any = run.run.recipe()
    folder: Path = recipe.folder
    return folder
