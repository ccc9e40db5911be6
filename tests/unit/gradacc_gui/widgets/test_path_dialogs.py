"""Dialogs for paths are opened, never executed: what asks returns at once, and the answer comes later."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QFileDialog, QWidget
from pytestqt.qtbot import QtBot

from gradacc_gui.form.editors import PathEdit
from gradacc_gui.form.new_run_page import FormPage
from gradacc_gui.widgets.desktop import ask_for_file, ask_for_folder, ask_where_to_save

SOURCE = Path(__file__).resolve().parents[4] / "gradacc_gui"


@pytest.fixture
def parent(qtbot: QtBot, styled: QApplication) -> QWidget:
    """A widget that asks."""
    made = QWidget()
    qtbot.addWidget(made)
    return made


@pytest.mark.parametrize("ask", [ask_for_file, ask_for_folder, ask_where_to_save])
def test_asking_returns_at_once_and_the_answer_comes_when_it_is_given(
    parent: QWidget, tmp_path: Path, ask: Callable[..., QFileDialog]
) -> None:
    """An executed dialog would not have returned here."""
    taken: list[Path] = []
    dialog = ask(parent, "Choose", tmp_path / "run.toml", taken.append)
    assert dialog.isVisible()
    assert taken == []
    dialog.fileSelected.emit(str(tmp_path / "other.toml"))
    assert taken == [tmp_path / "other.toml"]
    dialog.reject()


def test_a_file_to_save_is_proposed_with_its_ending(parent: QWidget, tmp_path: Path) -> None:
    """A name typed without one gets the same."""
    dialog = ask_where_to_save(parent, "Save", tmp_path / "run.toml", lambda _path: None)
    assert [Path(path).name for path in dialog.selectedFiles()] == ["run.toml"]
    assert dialog.defaultSuffix() == "toml"
    assert dialog.acceptMode() == QFileDialog.AcceptMode.AcceptSave
    dialog.reject()


def test_browsing_starts_in_the_recipe_s_folder(page: FormPage, tmp_path: Path) -> None:
    """Relative paths of the form start there too."""
    edits = [view.editor for view in page.fields.views() if isinstance(view.editor, PathEdit)]
    assert edits
    assert {edit._folder for edit in edits} == {tmp_path}


def test_no_dialog_of_the_window_is_executed() -> None:
    """Neither by `exec`, nor by the functions of Qt that execute one."""
    waits = {"getOpenFileName", "getSaveFileName", "getExistingDirectory", "getText", "question", "critical"}
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = ast.unparse(node.func.value)
            if node.func.attr in waits and owner.startswith("Q"):
                found.append((path.name, node.lineno, owner))
            if node.func.attr == "exec" and owner != "app":  # the application's own loop
                found.append((path.name, node.lineno, owner))
    assert found == []
