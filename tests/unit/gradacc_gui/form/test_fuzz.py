"""Whatever a person does to the form, it does not raise and hands out nothing that is not right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from gradacc_gui.form.editors import ComboBox, FlagBox, SuggestionBox, TableEdit, line_of
from gradacc_gui.form.field_view import ChoiceView, FieldView
from gradacc_gui.form.new_run_page import FormPage
from gradacc_gui.form.points_edit import PointsEdit
from gradacc_gui.recipe.arrangement import CHOICES
from gradacc_gui.recipe.draft import PUBLISHED
from gradacc_gui.recipe.field_specs import all_specs
from tests.support.recipes import RECIPE
from trainer_backend.config import KINDS, RunConfig
from trainer_backend.config_check import check
from trainer_backend.recipe import parse_document, recipe_from_document

KIND_NAMES = list(KINDS)
PATHS = sorted({path for kind in KIND_NAMES for path in all_specs(kind)})
WORDS = st.one_of(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(
        ["0", "-4", "0.5", "", "abc", str(10**12), "1", "8", "0: 4, 64: 8", "0.9, 0.95", "x = 1", "[a", "a:b"]
    ),
)
ACTIONS = st.one_of(
    st.tuples(st.just("type"), st.sampled_from([*PATHS, PUBLISHED]), WORDS),
    st.tuples(st.just("kind"), st.sampled_from(KIND_NAMES), st.just("")),
    st.tuples(
        st.just("count"), st.sampled_from([path for choice in CHOICES for path in choice.paths]), st.just("")
    ),
    st.tuples(st.just("more"), st.integers(0, 4), st.just("")),
    st.tuples(st.just("undo"), st.just(""), st.just("")),
    st.tuples(st.just("open"), st.just(""), st.just("")),
    st.tuples(st.just("look"), st.just(""), st.just("")),
)


def put_into(view: FieldView, text: str) -> None:
    """Change an editor by hand, whatever it is."""
    editor = view.editor
    line = line_of(editor)
    if line is not None:
        line.selectAll()
        QTest.keyClick(line, Qt.Key.Key_Delete)
        line.insert(text)
        line.textEdited.emit(line.text())
    elif isinstance(editor, TableEdit):
        editor.setPlainText(text)
    elif isinstance(editor, PointsEdit):
        editor.add.click()
        for column in range(2):
            cell = editor.cell(-1, column)
            cell.setText(text)
            cell.textEdited.emit(cell.text())
    elif isinstance(editor, FlagBox):
        editor.click()
    elif isinstance(editor, ComboBox) and not isinstance(editor, SuggestionBox):
        editor.setCurrentIndex(len(text) % editor.count())
        editor.activated.emit(editor.currentIndex())


def act(page: FormPage, what: str, where: str | int, text: str, recipe: Path) -> None:
    """One thing that a person may do."""
    match what:
        case "type" if where == PUBLISHED:
            page.fields.published.toml.setPlainText(text)
        case "type":
            view = page.fields.reveal(str(where))
            if view is not None:
                put_into(view, text)
        case "kind":
            page.fields.kind.set_text(str(where))
            page.fields.kind_chosen.emit(str(where))
        case "count":
            view = page.fields.reveal(str(where))
            assert isinstance(view, ChoiceView)
            view.chosen.emit(str(where))
        case "more":
            panel = page.fields.panels[int(where)]
            panel.set_open(not panel.is_open)
        case "undo":
            page.recipe.bring_back()
        case "open":
            page.set_recipe(recipe)
        case _:
            page.look()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(actions=st.lists(ACTIONS, max_size=12))
def test_nothing_a_person_does_raises_or_starts_what_is_not_right(
    make_page: Callable[[], FormPage], tmp_path: Path, actions: list[tuple[str, str | int, str]]
) -> None:
    """Start is enabled exactly when its recipe is right, and that recipe is what the form says."""
    recipe = tmp_path / "small.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    page = _page_of(make_page)
    page.set_recipe(recipe)
    for what, where, text in actions:
        act(page, what, where, text, recipe)
    started: list[tuple[str, Path]] = []
    page.start_requested.connect(lambda text, folder, _name, _python: started.append((text, folder)))
    page.start_bar.start_clicked.emit()  # also while the button is greyed
    page.start_requested.disconnect()
    config = check(page.draft.data())
    assert page.start_bar.start.isEnabled() == (not page.faults)
    assert bool(started) == page.start_bar.start.isEnabled()
    for text, folder in started:
        assert isinstance(config, RunConfig)
        assert recipe_from_document(parse_document(text), folder=folder).config == config
    for view in page.fields.views():
        paths = view.choice.paths if isinstance(view, ChoiceView) else (view.path,)
        assert bool(view.error) == any(path in page.faults for path in paths)


_made: list[FormPage] = []


def _page_of(make_page: Callable[[], FormPage]) -> FormPage:
    """One page for all examples of a test: building one takes longer than an example."""
    from shiboken6 import isValid

    if not _made or not isValid(_made[-1]):
        _made[:] = [make_page()]
    return _made[-1]
