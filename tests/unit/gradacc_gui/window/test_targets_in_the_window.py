"""Targets on the Live page: how they stand, and the question of a run that a miss has paused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gradacc_gui.run.attachment import Attachment
from gradacc_gui.window.live_page import LivePage
from gradacc_gui.window.pages import make_charts
from tests.support.fake_runs import Plan, write_run
from trainer_backend.inbox import Inbox
from trainer_backend.journal import JournalWriter
from trainer_backend.protocol import (
    AnswerGate,
    AnyEvent,
    CheckpointSaved,
    GateAnswered,
    Paused,
    Resumed,
    RollBack,
    RolledBack,
    TargetJudged,
)
from trainer_backend.run_directory import RunDirectory

TARGETS = """
[evaluation]
every_samples = 100

[checkpoint]
keep = 2
keep_best = 1

[targets]
step_time = 0.5
validation_loss = 2.3
on_miss = "pause"

[prices]
per_hour = 1.0

[[targets.metric]]
name = "accuracy"
at_least = 0.9
by_sample = 5000
"""


def judged(
    key: str, verdict: Literal["met", "missed", "unknown"], reached: float | None, **more: Any
) -> TargetJudged:
    """A verdict."""
    limits: dict[str, tuple[Literal["at-most", "at-least"], float]] = {
        "targets.step_time": ("at-most", 0.5),
        "targets.validation_loss": ("at-most", 2.3),
        "targets.metric.accuracy": ("at-least", 0.9),
    }
    bound, limit = limits[key]
    given: dict[str, Any] = {"act": "pause", "step": 20, "samples_seen": 640} | more
    return TargetJudged(key=key, bound=bound, target=limit, reached=reached, verdict=verdict, **given)


MISSED = judged("targets.validation_loss", "missed", 2.41, acted=True, measurements=3)
ASKING = (MISSED, Paused(command_id="", step=20, samples_seen=640))


class Shown:
    """A live run on its page; facts are written as its trainer would."""

    def __init__(self, qtbot: QtBot, folder: Path) -> None:
        self.run: RunDirectory = write_run(folder, Plan(steps=20, checkpoint_every=0, evaluate_every=0))
        text = self.run.recipe_path.read_text("utf-8")
        self.run.recipe_path.write_text(text + TARGETS, "utf-8")
        self.lock = self.run.locked()
        self.lock.__enter__()
        self.attachment = Attachment(self.run)
        assert self.attachment.config is not None
        self.page = LivePage(make_charts)
        qtbot.addWidget(self.page)
        self.page.resize(1196, 652)
        self.page.show()
        self.page.set_run(self.attachment)
        self.tick()

    def tick(self) -> None:
        """Until all that was written is shown."""
        while True:
            facts = self.attachment.tick()
            self.page.take(facts)
            if self.attachment.store.caught_up and not facts:
                break
        self.page.tick(slow=True)

    def put(self, *events: AnyEvent) -> None:
        """Write facts, and show them."""
        writer = JournalWriter(self.run.journal_path, attempt=1)
        for event in events:
            writer.put(event)
        writer.close()
        self.tick()

    def commands(self) -> list[Any]:
        """What was asked of the trainer."""
        return Inbox(self.run.inbox_path).poll()

    def close(self) -> None:
        """Let go of it."""
        self.page.set_run(None)
        self.page.shut_down()
        self.attachment.close()
        self.lock.__exit__(None, None, None)


@pytest.fixture
def shown(qtbot: QtBot, styled: QApplication, tmp_path: Path) -> Iterator[Shown]:
    """A run with three targets."""
    made = Shown(qtbot, tmp_path)
    yield made
    made.close()


def rows(shown: Shown) -> list[tuple[str, str, str]]:
    """The panel's texts."""
    return [
        (quantity.text(), verdict.text(), detail.text())
        for quantity, verdict, detail in shown.page.side.targets.rows
    ]


def test_each_target_shows_its_bound_and_whether_it_is_met_so_far(shown: Shown) -> None:
    """Before anything is measured none is known; then each says what was reached."""
    assert [verdict for _, verdict, _ in rows(shown)] == ["not yet known"] * 3
    shown.put(
        judged("targets.step_time", "met", 0.151, measurements=20),
        judged("targets.validation_loss", "missed", 2.41, act="note"),
    )
    assert rows(shown) == [
        ("Median step time", "met", "0.151 s, at most 0.5 s"),
        ("Validation loss", "missed", "2.41, at most 2.3"),
        ("Accuracy", "not yet known", "at least 0.9"),
    ]
    assert shown.page.side.targets.hint.text() == "1 missed"
    tip = shown.page.side.targets.rows[0][0].toolTip()
    assert tip == "20 measurements; a miss pauses the run."
    assert not shown.page.notices.gate.isVisible()


@pytest.mark.parametrize("answer", ["continue", "stop", "roll-back"])
def test_a_run_that_a_miss_has_paused_asks_and_takes_the_answer(
    shown: Shown, answer: Literal["continue", "stop", "roll-back"]
) -> None:
    """With the reason, once."""
    shown.put(*ASKING)
    notices = shown.page.notices
    assert notices.gate.isVisible()
    assert not notices.paused.isVisible()
    assert notices.gate.sentence.text() == (
        "A target is missed, and the run waits for your answer: validation loss is 2.41; the target is"
        " at most 2.3."
    )
    notices.reason.setText("still warming up")
    notices.answers[answer].click()
    notices.answers[answer].click()
    (command,) = shown.commands()
    assert isinstance(command, AnswerGate)
    assert (command.answer, command.reason) == (answer, "still warming up")


@pytest.mark.parametrize(
    "after",
    [
        [
            GateAnswered(
                command_id="1",
                step=20,
                key=MISSED.key,
                answer="continue",
                reason="",
                asked_by="a",
                asked_at=1.0,
            ),
            Resumed(command_id="1", step=20, samples_seen=640),
        ],
        [Resumed(command_id="1", step=20, samples_seen=640)],
    ],
    ids=["answered", "resumed elsewhere"],
)
def test_an_answer_from_anywhere_takes_the_question_away(shown: Shown, after: list[AnyEvent]) -> None:
    """And what was typed for it."""
    shown.put(*ASKING)
    shown.page.notices.reason.setText("half a")
    shown.put(*after)
    assert not shown.page.notices.gate.isVisible()
    assert shown.page.notices.reason.text() == ""


def test_an_override_is_told_beside_the_target(shown: Shown) -> None:
    """It stays missed."""
    shown.put(judged("targets.validation_loss", "missed", 2.4, overridden=True))
    assert rows(shown)[1][1] == "missed, went on"


def test_a_pause_that_a_person_asked_for_is_no_question(shown: Shown) -> None:
    """Though a target was missed before: that was a note."""
    shown.put(judged("targets.validation_loss", "missed", 2.4, act="note", acted=True))
    shown.put(Paused(command_id="x", step=20, samples_seen=640))
    assert not shown.page.notices.gate.isVisible()
    assert shown.page.notices.paused.isVisible()


def saved(step: int, **more: Any) -> CheckpointSaved:
    """A checkpoint."""
    return CheckpointSaved(
        command_id=None, step=step, samples_seen=step * 32, path="", size_bytes=1, duration_s=0.1, **more
    )


def test_the_best_checkpoint_stays_on_offer_beside_the_newest(shown: Shown) -> None:
    """First, with its metric; each way back is a menu of its own."""
    shown.put(saved(4, kept_as="best", value=1.9), saved(8), saved(12), saved(16))
    buttons = shown.page.side.buttons
    texts = ["step 4, the best (1.9)", "step 16", "step 12"]
    for menu in (buttons.roll_back_menu, buttons.skip_menu, buttons.slower_menu):
        assert [action.text() for action in menu.actions()] == texts
    buttons.skip_menu.actions()[0].trigger()
    buttons.slower_menu.actions()[1].trigger()
    buttons.roll_back_menu.actions()[2].trigger()
    asked = [(one.step, one.skip_samples, one.learning_rate_factor) for one in shown.commands()]
    assert all(isinstance(one, RollBack) for one in shown.commands())
    assert asked == [(4, True, None), (16, False, 0.5), (12, False, None)]


def test_a_roll_back_ends_the_question(shown: Shown) -> None:
    """Whoever asked for it."""
    shown.put(saved(4), *ASKING)
    shown.put(
        RolledBack(
            command_id=None,
            from_step=20,
            to_step=4,
            to_samples=128,
            to_tokens=0,
        ),
        Resumed(command_id=None, step=4, samples_seen=128),
    )
    assert not shown.page.notices.gate.isVisible()


def test_a_run_without_targets_has_no_panel(
    qtbot: QtBot, styled: QApplication, tmp_path: Path, shown: Shown
) -> None:
    """And none stays from the run before."""
    assert shown.page.side.targets.isVisible()
    other = Attachment(write_run(tmp_path, Plan(name="other", steps=3)))
    shown.page.set_run(other)
    shown.page.tick(slow=True)
    assert not shown.page.side.targets.isVisible()
    shown.page.set_run(None)
    other.close()
