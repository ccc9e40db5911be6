"""The tab that asks a run's newest checkpoint: what it offers, what it asks, what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gradacc_gui.run.attachment import Attachment
from gradacc_gui.trying import export_panel
from gradacc_gui.trying.try_tab import TryTab
from tests.support.fake_results import picture
from tests.support.fake_runs import Plan, write_run
from trainer_backend.run_directory import RunDirectory
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


@pytest.fixture
def tab(qtbot: QtBot, styled: QApplication) -> Iterator[TryTab]:
    """At the room that a window of 1280 x 720 leaves it."""
    made = TryTab()
    qtbot.addWidget(made)
    made.resize(860, 560)
    made.show()
    yield made
    made.shut_down()


@pytest.fixture
def asked(tab: TryTab, monkeypatch: pytest.MonkeyPatch) -> list[AnyQuestion]:
    """What reaches the process, which is not started."""
    questions: list[AnyQuestion] = []
    monkeypatch.setattr(tab.process, "ask", lambda _run, question: questions.append(question))
    return questions


@pytest.fixture
def attach(tmp_path: Path) -> Iterator[Callable[..., Attachment]]:
    """Open a run of a kind, with a checkpoint at each of these steps."""
    opened: list[Attachment] = []

    def make(task: str, *steps: int) -> Attachment:
        run = write_run(tmp_path, Plan(steps=20, checkpoint_every=0, end="stopped"))
        text = run.recipe_path.read_text("utf-8").replace('kind = "language-model"', task)
        run.recipe_path.write_text(text, "utf-8")
        for step in steps:
            save(run, step)
        opened.append(Attachment(run))
        assert opened[-1].config is not None
        return opened[-1]

    yield make
    for attachment in opened:
        attachment.close()


def save(run: RunDirectory, step: int) -> None:
    """A checkpoint's folder, without what is in it."""
    (run.checkpoints_path / f"step-{step:09}").mkdir(parents=True)


TEXT = 'kind = "language-model"'
CHAT = 'kind = "causal-lm"\nmodel = "some/model"\nmethod = "lora"\n\n[data]\npath = "chats.jsonl"'
DIGITS = 'kind = "image-classification"\nmodel = "resnet18"\n\n[data]\npath = "digits"'
OWN = 'kind = "custom"\nentry = "mine.py:Task"'
OPENED = Opened(step=10, takes="prompt", has_template=True, has_base=True, device="CPU")


def type_and_ask(tab: TryTab, text: str) -> None:
    """As a person does: type, Ctrl+Enter."""
    tab.activateWindow()
    tab.prompt.text.setFocus()
    QTest.keyClicks(tab.prompt.text, text)
    QTest.keyClick(tab.prompt.text, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)


def test_a_prompt_is_asked_of_the_newest_checkpoint_and_answered_side_by_side(
    tab: TryTab, asked: list[AnyQuestion], attach: Callable[..., Attachment]
) -> None:
    """The answer grows while it is written; its length and speed are said; the next may be asked."""
    tab.set_run(attach(CHAT, 5, 10))
    assert tab.title.text() == "Try step 10"
    assert not tab.prompt.ask.isEnabled()
    type_and_ask(tab, "hello")
    assert asked == [Prompt(text="hello", as_chat=True, with_base=True)]
    assert tab.prompt.ask.text() == "Cancel"

    message: AnyTryMessage
    for message in (
        TryProgress(code="opening-run"),
        OPENED,
        AnswerPart(who="run", text="good "),
        AnswerPart(who="run", text="morning"),
    ):
        tab.process.heard.emit(message)
    assert tab.texts.of["run"].text.toPlainText() == "good morning"
    for message in (
        Written(who="run", text="good morning.", tokens=40, duration_s=2.0, ended=True),
        Written(who="base", text="hello hello", tokens=200, duration_s=4.0, ended=False),
        Answered(),
    ):
        tab.process.heard.emit(message)
    assert tab.texts.of["run"].text.toPlainText() == "good morning."
    assert tab.texts.of["run"].hint.text() == "40 tokens, 20.0 per second"
    assert tab.texts.of["base"].hint.text() == "200 tokens (the limit), 50.0 per second"
    assert tab.doing.text() == "on CPU"
    assert tab.prompt.ask.text() == "Ask"


def test_options_are_asked_as_they_stand(
    tab: TryTab, asked: list[AnyQuestion], attach: Callable[..., Attachment]
) -> None:
    """And what the opened run can do is offered."""
    tab.set_run(attach(CHAT, 10))
    tab.process.heard.emit(OPENED)
    tab.prompt.chat.setChecked(False)
    tab.prompt.base.setChecked(False)
    tab.prompt.tokens.setValue(3)
    tab.prompt.temperature.setValue(0.7)
    type_and_ask(tab, "a")
    assert asked == [Prompt(text="a", most_tokens=3, temperature=0.7, with_base=False)]
    assert not tab.texts.of["base"].isVisible()


def test_a_model_from_scratch_has_neither_a_base_nor_a_template(
    tab: TryTab, asked: list[AnyQuestion], attach: Callable[..., Attachment]
) -> None:
    """So neither is offered."""
    tab.set_run(attach(TEXT, 10))
    assert not tab.prompt.base.isVisible()
    assert not tab.prompt.chat.isVisible()
    assert not tab.exports.isVisible()
    type_and_ask(tab, "x")
    assert asked == [Prompt(text="x", with_base=False)]


def test_a_refusal_stands_where_the_answer_would(
    tab: TryTab, asked: list[AnyQuestion], attach: Callable[..., Attachment]
) -> None:
    """One model's beside the other's answer; one of all above."""
    tab.set_run(attach(CHAT, 10))
    type_and_ask(tab, "x")
    tab.process.heard.emit(TryRefused(message="The base model is not there.", who="base"))
    assert tab.texts.of["base"].text.toPlainText() == "The base model is not there."
    assert not tab.problem.isVisible()
    tab.process.heard.emit(TryRefused(message="The prompt is too long."))
    assert tab.problem.sentence.text() == "The prompt is too long."
    assert asked


def test_a_failed_process_is_told_and_the_next_question_starts_another(
    tab: TryTab, asked: list[AnyQuestion], attach: Callable[..., Attachment]
) -> None:
    """Nothing stays busy."""
    tab.set_run(attach(CHAT, 10))
    type_and_ask(tab, "x")
    tab.process.failed.emit("Out of memory.", "a traceback's last line")
    assert tab.problem.isVisible()
    assert tab.prompt.ask.text() == "Ask"
    tab.prompt.ask.click()
    assert len(asked) == 2
    assert not tab.problem.isVisible()


def test_a_picture_is_looked_at(
    qtbot: QtBot, tab: TryTab, asked: list[AnyQuestion], attach: Callable[..., Attachment], tmp_path: Path
) -> None:
    """It is shown while it is asked about; then the shares of its classes, the likeliest first."""
    path = tmp_path / "digit.png"
    assert picture(3, 40, 30).save(str(path))
    tab.set_run(attach(DIGITS, 10))
    assert not tab.prompt.isVisible()
    tab.picture.path.edited.emit(str(path))
    tab.picture.look.click()
    assert asked == [Look(path=str(path))]
    tab.process.heard.emit(PictureClasses(shares=(("three", 0.9), ("eight", 0.1))))
    tab.process.heard.emit(Answered())
    assert tab.seen.names == ["three", "eight"]

    def is_shown() -> bool:
        tab.tick()
        return tab.seen.picture.holds_picture

    qtbot.waitUntil(is_shown, timeout=60_000)


def test_weights_are_saved_where_a_person_says_and_the_commands_for_gguf_can_be_copied(
    tab: TryTab,
    asked: list[AnyQuestion],
    attach: Callable[..., Attachment],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A folder that is there already is not written over."""
    run = attach(CHAT, 10)
    tab.set_run(run)
    (tmp_path / f"{run.run.id}-merged").mkdir()
    monkeypatch.setattr(export_panel, "ask_for_folder", lambda *given: given[-1](tmp_path))
    assert tab.exports.buttons["adapter"].isVisible()
    assert not tab.exports.buttons["model"].isVisible()
    tab.exports.buttons["merged"].click()
    folder = str(tmp_path / f"{run.run.id}-merged-2")
    assert asked == [HandOver(what="merged", folder=folder)]
    tab.process.heard.emit(
        HandedOver(what="merged", folder=folder, size_bytes=2**30, commands=("convert a", "quantize b"))
    )
    tab.process.heard.emit(Answered())
    assert folder in tab.exports.where.text()
    tab.exports.copy.click()
    assert QApplication.clipboard().text() == "convert a\nquantize b"


def test_what_cannot_be_tried_says_why(tab: TryTab, attach: Callable[..., Attachment]) -> None:
    """A run without a checkpoint, and a task of one's own."""
    tab.set_run(attach(TEXT))
    assert "no checkpoint to try yet" in tab.empty.text()
    assert not tab.prompt.isVisible()
    tab.set_run(attach(OWN, 10))
    assert "A task of your own" in tab.empty.text()
    assert not tab.prompt.isVisible()
    tab.set_run(None)


def test_a_newer_checkpoint_is_the_one_that_is_asked(tab: TryTab, attach: Callable[..., Attachment]) -> None:
    """The title follows what is on the disk."""
    run = attach(TEXT, 10)
    tab.set_run(run)
    assert tab.title.text() == "Try step 10"
    save(run.run, 1200)
    tab.tick()
    assert tab.title.text() == "Try step 1,200"
