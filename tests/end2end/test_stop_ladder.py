"""A trainer that ignores everything is ended all the same, rung by rung, by the window that asked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from gradacc_gui.run import attachment
from gradacc_gui.session.stopping import Ladder, Patience, Rung
from gradacc_gui.window.main_window import MainWindow
from tests.end2end.hand import Hand
from tests.support.trainers import Trainer, events, make_run
from trainer_backend.protocol import RunStarted
from trainer_backend.run_directory import RunDirectory

SHORT = Patience(asked_s=0.6, asked_now_s=0.6, terminated_s=0.6)
DEAF_TASK = """
import itertools
import time
import torch
from pathlib import Path
from trainer_backend.tasks import Datasets, LossTerm
MORE

class Task:
    def model(self):
        return torch.nn.Linear(1, 1)
    def datasets(self):
        return Datasets(train=torch.utils.data.TensorDataset(torch.ones(64, 1)))
    def loss(self, model, batch):
        if not Path(__file__).with_name("closed-ears").exists():
            return LossTerm(model(batch[0]).square().sum(), len(batch[0]))
        DEAF
"""
# Comes to no bytecode: no other thread runs, no signal is taken.
HOLDS_THE_INTERPRETER = "sum(itertools.repeat(1))"
BUSY_LOOP = "while True: pass"
RECIPE = {
    "run": {"device": "cpu", "max_optimizer_steps": 100_000},
    "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
}


def deaf_run(folder: Path, deaf: str, more: str = "") -> RunDirectory:
    """A run whose user code does only `deaf` any more once a file closed-ears lies beside it."""
    module = folder / "deaf_task.py"
    module.write_text(DEAF_TASK.replace("DEAF", deaf).replace("MORE", more), encoding="utf-8")
    return make_run(folder / "run", RECIPE, module=module)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows whose patience ends soon."""
    monkeypatch.setattr(attachment, "Ladder", functools.partial(Ladder, patience=SHORT))


def deafen(hand: Hand, run: RunDirectory, source: Path) -> None:
    """Open a window on the run, see it train, then let the user's code close its ears."""
    hand.window.open_run(run)
    hand.wait_for_state("running")
    hand.wait_for_steps(2)
    (source / "closed-ears").touch()


def climbed(hand: Hand) -> dict[Rung, str]:
    """Each rung that the window goes through until the run is over, with what it says below the header."""
    seen: dict[Rung, str] = {}
    window = hand.window

    def look() -> bool:
        assert window.run is not None
        if window.run.state == "stopping":
            seen[window.run.ladder.rung] = window.live.side.buttons.words.text()
        return window.run.state not in ("running", "stopping")

    hand.wait(look)
    return seen


@pytest.mark.usefixtures("short")
def test_a_trainer_deaf_to_all_is_asked_asked_at_once_terminated_and_killed(
    qtbot: QtBot, make_window: Callable[[], MainWindow], tmp_path: Path
) -> None:
    """A C call that never lets the interpreter go: one click, and the window climbs; it says each rung."""
    run = deaf_run(tmp_path, HOLDS_THE_INTERPRETER)
    with Trainer(run) as trainer:
        hand = Hand(qtbot, make_window())
        deafen(hand, run, tmp_path / "run")
        hand.window.live.side.buttons.stop_clean.trigger()
        told = climbed(hand)
        assert trainer.wait() == -9

    assert list(told) == [rung for rung in RUNGS if rung in told], "rungs only rise"
    assert set(told) >= {Rung.ASKED, Rung.ASKED_NOW, Rung.TERMINATED}
    for rung, words in RUNGS.items():
        assert words in told.get(rung, words)
    hand.wait_for_interruption()
    assert len(events(run, RunStarted)) == 1
    hand.wait(hand.window.live.side.buttons.resume.isVisible)


RUNGS = {
    Rung.ASKED: "Stopping: the trainer finishes this step",
    Rung.ASKED_NOW: "Stopping now",
    Rung.TERMINATED: "did not exit",
    Rung.KILLED: "was killed",
}


@pytest.mark.usefixtures("short")
def test_only_the_window_that_asked_climbs(
    qtbot: QtBot, make_window: Callable[[], MainWindow], tmp_path: Path
) -> None:
    """The other one shows that the run is stopping, and ends nothing by force."""
    run = deaf_run(tmp_path, BUSY_LOOP)
    with Trainer(run) as trainer:
        asking, looking = Hand(qtbot, make_window()), Hand(qtbot, make_window())
        looking.window.open_run(run)
        deafen(asking, run, tmp_path / "run")
        asking.window.live.side.buttons.stop_now.trigger()
        climbed(asking)
        assert trainer.wait() == -9
        looking.wait_for_interruption()
        assert looking.window.run is not None
        assert looking.window.run.ladder.rung is Rung.RUNNING


HUNG_SAVE = """
from trainer_backend.trainer import checkpoint
checkpoint._sha256 = lambda path: time.sleep(600)
"""


@pytest.mark.usefixtures("short")
def test_a_save_is_ended_by_a_person_who_was_asked_and_by_nothing_else(
    qtbot: QtBot, make_window: Callable[[], MainWindow], tmp_path: Path
) -> None:
    """A disk that hangs: the window waits past every patience, says what ending would cost, and obeys."""
    run = deaf_run(tmp_path, "pass", HUNG_SAVE)
    with Trainer(run) as trainer:
        hand = Hand(qtbot, make_window())
        window = hand.window
        window.open_run(run)
        hand.wait_for_state("running")
        hand.wait_for_steps(2)
        buttons = window.live.side.buttons
        buttons.stop_clean.trigger()
        attached = window.run
        assert attached is not None
        hand.wait(lambda: attached.is_saving)
        told = len(attached.store.facts)
        hand.wait(lambda: len(attached.store.facts) >= told + 3)  # one a second, of how far it is
        assert (attached.ladder.rung, trainer.process.poll()) == (Rung.ASKED, None)
        assert "Saving a checkpoint" in window.header.strip_words.text()

        for answer in ("Cancel", "End by force"):
            buttons.stop_force.trigger()
            question = window.live.question
            assert question is not None
            cost = question.informativeText()
            assert "A checkpoint is being saved" in cost
            assert "This run has no checkpoint: everything it has trained is lost." in cost
            (button,) = [each for each in question.buttons() if each.text().replace("&", "") == answer]
            button.click()
            if answer == "Cancel":
                assert attached.ladder.rung is Rung.ASKED
        assert attached.ladder.rung is Rung.KILLED
        assert trainer.wait() == -9
        hand.wait_for_interruption()


def test_a_trainer_ends_itself_when_its_users_code_does_not_come_back(
    qtbot: QtBot, make_window: Callable[[], MainWindow], tmp_path: Path
) -> None:
    """Asked to stop now in a busy loop: it waits only so long for it, says that it stopped, and is gone."""
    soon = "import trainer_backend.trainer.lifecycle as it; it.LAST_RESORT_S = 0.5"
    run = deaf_run(tmp_path, f"{soon}\n        {BUSY_LOOP}")
    with Trainer(run) as trainer:
        hand = Hand(qtbot, make_window())
        deafen(hand, run, tmp_path / "run")
        hand.window.live.side.buttons.stop_now.trigger()
        assert list(climbed(hand)) == [Rung.ASKED_NOW]
        assert trainer.wait() == 0
        hand.wait_for_state("stopped")
