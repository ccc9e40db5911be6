"""A recipe's check with a real process: the first step is shown, the ends are ends, and nothing is left."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from gradacc_gui.checking.check_view import CheckView
from gradacc_gui.session.interpreter import probe
from tests.support.scenes import write_scenes

SCENES = """
[run]
device = "cpu"
epochs = 1
[task]
kind = "segmentation"
encoder = "resnet18"
classes = 3
tile_size = 32
batch_norm = "group-norm"
[data]
images = "images"
masks = "masks"
[accumulation]
micro_batch_size = 2
gradient_accumulation_steps = 2
"""
SLOW = """
import time
class Task:
    def model(self): ...
    def datasets(self): time.sleep(600)
    def loss(self, model, batch): ...
"""


@pytest.fixture
def view(qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckView]:
    """A shown view whose temporary folders can be seen."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    made = CheckView()
    qtbot.addWidget(made)
    made.resize(1150, 620)
    made.show()
    yield made
    made.close_down()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_pictures_come_before_the_checks_and_stay_until_the_next(
    view: CheckView, qtbot: QtBot, tmp_path: Path
) -> None:
    """The copies that are looked at lie in a folder of the check's own."""
    write_scenes(tmp_path, count=4, side=64)
    view.check((SCENES, tmp_path, "scenes", sys.executable))
    qtbot.waitUntil(lambda: bool(view.pictures.tiles), timeout=90_000)
    qtbot.waitUntil(lambda: view.state == "done", timeout=90_000)
    assert view.verdict.headline.text() == "Ready to start"
    assert view.report is not None
    assert view.report.refused is None
    assert len(view.pictures.tiles) == 4
    assert all(not tile._picture.isNull() and not tile._mask.isNull() for tile in view.pictures.tiles)
    assert view.classes.isVisibleTo(view)
    assert len(list((tmp_path / "scratch").iterdir())) == 1
    view.check((SCENES.replace("classes = 3", "classes = 9"), tmp_path, "scenes", sys.executable))
    qtbot.waitUntil(lambda: view.state == "done", timeout=90_000)
    assert view.verdict.headline.text() == "1 problem to fix before starting"
    assert len(list((tmp_path / "scratch").iterdir())) == 1


def test_another_recipe_takes_the_place_of_one_that_takes_long(
    view: CheckView, qtbot: QtBot, tmp_path: Path
) -> None:
    """The first is ended; what it would have found is never shown."""
    (tmp_path / "slow_task.py").write_text(SLOW, encoding="utf-8")
    slow = '[run]\nepochs = 1\n[task]\nkind = "custom"\nentry = "slow_task:Task"\n'
    view.check((slow, tmp_path, "slow", sys.executable))
    qtbot.waitUntil(lambda: view._doing == "Reading all of the data…", timeout=60_000)
    view.check(("[run]\nepochs = 0\n", tmp_path, "bad", sys.executable))
    qtbot.waitUntil(lambda: view.state == "failed", timeout=60_000)
    assert "run.epochs" in view.verdict.more.text()


def test_a_check_is_cancelled(view: CheckView, qtbot: QtBot, tmp_path: Path) -> None:
    """At once; what was found stays."""
    (tmp_path / "slow_task.py").write_text(SLOW, encoding="utf-8")
    slow = '[run]\nepochs = 1\n[task]\nkind = "custom"\nentry = "slow_task:Task"\n'
    view.check((slow, tmp_path, "slow", sys.executable))
    qtbot.waitUntil(lambda: view._doing == "Reading all of the data…", timeout=60_000)
    view.cancel()
    qtbot.waitUntil(lambda: not view.process.is_running, timeout=10_000)
    assert view.verdict.headline.text() == "The check was cancelled"


def test_a_process_that_waits_is_the_one_that_checks(view: CheckView, qtbot: QtBot, tmp_path: Path) -> None:
    """Its libraries are loaded already; one that nobody needs is let go of."""
    write_scenes(tmp_path, count=4, side=64)
    known = probe(sys.executable)
    view.warm_up(known, "segmentation")
    qtbot.waitUntil(lambda: view.process._standby.is_there, timeout=30_000)
    assert not view.process.is_running
    waiting = view.process._standby._process
    assert waiting is not None
    qtbot.waitUntil(lambda: waiting.processId() > 0, timeout=30_000)
    pid = waiting.processId()
    view.check((SCENES, tmp_path, "scenes", sys.executable), known)
    qtbot.waitUntil(lambda: view.process._process is not None, timeout=30_000)
    assert view.process._process is not None
    assert view.process._process.processId() == pid
    qtbot.waitUntil(lambda: view.state == "done", timeout=90_000)
    assert view.report is not None
    assert view.report.refused is None
    view.warm_up(known, "language-model")
    qtbot.waitUntil(lambda: view.process._standby.is_there, timeout=30_000)
    view.cool()
    assert not view.process._standby.is_there
