"""A module of the user's own that misbehaves while it is imported, started from the form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from gradacc_gui import cli
from gradacc_gui.run.log_tail import MOST_LINES
from gradacc_gui.window.main_window import MainWindow
from tests.end2end.hand import Hand
from tests.support.trainers import events
from trainer_backend.protocol import RunFailed, RunStarted, RunStopped
from trainer_backend.run_directory import RunDirectory

MakeWindow = Callable[[], MainWindow]
PRINTED_BYTES = 100_000_000


@pytest.fixture
def start(
    qtbot: QtBot, make_window: MakeWindow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[Hand, RunDirectory]]:
    """Write a task by the template, put lines before it, press Start."""

    def begun(lines: str) -> tuple[Hand, RunDirectory]:
        assert cli.main(["new", "task", str(tmp_path / "mine.py")]) == 0
        capsys.readouterr()
        module = tmp_path / "mine.py"
        module.write_text(lines + module.read_text("utf-8"), "utf-8")
        hand = Hand(qtbot, make_window())
        hand.open_form(tmp_path / "mine.toml")
        hand.fill_in("run.device", "cpu")
        hand.fill_in("run.epochs", "1")
        return hand, hand.press_start()

    return begun


Start = Callable[[str], tuple[Hand, RunDirectory]]


def test_one_that_raises_is_told_with_its_line(start: Start) -> None:
    """The banner names the error, the file and the line; none of our own frames."""
    hand, run = start("import json\n\nraise RuntimeError('no data today')\n")
    hand.wait_for_state("failed")
    failed = hand.window.live.notices.failed
    hand.wait(lambda: not failed.isHidden())
    said = failed.sentence.text() + failed.more.text()
    assert "no data today" in said
    assert "mine.py:3" in said
    assert "trainer_backend" not in said
    assert len(events(run, RunFailed)) == 1


def test_one_that_hangs_is_stopped(start: Start) -> None:
    """The window tells that it is still being prepared, and a stop needs no patience."""
    hand, run = start("import time\nprint('hanging', flush=True)\ntime.sleep(600)\n")
    hand.wait(lambda: "hanging" in run.log_path.read_text("utf-8"))
    assert events(run, RunStarted) == []
    stop = hand.window.live.side.buttons.stop_clean
    hand.wait(stop.isEnabled)
    stop.trigger()
    hand.wait_for_state("stopped")
    assert len(events(run, RunStopped)) == 1


def test_one_that_prints_100_mb_trains_and_its_end_can_be_read(start: Start) -> None:
    """The log tab, open all the while, shows a bounded end of it; the window goes on."""
    hand, run = start(
        f"for _ in range({PRINTED_BYTES} // 1000):\n    print('x' * 999)\nprint('that was all')\n"
    )
    hand.window.live.show_tab("log")
    hand.wait_for_state("finished")
    log = hand.window.live.ensure_log().text
    hand.wait(lambda: "that was all" in log.toPlainText())  # its last lines come as the process ends
    assert run.log_path.stat().st_size > PRINTED_BYTES
    assert log.blockCount() <= MOST_LINES
    assert "of earlier output are in the file" in log.toPlainText()
