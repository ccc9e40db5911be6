"""Work that waits is done beside the GUI thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from gradacc_gui.session.background import Background
from trainer_backend.errors import UsageError


@pytest.fixture
def background() -> Iterator[Background]:
    """Closed at the end, so that no thread is left."""
    made = Background()
    yield made
    made.close()


def finish(background: Background) -> None:
    """Poll until nothing is under way."""
    deadline = time.monotonic() + 30
    while background.is_busy and time.monotonic() < deadline:
        background.poll()
        time.sleep(0.001)
    assert not background.is_busy


def test_results_come_back_in_the_thread_that_polls(background: Background) -> None:
    """The work runs elsewhere; its result does not."""
    seen: list[tuple[int, int]] = []
    here = threading.get_ident()

    def done(there: int) -> None:
        seen.append((there, threading.get_ident()))

    background.submit(threading.get_ident, done, pytest.fail)
    assert seen == []
    finish(background)
    assert seen[0][1] == here
    assert seen[0][0] != here


def test_a_slip_becomes_its_sentence(background: Background) -> None:
    """Errors that people are meant to read arrive as text."""

    def refuse() -> None:
        raise UsageError("Choose another interpreter.")

    said: list[str] = []
    background.submit(refuse, lambda _: pytest.fail("it failed"), said.append)
    finish(background)
    assert said == ["Choose another interpreter."]


def test_a_defect_is_told_and_raised(background: Background) -> None:
    """Nothing is swallowed."""
    said: list[str] = []
    background.submit(lambda: 1 / 0, lambda _: pytest.fail("it failed"), said.append)
    with pytest.raises(ZeroDivisionError):
        finish(background)
    assert said == ["ZeroDivisionError: division by zero"]


def test_the_same_look_is_not_started_twice(background: Background) -> None:
    """A slow list of runs does not pile up."""
    gate = threading.Event()
    found: list[int] = []
    assert background.submit(lambda: (gate.wait(30) and 1) or 0, found.append, pytest.fail, only_one="list")
    assert not background.submit(lambda: 2, found.append, pytest.fail, only_one="list")
    gate.set()
    finish(background)
    assert background.submit(lambda: 3, found.append, pytest.fail, only_one="list")
    finish(background)
    assert found == [1, 3]
