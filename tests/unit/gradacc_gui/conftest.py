"""A form as the window has it, in a home of its own, without asking any interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication

from gradacc_gui.form.new_run_page import FormPage
from gradacc_gui.recipe.draft import Draft
from gradacc_gui.theme import LIGHT, application_font, palette, style_sheet
from tests.support.recipes import RECIPE
from trainer_backend.recipe import parse_document, recipe_from_document


@pytest.fixture
def draft(tmp_path: Path) -> Draft:
    """A small recipe's draft, its folder empty."""
    return Draft(recipe_from_document(parse_document(RECIPE), folder=tmp_path))


@pytest.fixture
def styled(qapp: QApplication) -> QApplication:
    """Fusion with our style sheet, as shipped."""
    if not qapp.styleSheet():  # another test of this process has set it up
        qapp.setStyle("Fusion")
        qapp.setFont(application_font())
        qapp.setPalette(palette(LIGHT))
        qapp.setStyleSheet(style_sheet(LIGHT))
    return qapp


@pytest.fixture
def make_page(styled: QApplication, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], FormPage]]:
    """Make pages that ask no interpreter and look at no data by themselves; closed at the end."""
    monkeypatch.setattr("gradacc_gui.form.interpreter_panel.InterpreterPanel.ask", lambda _self: None)
    monkeypatch.setattr("gradacc_gui.form.data_inspection.AFTER_MS", 0)
    pages: list[FormPage] = []

    def make() -> FormPage:
        page = FormPage()
        pages.append(page)
        return page

    yield make
    for page in pages:
        page.shut_down()
        page.close()
        page.deleteLater()
    styled.processEvents()


@pytest.fixture
def page(make_page: Callable[[], FormPage], tmp_path: Path) -> FormPage:
    """A page that shows RECIPE, saved as a file."""
    path = tmp_path / "small.toml"
    path.write_text(RECIPE, encoding="utf-8")
    made = make_page()
    assert made.set_recipe(path)
    return made
