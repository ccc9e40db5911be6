"""The schedule of N in the form: its rows, their faults, and how they go into the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from gradacc_gui.form.new_run_page import FormPage
from gradacc_gui.form.points_edit import PointsEdit
from gradacc_gui.recipe.draft import Draft
from gradacc_gui.recipe.field_specs import all_specs, rows_of, text_of, text_of_rows
from gradacc_gui.recipe.points import points_fault, write_points
from tests.support.recipes import RECIPE
from trainer_backend.config import AccumulationPoint, RunConfig
from trainer_backend.recipe import parse_document, recipe_from_document

PATH = "accumulation.schedule"
SPEC = all_specs("language-model")[PATH]
N = "accumulation.gradient_accumulation_steps"
LISTED = """[accumulation]
gradient_accumulation_steps = 4
schedule = [
  {from_sample = 6_400, steps = 8},   # once it is warm
  # the loss is flat by now
  {from_sample = 12_800, steps = 16}, # big
] # kept
"""
TABLES = """[accumulation]
gradient_accumulation_steps = 4
[[accumulation.schedule]]
from_sample = 6_400
steps = 8 # once it is warm
# the loss is flat by now
[[accumulation.schedule]]
from_sample = 12_800
steps = 16 # big
"""


def points(*pairs: tuple[int, int]) -> list[dict[str, int]]:
    """Points as plain data."""
    return [{"from_sample": sample, "steps": steps} for sample, steps in pairs]


def editor_of(page: FormPage) -> PointsEdit:
    """The schedule's table, brought onto the page."""
    view = page.fields.reveal(PATH)
    assert view is not None
    assert isinstance(view.editor, PointsEdit)
    return view.editor


def type_row(editor: PointsEdit, sample: str, steps: str) -> None:
    """Add a row and fill it in, key by key."""
    editor.add.click()
    for column, text in enumerate((sample, steps)):
        QTest.keyClicks(editor.cell(-1, column), text)


# ------------------------------------------------------------------------------------- text


@given(st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), max_size=4))
def test_whatever_is_typed_into_a_cell_stays_in_its_cell(typed: list[tuple[str, str]]) -> None:
    """Commas and colons too: a row is no other row after it went through its text."""
    text = text_of_rows(typed)
    told = rows_of(text, 2)
    assert len(told) == sum(any(cell.strip() for cell in row) for row in typed)
    assert text_of_rows(told) == text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", ""),
        ("0: 4, 6400: 8", ""),
        ("0: 4, 6400: 0", "Row 2: enter N as a whole number"),
        ("0: 4, 6400: ", "Row 2: enter N as a whole number"),
        ("1,000: 4", "Row 1: enter the sample"),
        ("-1: 4", "Row 1: enter the sample"),
        ("6400: 4, 6400: 8", "Row 2: its sample must be larger than"),
        ("0 tokens: 4, 6400 tokens: 256 samples", ""),
        ("0: 4, 6400 tokens: 8", "Row 2: its sample must be larger than"),
        ("0: samples", "Row 1: enter N as a whole number"),
    ],
)
def test_the_first_cell_that_is_wrong_is_named_with_what_would_be_right(text: str, sentence: str) -> None:
    """By row and column, not as a line of syntax."""
    fault = points_fault(SPEC, text)
    assert fault.startswith(sentence)
    assert bool(fault) == bool(sentence)


# ----------------------------------------------------------------------------------- recipe


@pytest.mark.parametrize("recipe", [LISTED, TABLES])
@pytest.mark.parametrize(
    "wanted",
    [
        points((6_400, 8), (12_800, 32)),
        points((0, 2), (6_400, 8), (9_600, 12), (12_800, 16), (20_000, 64)),
        points((12_800, 16)),
        points((7_000, 8), (12_800, 16)),
        points((1, 1)),
    ],
)
def test_a_recipe_s_schedule_becomes_what_was_typed_however_it_is_written(
    recipe: str, wanted: list[dict[str, int]]
) -> None:
    """As a list in one key or as tables of their own."""
    document = parse_document(recipe)
    write_points(document, PATH, wanted)
    assert parse_document(tomlkit.dumps(document)).unwrap()["accumulation"]["schedule"] == wanted


@pytest.mark.parametrize("recipe", [LISTED, TABLES])
def test_rows_that_stay_keep_their_comments_when_others_come_and_go(recipe: str) -> None:
    """The comment of the row that grew stays at its row."""
    document = parse_document(recipe)
    write_points(document, PATH, points((100, 2), (6_400, 8), (12_800, 32)))
    lines = tomlkit.dumps(document).splitlines()
    assert "# the loss is flat by now" in [line.strip() for line in lines]
    assert any("steps = 8" in line and line.endswith("# once it is warm") for line in lines)
    assert any("steps = 32" in line and line.endswith("# big") for line in lines)


def test_tokens_and_effective_batches_go_through_the_form_and_back(draft: Draft) -> None:
    """A word behind the number says that it is the other key's; the row's own key goes."""
    draft.set_text(PATH, "0 tokens: 4, 6400 tokens: 256 samples")
    wanted = [{"from_token": 0, "steps": 4}, {"from_token": 6400, "effective_batch_size": 256}]
    document = draft.document()
    assert parse_document(tomlkit.dumps(document)).unwrap()["accumulation"]["schedule"] == wanted
    assert text_of(SPEC, wanted) == "0 tokens: 4, 6400 tokens: 256 samples"
    write_points(document, PATH, [{"from_token": 0, "effective_batch_size": 32}])
    assert document.unwrap()["accumulation"]["schedule"] == [{"from_token": 0, "effective_batch_size": 32}]


def test_a_schedule_that_was_emptied_is_taken_out_of_the_recipe() -> None:
    """N is constant then, and the recipe says no more than that."""
    document = parse_document(LISTED)
    write_points(document, PATH, [])
    assert document.unwrap() == {"accumulation": {"gradient_accumulation_steps": 4}}


def test_a_recipe_without_a_schedule_gets_one_and_keeps_its_comments(draft: Draft) -> None:
    """The draft's recipe has what was typed; the rest stands as it was."""
    draft.set_text(PATH, "6400: 8")
    text = tomlkit.dumps(draft.document())
    assert "gradient_accumulation_steps = 4   # N" in text
    assert draft.recipe().config.accumulation.schedule == (AccumulationPoint(from_sample=6_400, steps=8),)


# ------------------------------------------------------------------------------------- page


def test_rows_are_added_filled_and_taken_away(page: FormPage) -> None:
    """An empty row says nothing yet; one that was taken away says nothing any more."""
    editor = editor_of(page)
    editor.add.click()
    assert not page.faults
    assert not page.draft.is_edited
    for column, text in enumerate(("6400", "8")):
        QTest.keyClicks(editor.cell(0, column), text)
    type_row(editor, "12800", "16")
    assert page.draft.value(PATH) == points((6_400, 8), (12_800, 16))
    QTest.mouseClick(editor._rows[0].remove, Qt.MouseButton.LeftButton)
    assert page.draft.value(PATH) == points((12_800, 16))
    assert editor.rows() == [("12800", "16")]


def test_the_effective_batch_of_each_stretch_stands_beside_n(page: FormPage) -> None:
    """micro-batch 8 x N, at first and from which sample on."""
    type_row(editor_of(page), "6400", "8")
    beside = page.fields.view(N)
    assert beside is not None
    assert beside.note.text().startswith("Effective batch 32, from sample 6,400 on 64.")
    sentence = page.this_run.words.text().replace("\u00a0", " ")
    assert "effective batch 32 → 64 by the schedule of N" in sentence


def test_a_schedule_from_the_start_is_said_to_set_n_over_its_field(page: FormPage) -> None:
    """What stands in the field of N does not run."""
    type_row(editor_of(page), "0", "2")
    beside = page.fields.view(N)
    assert beside is not None
    assert beside.note.text().startswith("The schedule of N sets N = 2 from the start. Effective batch 16.")
    assert page.this_run.number(3) == "16"


def test_the_cell_that_is_wrong_is_marked_and_the_run_waits_until_it_is_mended(page: FormPage) -> None:
    """Only that cell; the sentence stands beneath the table."""
    editor = editor_of(page)
    type_row(editor, "6400", "8")
    type_row(editor, "100", "16")
    marks = [[editor.cell(row, column).property("role") for column in (0, 1)] for row in (0, 1)]
    assert marks == [["", ""], ["invalid", ""]]
    assert page.faults[PATH].startswith("Row 2: its sample must be larger than")
    assert not page.start_bar.start.isEnabled()
    editor.cell(1, 0).selectAll()
    QTest.keyClicks(editor.cell(1, 0), "9600")
    assert not page.faults
    assert editor.cell(1, 0).property("role") == ""


def test_a_recipe_s_rows_are_shown_and_come_back_after_a_restart(draft: Draft, tmp_path: Path) -> None:
    """Half-typed rows as well."""
    draft.set_text(PATH, "0: 4, : 8")
    kept = Draft.restore(draft.keep())
    assert rows_of(kept.text(PATH), 2) == [("0", "4"), ("", "8")]
    text = RECIPE.replace(
        "gradient_accumulation_steps = 4   # N", "schedule = [{from_sample = 0, steps = 2}]"
    )
    shown = Draft(recipe_from_document(parse_document(text), folder=tmp_path))
    assert shown.text(PATH) == "0: 2"
    assert isinstance(shown.check(), RunConfig)
