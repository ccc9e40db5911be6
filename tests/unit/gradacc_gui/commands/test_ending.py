"""What Ctrl-C and SIGTERM ask of a run that `gradacc run` follows."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gradacc_gui.cli import main
from gradacc_gui.commands import running
from gradacc_gui.session.following import Follower
from gradacc_gui.session.stopping import Act
from tests.support import stand_in
from tests.support.trainers import ROOT
from trainer_backend.journal import JournalWriter
from trainer_backend.protocol import PhaseEntered
from trainer_backend.run_directory import RunDirectory


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> list[Act]:
    """What would have been done."""
    done: list[Act] = []
    monkeypatch.setattr(running, "perform", lambda act, *_args, **_more: done.append(act))
    return done


def watch() -> Any:
    """What follows a run, as far as signals go."""
    run = stand_in.new_run()
    return running._Watch(run, Follower(run), as_json=True)


def test_ctrl_c_goes_up_to_the_end_by_force(acts: list[Act]) -> None:
    """Each one says what the next does."""
    watched = watch()
    for _ in range(5):
        watched._climb(signal.SIGINT)
    assert acts == [Act.ASK, Act.ASK_NOW, Act.TERMINATE, Act.KILL]


def test_a_save_is_not_cut_short_before_it_was_said_what_that_costs(
    acts: list[Act], capsys: pytest.CaptureFixture[str]
) -> None:
    """The last Ctrl-C is asked for once more, with how far the save is."""
    watched = watch()
    facts = watched._follower.facts
    facts.phase, facts.phase_done = "saving", 0.43
    for _ in range(4):
        watched._climb(signal.SIGINT)
    assert acts == [Act.ASK, Act.ASK_NOW, Act.TERMINATE]
    assert "A checkpoint is being saved (43%)" in capsys.readouterr().err
    watched._climb(signal.SIGINT)
    assert acts[-1] is Act.KILL


def test_sigterm_never_ends_a_trainer_by_force(acts: list[Act]) -> None:
    """Programs send it, as often as they like: a person's wish alone does."""
    watched = watch()
    for _ in range(9):
        watched._climb(signal.SIGTERM)
    assert acts == [Act.ASK, Act.ASK_NOW]


HOLDS = """
import sys, time
from pathlib import Path
from trainer_backend.run_directory import RunDirectory
with RunDirectory(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(600)
"""


class Terminal(io.StringIO):
    """A person at a terminal who types what was given."""

    def isatty(self) -> bool:
        """There is one."""
        return True


@pytest.fixture
def live_run() -> Iterator[RunDirectory]:
    """A run whose lock a process holds that does nothing."""
    run = stand_in.new_run()
    command = [sys.executable, "-c", HOLDS, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield run
        process.kill()


def test_a_run_is_ended_by_force_after_it_was_said_what_that_costs(
    live_run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anything but yes leaves it."""
    writer = JournalWriter(live_run.journal_path, attempt=1)
    writer.put(PhaseEntered(phase="saving", done_ratio=0.43))
    assert writer.close()
    monkeypatch.setattr(sys, "stdin", Terminal("\n"))
    assert main(["stop", live_run.id, "--by-force"]) == 1
    said = capsys.readouterr().err
    assert "A checkpoint is being saved (43%); it would be lost. This run has no checkpoint:" in said
    assert live_run.is_alive()

    (live_run.checkpoints_path / "step-000000012").mkdir(parents=True)
    monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
    assert main(["stop", live_run.id, "--by-force"]) == 0
    said = capsys.readouterr().err
    assert "What was trained after step 12, the newest checkpoint, is lost." in said
    assert f"gradacc resume {live_run.id}" in said
    assert not live_run.is_alive()


def test_where_nobody_can_be_asked_a_run_is_ended_by_force_only_with_yes(
    live_run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script says so; nothing ends by force by itself."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    assert main(["stop", live_run.id, "--by-force"]) == 2
    assert "add --yes" in capsys.readouterr().err
    assert live_run.is_alive()
    assert main(["stop", live_run.id, "--by-force", "--yes"]) == 0
    assert not live_run.is_alive()
    assert main(["stop", live_run.id, "--by-force", "--yes"]) == 1
    assert "is not live" in capsys.readouterr().err
