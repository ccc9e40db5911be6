"""The Python that trains: chosen, asked beside the GUI thread, mended only after asking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gradacc_gui.form.editors import ComboBox
from gradacc_gui.form.form_memory import FormMemory
from gradacc_gui.form.interpreter_panel import InterpreterPanel, _each_once, short_path
from gradacc_gui.form.new_run_page import FormPage
from gradacc_gui.session import interpreter
from gradacc_gui.session.interpreter import NEEDS, Install, Interpreter
from trainer_backend.optimizer_table import OPTIMIZERS

KNOWN = Interpreter(
    executable="/somewhere/bin/python",
    version=(3, 12, 1),
    implementation="cpython",
    abi="cpython-312",
    prefix="/somewhere",
    torch_version="2.14.1",
    cuda_version="13.0",
    packages={need.package: "99" for need in NEEDS},
    modules={"transformers": True, "peft": True},
)


@pytest.fixture
def panel(styled: QApplication) -> Iterator[InterpreterPanel]:
    """A panel alone."""
    made = InterpreterPanel(FormMemory())
    yield made
    made.shut_down()
    made.deleteLater()


def an_install(tmp_path: Path, log: list[str]) -> Install:
    """An install that only remembers that it ran."""
    target = tmp_path / "overlay" / "msgspec-0.19"
    code = f"open({str(tmp_path / 'ran')!r}, 'a').write('x')"
    log.append(code)
    return Install(NEEDS[0], (sys.executable, "-c", code), tmp_path / "beside", target)


def test_the_interpreter_that_runs_the_window_is_the_first_choice_and_is_asked(
    panel: InterpreterPanel, qtbot: QtBot
) -> None:
    """For real: this very interpreter, with its torch."""
    assert panel.interpreter == sys.executable
    with qtbot.waitSignal(panel.changed, timeout=30_000):
        panel.ask()
    assert panel.sentence == ""
    assert panel.words.text().startswith("Python 3.")
    assert "torch 2." in panel.words.text()
    assert panel.box.toolTip() == sys.executable
    qtbot.waitUntil(lambda: not panel._timer.isActive(), timeout=5_000)


def test_a_file_that_is_no_python_says_so(panel: InterpreterPanel, qtbot: QtBot, tmp_path: Path) -> None:
    """A sentence in red; nothing can be started with it."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho hello\nexit 3\n")
    path.chmod(0o755)
    with qtbot.waitSignals([panel.changed, panel.changed], timeout=30_000):
        panel.choose(str(path))
    assert "is not a working Python 3" in panel.sentence
    assert panel.words.property("role") == "error"


def test_an_interpreter_without_torch_offers_the_command_to_copy(
    panel: InterpreterPanel, monkeypatch: pytest.MonkeyPatch, qtbot: QtBot
) -> None:
    """torch is gigabytes: it is the user's to install, with their CUDA."""
    bare = msgspec.structs.replace(KNOWN, torch_version="")
    monkeypatch.setattr(interpreter, "probe", lambda *_args, **_more: bare)
    with qtbot.waitSignals([panel.changed, panel.changed], timeout=10_000):
        panel.choose("/somewhere/bin/python")
    assert "has no torch" in panel.sentence
    assert not panel.mend.isHidden()
    panel.mend.click()
    assert QApplication.clipboard().text() == '"/somewhere/bin/python" -m pip install torch'


def test_missing_packages_are_installed_only_after_asking(
    panel: InterpreterPanel, monkeypatch: pytest.MonkeyPatch, qtbot: QtBot, tmp_path: Path
) -> None:
    """First what and where to, with a way back; then it is done beside the GUI thread."""
    ran = tmp_path / "ran"
    needed = [an_install(tmp_path, [])]
    (tmp_path / "beside").mkdir()
    monkeypatch.setattr(interpreter, "probe", lambda *_args, **_more: KNOWN)
    monkeypatch.setattr(interpreter, "installs", lambda _known: [] if ran.exists() else needed)
    with qtbot.waitSignals([panel.changed, panel.changed], timeout=10_000):
        panel.choose("/somewhere/bin/python")
    assert "lacks msgspec" in panel.words.text()
    assert panel.sentence
    panel.mend.click()
    assert "Install msgspec with pip" in panel.words.text()
    assert "is not changed" in panel.words.text()
    assert not ran.exists()
    panel.cancel.click()
    assert "lacks msgspec" in panel.words.text()
    panel.mend.click()
    with qtbot.waitSignal(panel.changed, timeout=20_000):
        panel.mend.click()
    assert ran.read_text() == "x"
    assert panel.sentence == ""
    assert panel.words.text() == "Python 3.12.1, torch 2.14.1, CUDA 13.0"


def test_a_long_path_is_cut_in_the_middle_and_whole_in_the_tool_tip(
    panel: InterpreterPanel, qtbot: QtBot
) -> None:
    """The name of the environment and the end both stay in sight."""
    path = "/very" * 30 + "/project/.venv/bin/python"
    panel.box.insertItem(0, short_path(path), path)
    panel._chosen = path
    panel.offer(None)
    panel.resize(300, 120)
    panel.show()
    qtbot.waitExposed(panel)
    assert panel.box.toolTip() == path
    assert panel.width() == 300
    panel.grab()
    panel.hide()


def test_the_choice_is_there_again_after_a_restart(panel: InterpreterPanel) -> None:
    """And one that was browsed for stays on the list."""
    memory = FormMemory()
    memory.remember_interpreter("/somewhere/bin/python")
    memory.use_interpreter("/somewhere/bin/python")
    again = InterpreterPanel(FormMemory())
    assert again.interpreter == "/somewhere/bin/python"
    assert again.box.findData("/somewhere/bin/python") >= 0
    again.deleteLater()


def test_kinds_whose_modules_the_interpreter_lacks_are_greyed_with_the_command(
    page: FormPage, make_page: Callable[[], FormPage]
) -> None:
    """And choosing such a recipe says what to run."""
    page.interpreter._answers[page.interpreter.interpreter] = (msgspec.structs.replace(KNOWN, modules={}), [])
    page.interpreter.changed.emit()
    box = page.fields.kind.editor
    assert isinstance(box, ComboBox)
    grey = {
        box.itemData(row): not box.model().flags(box.model().index(row, 0)).value & 32
        for row in range(box.count())
    }
    assert grey["causal-lm"]
    assert not grey["language-model"]
    assert not grey["custom"]
    page._kind_chosen("causal-lm")
    assert "-m pip install accelerate peft tokenizers transformers" in page.fields.kind.error
    assert not page.start_bar.start.isEnabled()


def test_an_optimizer_whose_package_the_interpreter_lacks_says_what_to_run(page: FormPage) -> None:
    """Before Start, not after the model was loaded; torch's own need nothing."""
    modules = {row.module: True for row in OPTIMIZERS.values() if row.module} | {"schedulefree": False}
    known = msgspec.structs.replace(KNOWN, modules=modules)
    page.interpreter._answers[page.interpreter.interpreter] = (known, [])
    page.interpreter.changed.emit()
    for name, command in (("lion", ""), ("schedule-free", "-m pip install schedulefree"), ("adamw", "")):
        page._edited("optimizer.name", name)
        sentence = page.faults.get("optimizer.name", "")
        assert command in sentence
        assert bool(sentence) == bool(command)


def test_an_interpreter_that_cannot_train_keeps_start_from_starting(page: FormPage) -> None:
    """Its sentence stands above the button."""
    page.interpreter._answers[page.interpreter.interpreter] = "It is too old."
    page.interpreter.changed.emit()
    assert page.start_bar.why.text() == "It is too old."
    assert not page.start_bar.start.isEnabled()


def test_one_interpreter_is_listed_once(tmp_path: Path) -> None:
    """By whichever of its names; another environment's stays, though both are links to one Python."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    paths = [
        f"{tmp_path}/a/python",
        f"{tmp_path}/a/python3",
        f"{tmp_path}/a/python3.11",
        f"{tmp_path}/b/python3",
    ]
    assert _each_once(paths) == [paths[0], paths[3]]
