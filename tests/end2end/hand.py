"""The hand of a person at a window: what they press and type, and what they wait to see."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomlkit
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from pytestqt.exceptions import TimeoutError as WaitedTooLongError
from pytestqt.qtbot import QtBot

from gradacc_gui.form.editors import ComboBox, FlagBox, line_of
from gradacc_gui.form.new_run_page import FormPage
from gradacc_gui.window.main_window import MainWindow
from gradacc_gui.window.results_tab import ResultsTab
from tests.end2end.conftest import PATIENCE_MS
from tests.support.trainers import events, records
from trainer_backend.protocol import MicroBatchMeasured, OptimizerStepMeasured
from trainer_backend.run_directory import RunDirectory


class Hand:
    """What a person does with a window, and what they wait to see."""

    def __init__(self, qtbot: QtBot, window: MainWindow) -> None:
        self.qtbot, self.window = qtbot, window

    def wait(self, condition: Callable[[], bool]) -> None:
        """Look until it shows; else say what showed instead."""
        try:
            self.qtbot.waitUntil(condition, timeout=PATIENCE_MS)
        except WaitedTooLongError as error:
            message = f"It never showed.\n{self.view()}"
            raise AssertionError(message) from error

    def view(self) -> str:
        """What the window and the trainer said last."""
        window, run = self.window, self.window.run
        said = [window.page(), window.notice.sentence.text()]
        if run is not None:
            said += [run.state, run.store.phase, *self.log()[:5]]
            said += [run.run.log_path.read_text("utf-8", "replace")[-3000:]]
        return "\n".join(said)

    def start(self, recipe: dict[str, Any], folder: Path) -> RunDirectory:
        """Open a recipe in the form, press Start, wait for the first optimizer steps."""
        path = folder / "small.toml"
        path.write_text(tomlkit.dumps(recipe))
        self.open_form(path)
        run = self.press_start()
        self.wait_for_state("running")
        self.wait_for_steps(2)
        return run

    def open_form(self, recipe: Path) -> FormPage:
        """Open a recipe in the form."""
        form: FormPage = self.window.form()
        assert form.set_recipe(recipe)
        self.window.show_page("new-run")
        return form

    def fill_in(self, path: str, text: str) -> None:
        """Type into a field, or choose with the keyboard, or tick it."""
        view = self.window.form().fields.reveal(path)
        assert view is not None, path
        line = line_of(view.editor)
        match view.editor:
            case ComboBox() as box if line is None:
                while box.text() != text:
                    before = box.currentIndex()
                    up = box.findData(text) < before
                    QTest.keyClick(box, Qt.Key.Key_Up if up else Qt.Key.Key_Down)
                    assert box.currentIndex() != before, f"{path} has no {text}"
            case FlagBox() as flag:
                if flag.text_value() != text:
                    flag.click()
            case _:
                assert line is not None, path
                line.selectAll()
                QTest.keyClick(line, Qt.Key.Key_Delete)
                QTest.keyClicks(line, text)

    def press_start(self) -> RunDirectory:
        """Press Start, once it can be pressed, and wait for the run."""
        start = self.window.form().start_bar.start
        self.wait(start.isEnabled)
        QTest.mouseClick(start, Qt.MouseButton.LeftButton)
        self.wait(lambda: self.window.run is not None)
        assert self.window.run is not None
        return self.window.run.run

    def wait_for_results(self) -> ResultsTab:
        """Open the Results tab of a run that ends, and wait until all that it made is there."""
        self.wait_for_state("finished")
        live = self.window.live
        live.show_tab("results")
        results: ResultsTab = live.results
        self.wait(lambda: results.title.text() != "" and results.measured.isVisible())
        for card in results.cards:
            results.area.ensureWidgetVisible(card)
            self.wait(lambda card=card: not card.is_waiting)  # type: ignore[misc]
        return results

    def wait_for_state(self, state: str) -> None:
        """Look until the pill says so."""
        self.wait(lambda: self.window.run is not None and self.window.run.state == state)

    def wait_for_steps(self, more: int) -> None:
        """Look until the run has gone on by so many optimizer steps."""
        run = self.window.run
        assert run is not None
        before = run.store.latest.get(OptimizerStepMeasured)
        goal = (before.step if before else 0) + more
        self.wait(lambda: getattr(run.store.latest.get(OptimizerStepMeasured), "step", 0) >= goal)

    def set_n(self, text: str) -> None:
        """Type N and press Apply."""
        panel = self.window.live.side.n_panel
        self.wait(panel.edit.isEnabled)
        panel.edit.selectAll()
        QTest.keyClicks(panel.edit, text)
        QTest.mouseClick(panel.apply, Qt.MouseButton.LeftButton)

    def answer(self) -> str:
        """The line under Apply."""
        return self.window.live.side.n_panel.answer.text()

    def click(self, name: str) -> None:
        """Press one of the run's buttons, once it can be pressed."""
        button = getattr(self.window.live.side.buttons, name)
        self.wait(button.isEnabled)
        QTest.mouseClick(button, Qt.MouseButton.LeftButton)

    def start_anyway(self) -> None:
        """Answer the question that comes where another run has the device."""
        self.wait(lambda: self.window.starts.question is not None)
        question = self.window.starts.question
        assert question is not None
        (anyway,) = (made for made in question.buttons() if made.text() == "Start anyway")
        QTest.mouseClick(anyway, Qt.MouseButton.LeftButton)

    def wait_for_n(self, text: str) -> None:
        """Look until header and panel show this N."""
        self.wait(lambda: self.window.header.steps.value.text() == text)
        self.wait(lambda: self.window.live.side.n_panel.hint.text() == f"now {text}")

    def wait_for_interruption(self) -> None:
        """Look until the window says that the trainer is gone."""
        self.wait_for_state("interrupted")
        notice = self.window.live.notices.interrupted
        self.wait(lambda: not notice.isHidden())
        assert "Interrupted at step" in notice.sentence.text()

    def wait_until_idle(self) -> None:
        """Wait until nothing is on its way in the background."""
        self.wait(lambda: not self.window.background.is_busy)

    def has_missed_nothing(self, run: RunDirectory) -> None:
        """Every event of the journal has come to this window, and the journal itself is dense."""
        assert self.window.run is not None
        store, told = self.window.run.store, records(run)
        self.wait(lambda: store.last == told[-1].seq)
        assert len(store.track(MicroBatchMeasured)) == len(events(run, MicroBatchMeasured))
        assert [record.seq for record in told] == list(range(1, len(told) + 1))

    def log(self) -> list[str]:
        """The decision log, newest first."""
        return [entry.text for entry in self.window.live.side.decisions.model.entries()]


def kill(run: RunDirectory) -> None:
    """kill -9 of the trainer."""
    pid = run.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
