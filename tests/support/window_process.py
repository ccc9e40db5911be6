"""The shipped application in a process of its own, offscreen, with a line to ask it what it shows.

    with WindowProcess() as window:          # opens on the run that is live, as the application does
        window.ask("state")                  # "running"
        window.ask("n 3")                    # types N and presses Apply; the line under it
        window.ask("numbers")                # the seq of every fact and charted measurement in its store
        window.freeze(); window.thaw()       # SIGSTOP, SIGCONT
        window.kill()                        # kill -9

It is `python -m gradacc_gui` but for one thing: as its first page opens it begins to answer.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, Self

from tests.support.trainers import ROOT, environment

PATIENCE_S = 60.0
"""How long a busy machine may take; only a test that fails waits so long."""

ANSWERING = """
import json, runpy, sys, threading
from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtTest import QTest
from gradacc_gui import app
from gradacc_gui.store.past import CHARTED

class Ear(QObject):
    heard = Signal(str)

ear = Ear()

def answer(window, line):
    store = window.run.store
    match line.split():
        case ["state"]:
            return window.run.state
        case ["n", text]:
            panel = window.live.side.n_panel
            panel.edit.selectAll()
            QTest.keyClicks(panel.edit, text)
            QTest.mouseClick(panel.apply, Qt.MouseButton.LeftButton)
            return panel.answer.text()
        case ["answer"]:
            return window.live.side.n_panel.answer.text()
        case ["numbers"]:
            rows = [store.track(kind).tail("seq", 1_000_000).astype(int).tolist() for kind in CHARTED]
            return sorted([number for part in rows for number in part] + [fact.seq for fact in store.facts])

def first_page(window, wanted, *, demo):
    shipped(window, wanted, demo=demo)
    ear.heard.connect(lambda line: print(json.dumps(answer(window, line)), flush=True))
    threading.Thread(target=lambda: [ear.heard.emit(line) for line in sys.stdin], daemon=True).start()
    print(json.dumps("open"), flush=True)

shipped, app.first_page = app.first_page, first_page
sys.argv = ["gradacc"]
runpy.run_module("gradacc_gui", run_name="__main__")
"""


class WindowProcess:
    """A window that a test may freeze and kill. As a context it is killed at the end."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ANSWERING],
            cwd=ROOT,
            env=environment() | {"QT_QPA_PLATFORM": "offscreen"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._rest = b""
        self._hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self._input, self._output):
            stream.close()

    @property
    def _input(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def _output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def ask(self, question: str) -> Any:
        """What the window answers."""
        os.write(self._input.fileno(), f"{question}\n".encode())
        return self._hear()

    def wait_for(self, question: str, condition: Callable[[Any], bool]) -> Any:
        """Ask until the answer is so."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(found := self.ask(question)):
            assert time.monotonic() < deadline, f"{question}: {str(found)[-500:]}"
            time.sleep(0.02)
        return found

    def _hear(self) -> Any:
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._output], [], [], PATIENCE_S)
            piece = os.read(self._output.fileno(), 1 << 16) if ready else b""
            assert piece, f"The window said nothing more ({self.process.poll()})."
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
