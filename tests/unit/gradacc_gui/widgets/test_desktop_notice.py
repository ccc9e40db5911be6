"""Desktop notices: of what happens now, while nobody looks."""

from __future__ import annotations

import time

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from gradacc_gui.widgets.desktop_notice import DesktopNotices
from trainer_backend.protocol import AlertRaised, AnyEvent, Paused, Record, RunFinished

ALERT = AlertRaised(code="data-wait", step=700, since_step=500, samples_seen=1, value=0.31, usual=0.2)
FINISHED = RunFinished(step=900, samples_seen=1, reason="epochs")


@pytest.fixture
def notices(qtbot: QtBot) -> DesktopNotices:
    """Of a window that is not the active one."""
    window = QWidget()
    qtbot.addWidget(window)
    return DesktopNotices(window)


def told(notices: DesktopNotices, *events: AnyEvent, age_s: float = 0.0) -> list[str]:
    """What is shown for these facts."""
    at = time.time() - age_s
    notices.take("digits", [Record(1, 1, at, event) for event in events])
    return notices.shown


def test_alerts_and_ends_are_shown_and_nothing_else(notices: DesktopNotices) -> None:
    """A pause was somebody's own doing."""
    shown = told(notices, ALERT, Paused(command_id=None, step=3, samples_seen=1), FINISHED)
    assert [text.partition(".")[0] for text in shown] == [
        "31 % of the time waits for data since step 500", "Finished at step 900",
    ]  # fmt: skip


def test_history_that_is_read_now_is_not_news(notices: DesktopNotices) -> None:
    """A window that opens an old run says nothing."""
    assert told(notices, ALERT, age_s=3600) == []


def test_who_looks_at_the_window_needs_no_notice(
    notices: DesktopNotices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says it."""
    monkeypatch.setattr(QWidget, "isActiveWindow", lambda _self: True)
    assert told(notices, ALERT) == []
