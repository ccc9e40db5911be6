"""The system is kept awake while asked to, and a refusal is a sentence and no more."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from gradacc_gui.session import awake as module
from gradacc_gui.session.awake import Awake
from tests.support.waiting import wait_for


def use(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let this program stand for the system's inhibitor."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(module, "_command", lambda: [sys.executable, "-c", code])


def test_the_system_is_held_until_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a child that is gone afterwards."""
    use(monkeypatch, "import sys; sys.stdin.read()")
    before = set(psutil.Process().children())  # a resource tracker, say, of an earlier test
    awake = Awake()
    awake.hold()
    awake.hold()
    (child,) = set(psutil.Process().children()) - before
    assert awake.problem() == ""

    awake.release()
    awake.release()

    wait_for(lambda: not child.is_running())
    assert awake.problem() == ""


def test_the_holder_ends_when_we_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its input closes, however we end."""
    use(monkeypatch, "import sys; sys.stdin.read()")
    awake = Awake()
    awake.hold()
    assert awake._child is not None
    assert awake._child.stdin is not None
    awake._child.stdin.close()

    wait_for(lambda: awake._child is None or awake._child.poll() is not None)
    awake.release()


def test_a_refusal_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the system's own last word."""
    use(monkeypatch, "import sys; sys.exit('Failed to connect to bus')")
    awake = Awake()
    awake.hold()

    wait_for(lambda: awake.problem() != "")

    assert awake.problem() == (
        "The system cannot be kept awake: Failed to connect to bus. Turn sleep off in its own settings."
    )
    awake.release()


def test_a_system_without_a_way_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No systemd-inhibit on the path."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    awake = Awake()
    awake.hold()

    assert "systemd-inhibit is not installed" in awake.problem()
    awake.release()
