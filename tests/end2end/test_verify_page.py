"""The Verify page with real checks: their ends, and that nothing is left of them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from gradacc_gui.verify.verify_page import VerifyPage

RECIPE = """
[run]
device = "cpu"
max_optimizer_steps = 3

[task]
kind = "custom"
entry = "page_task:Task"

[accumulation]
micro_batch_size = 2
gradient_accumulation_steps = 2
"""

TASK = """
import time
import torch
from torch import nn
from trainer_backend.tasks import Datasets, LossTerm

class Task:
    def model(self):
        return nn.Linear(3, 2)

    def datasets(self):
        x = torch.arange(60.0).view(20, 3) / 60
        return Datasets(train=torch.utils.data.TensorDataset(x, x.sum(1).gt(1).long()))

    def loss(self, model, batch):
        {body}
"""

RIGHT = """x, y = batch
        return LossTerm(nn.functional.cross_entropy(model(x), y, reduction="sum"), len(y))"""


@pytest.fixture
def page(qtbot: QtBot) -> Iterator[VerifyPage]:
    """A shown page."""
    made = VerifyPage()
    qtbot.addWidget(made)
    made.resize(1200, 700)
    made.show()
    yield made
    made.close_down()


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders of a check go, so that what is left can be seen."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def state_of(page: VerifyPage) -> str:
    """Asked anew each time."""
    return page.state


def recipe_in(folder: Path, body: str = RIGHT) -> None:
    """A task beside a recipe."""
    (folder / "page_task.py").write_text(TASK.format(body=body), "utf-8")


def test_a_real_check_ends_in_a_certificate_and_leaves_nothing(
    page: VerifyPage, qtbot: QtBot, tmp_path: Path, scratch: Path
) -> None:
    """Beside the window, in the interpreter that trains."""
    recipe_in(tmp_path)
    page.set_recipe(RECIPE, tmp_path, sys.executable, "words.toml")
    with qtbot.waitSignal(page.finished, timeout=60_000) as made:
        page.begin.click()
        assert state_of(page) == "running"
    assert made.args is not None
    assert made.args[0].verdict == "equal"
    assert state_of(page) == "done"
    assert not page.process.is_running
    assert not list(scratch.iterdir())


def test_cancel_kills_it_at_once_and_leaves_nothing(
    page: VerifyPage, qtbot: QtBot, tmp_path: Path, scratch: Path
) -> None:
    """Also in the middle of the user's own endless code; then it can be run again."""
    recipe_in(tmp_path, "time.sleep(1000)")
    page.set_recipe(RECIPE, tmp_path, sys.executable, "words.toml")
    page.run()
    qtbot.waitUntil(lambda: "Timing a pass" in page.doing.text(), timeout=60_000)
    with qtbot.waitSignal(page.process.cancelled, timeout=10_000):
        page.stop.click()
    assert state_of(page) == "ready"
    assert not page.process.is_running
    assert not list(scratch.iterdir())


def test_cancel_before_the_process_is_there_is_a_cancel_too(
    page: VerifyPage, qtbot: QtBot, tmp_path: Path, scratch: Path
) -> None:
    """While the interpreter is still being probed."""
    recipe_in(tmp_path)
    page.set_recipe(RECIPE, tmp_path, sys.executable, "words.toml")
    page.run()
    page.cancel()
    assert state_of(page) == "ready"
    qtbot.waitUntil(lambda: not page.process.is_running, timeout=60_000)
    assert state_of(page) == "ready"
    assert not list(scratch.iterdir())


def test_a_task_that_fails_is_a_sentence_with_its_place(
    page: VerifyPage, qtbot: QtBot, tmp_path: Path
) -> None:
    """And a button to try again."""
    recipe_in(tmp_path, "raise ValueError('my slip')")
    page.set_recipe(RECIPE, tmp_path, sys.executable, "words.toml")
    with qtbot.waitSignal(page.process.failed, timeout=60_000):
        page.run()
    assert state_of(page) == "failed"
    assert "my slip" in page.why.text()
    assert "page_task.py" in page.why.text()
    assert page.retry.isVisible()


def test_a_window_that_closes_ends_the_check(qtbot: QtBot, tmp_path: Path, scratch: Path) -> None:
    """No process and no folder outlive it."""
    recipe_in(tmp_path, "time.sleep(1000)")
    page = VerifyPage()
    qtbot.addWidget(page)
    page.set_recipe(RECIPE, tmp_path, sys.executable, "words.toml")
    page.run()
    qtbot.waitUntil(lambda: "Timing a pass" in page.doing.text(), timeout=60_000)
    page.close_down()
    assert not page.process.is_running
    assert not list(scratch.iterdir())
