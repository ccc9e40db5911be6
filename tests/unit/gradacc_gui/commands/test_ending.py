"""What Ctrl-C and SIGTERM ask of a run that `gradacc run` follows."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from gradacc_gui.commands import running
from gradacc_gui.session.following import Follower
from gradacc_gui.session.stopping import Act
from tests.support import stand_in


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
