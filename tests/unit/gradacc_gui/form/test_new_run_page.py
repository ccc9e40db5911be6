"""The page as a person uses it: typing, opening, saving, starting."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import tomlkit
from PySide6.QtCore import QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent, QKeyEvent, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QComboBox,
    QFileDialog,
    QLabel,
    QLineEdit,
    QWidget,
)
from pytestqt.exceptions import TimeoutError as QtBotTimeout
from pytestqt.qtbot import QtBot

from gradacc_gui.form.editors import ComboBox, FlagBox, PathEdit, line_of
from gradacc_gui.form.field_view import ChoiceView
from gradacc_gui.form.form_memory import FormMemory, bundled_recipes
from gradacc_gui.form.new_run_page import FormPage
from gradacc_gui.form.open_recipe import FIRST_RECIPE
from gradacc_gui.recipe.arrangement import CHOICE_OF
from gradacc_gui.theme import DARK, LIGHT, palette, style_sheet
from gradacc_gui.widgets.line_edit import LineEdit
from tests.support.recipes import RECIPE
from trainer_backend.recipe import load_recipe, parse_document, recipe_from_document

N = "accumulation.gradient_accumulation_steps"
BATCH = "accumulation.effective_batch_size"


def retype(page: FormPage, path: str, text: str) -> None:
    """Select what stands in a field and type something else, key by key."""
    view = page.fields.reveal(path)
    assert view is not None
    line = line_of(view.editor)
    assert line is not None
    line.selectAll()
    QTest.keyClick(line, Qt.Key.Key_Delete)
    QTest.keyClicks(line, text)


def choose(box: QComboBox, value: str) -> None:
    """Choose a value of a combo box with the keyboard."""
    box.setFocus()
    target = box.findData(value)
    while box.currentIndex() != target:
        QTest.keyClick(box, Qt.Key.Key_Down if box.currentIndex() < target else Qt.Key.Key_Up)


@pytest.mark.parametrize("text", ["0", "-4", "0.5", "", "abc", str(10**12)])
def test_nonsense_for_n_stands_as_typed_with_its_sentence_and_start_waits(page: FormPage, text: str) -> None:
    """It is explained, not clamped; nothing can be started meanwhile."""
    retype(page, N, text)
    view = page.fields.view(N)
    assert view is not None
    line = line_of(view.editor)
    assert line is not None
    assert line.text() == text
    assert view.error
    assert view.note.text() == view.error
    assert line.property("role") == "invalid"
    assert not page.start_bar.start.isEnabled()
    assert not page.start_bar.verify.isEnabled()
    assert page.start_bar.look.text() == "Fix 1 field before starting."
    assert page.this_run.number(3) == "–"


def test_the_sentence_goes_when_the_value_is_mended(page: FormPage) -> None:
    """As one types."""
    retype(page, N, "0")
    retype(page, N, "16")
    view = page.fields.view(N)
    assert view is not None
    assert view.error == ""
    assert view.note.text().startswith("Effective batch 128.")
    assert page.start_bar.start.isEnabled()
    assert [page.this_run.number(place) for place in range(4)] == ["8", "16", "1", "128"]


def test_look_goes_to_the_first_field_that_needs_one_even_behind_more(page: FormPage, qtbot: QtBot) -> None:
    """In the page's order."""
    page.resize(1200, 700)
    page.show()
    qtbot.waitExposed(page)
    retype(page, "targets.cost", "-1")
    retype(page, "optimizer.learning_rate", "fast")
    page.start_bar.look.click()
    view = page.fields.view("optimizer.learning_rate")
    assert view is not None
    assert view.isAncestorOf(page.focusWidget())
    retype(page, "optimizer.learning_rate", "1e-3")
    page.start_bar.look.click()
    rare = page.fields.view("targets.cost")
    assert rare is not None
    assert rare.isVisible()
    assert rare.isAncestorOf(page.focusWidget())


def test_start_hands_out_the_whole_recipe_its_folder_name_and_interpreter(
    page: FormPage, qtbot: QtBot, tmp_path: Path
) -> None:
    """What the trainer reads is what the form says, comments and all."""
    retype(page, N, "2")
    with qtbot.waitSignal(page.start_requested) as started:
        page.start_bar.start.click()
    text, folder, name, python = started.args
    recipe = recipe_from_document(parse_document(text), folder=folder)
    assert recipe.config.accumulation_steps == 2
    assert "# kept: a line of its own" in text
    assert (folder, name, python) == (tmp_path, "small", page.interpreter.interpreter)
    with qtbot.waitSignal(page.verify_requested) as verified:
        page.start_bar.verify.click()
    assert verified.args[0] == text


def test_the_run_is_named_by_the_form_when_it_says_so(page: FormPage, qtbot: QtBot) -> None:
    """The recipe's file name is only the default."""
    retype(page, "run.name", "first try")
    with qtbot.waitSignal(page.start_requested) as started:
        page.start_bar.start.click()
    assert started.args[2] == "first try"


def test_n_or_the_effective_batch_one_number_either_way(page: FormPage) -> None:
    """Counting the other keeps the run as it is, and shows both."""
    view = page.fields.view(N)
    assert isinstance(view, ChoiceView)
    choose(view.counts, BATCH)
    assert isinstance(view.editor, LineEdit)
    assert view.editor.text() == "32"
    retype(page, BATCH, "30")
    assert "Try 24 or 32" in view.error
    retype(page, BATCH, "64")
    assert view.note.text().startswith("N = 8.")
    assert page.this_run.number(1) == "8"
    choose(view.counts, N)
    assert view.editor.text() == "8"


def test_the_length_is_one_number_and_what_it_counts(page: FormPage) -> None:
    """2,000 steps of 32 are 64,000 samples; epochs are asked for anew."""
    view = page.fields.view("run.max_optimizer_steps")
    assert isinstance(view, ChoiceView)
    assert isinstance(view.editor, LineEdit)
    choose(view.counts, "run.max_samples")
    assert view.editor.text() == "64000"
    choose(view.counts, "run.epochs")
    assert view.editor.text() == ""
    assert view.error
    retype(page, "run.epochs", "2")
    assert page.draft.recipe().config.run.epochs == 2
    assert "max_optimizer_steps" not in page.draft.document()["run"]


def test_another_optimizer_shows_its_own_fields(page: FormPage, qtbot: QtBot) -> None:
    """Betas make room for momentum."""
    page.resize(1300, 900)
    page.show()
    qtbot.waitExposed(page)
    name = page.fields.view("optimizer.name")
    assert name is not None
    assert isinstance(name.editor, ComboBox)
    choose(name.editor, "sgd")
    betas, momentum = page.fields.view("optimizer.betas"), page.fields.view("optimizer.momentum")
    assert betas is not None
    assert momentum is not None
    assert not betas.isVisible()
    assert momentum.isVisible()


def test_a_fault_in_a_field_that_does_not_apply_brings_it_back(page: FormPage, qtbot: QtBot) -> None:
    """Nothing that stands in the way of Start is out of sight."""
    page.resize(1300, 900)
    page.show()
    qtbot.waitExposed(page)
    retype(page, "optimizer.betas", "2")
    name = page.fields.view("optimizer.name")
    assert name is not None
    assert isinstance(name.editor, ComboBox)
    choose(name.editor, "sgd")
    betas = page.fields.view("optimizer.betas")
    assert betas is not None
    assert betas.isVisible()
    assert betas.error


def test_the_wheel_scrolls_the_page_and_changes_no_choice(page: FormPage) -> None:
    """A hand on the wheel must not turn AdamW into SGD."""
    view = page.fields.view("optimizer.name")
    assert view is not None
    assert isinstance(view.editor, ComboBox)
    down = QWheelEvent(
        QPointF(5, 5), QPointF(5, 5), QPoint(0, -120), QPoint(0, -120),
        Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    QApplication.sendEvent(view.editor, down)
    assert view.editor.text() == "adamw"
    assert not down.isAccepted()


def test_an_optional_field_is_emptied_by_its_button(page: FormPage, qtbot: QtBot) -> None:
    """Empty means something: no clipping."""
    page.show()
    qtbot.waitExposed(page)
    retype(page, "optimizer.max_grad_norm", "1.0")
    assert page.draft.recipe().config.optimizer.max_grad_norm == 1.0
    view = page.fields.view("optimizer.max_grad_norm")
    assert view is not None
    clear = view.editor.findChild(QAbstractButton)
    assert clear is not None
    clear.click()
    assert page.draft.recipe().config.optimizer.max_grad_norm is None
    assert isinstance(view.editor, QLineEdit)
    assert view.editor.placeholderText() == "no clipping"


def test_flags_are_check_boxes(page: FormPage) -> None:
    """Ticked is true."""
    view = page.fields.reveal("data.shuffle")
    assert view is not None
    assert isinstance(view.editor, FlagBox)
    assert view.editor.isChecked()
    view.editor.click()
    assert page.draft.recipe().config.data.shuffle is False  # type: ignore[attr-defined]  # a language model's data


# ------------------------------------------------------------------ recipes


def test_the_form_is_filled_in_from_the_first_start(make_page: Callable[[], FormPage]) -> None:
    """One press of Start runs the demo."""
    page = make_page()
    assert page.draft.path is not None
    assert page.draft.path.name == FIRST_RECIPE
    assert page.faults == {}
    assert page.start_bar.start.isEnabled()


def test_saving_keeps_comments_and_takes_the_mark_away(page: FormPage, tmp_path: Path) -> None:
    """Into the file that was opened."""
    retype(page, N, "16")
    assert page.bar.name.full_text() == "recipe small.toml · edited"
    page.bar.save.click()
    assert page.bar.name.full_text() == "recipe small.toml"
    assert (tmp_path / "small.toml").read_text() == RECIPE.replace("= 4   # N", "= 16   # N")


def test_a_recipe_saved_elsewhere_still_finds_its_data(page: FormPage, tmp_path: Path) -> None:
    """Relative paths are written out."""
    (tmp_path / "books").mkdir()
    retype(page, "data.path", "books")
    other = tmp_path / "other"
    other.mkdir()
    assert page.recipe.save(other / "copy.toml")
    assert load_recipe(other / "copy.toml").config.data.path == str(tmp_path / "books")  # type: ignore[attr-defined]  # likewise
    assert page.draft.path == other / "copy.toml"


def test_a_recipe_that_needs_a_look_is_not_saved(page: FormPage, tmp_path: Path) -> None:
    """Nothing is written over."""
    retype(page, N, "0")
    page.bar.save.click()
    assert (tmp_path / "small.toml").read_text() == RECIPE
    assert not page.trouble.isHidden()
    assert page.draft.text(N) == "0"


@pytest.mark.parametrize(
    "text",
    ["[run]\nepochs = 0\n", "not toml", "[run]\nepochs = 1\nlearning_rate = 1\n", "recipe_version = 99\n"],
)
def test_a_recipe_that_is_not_right_is_refused_and_the_form_stays(
    page: FormPage, tmp_path: Path, text: str
) -> None:
    """Its sentences are shown."""
    retype(page, N, "16")
    bad = tmp_path / "bad.toml"
    bad.write_text(text)
    assert not page.set_recipe(bad)
    assert page.trouble.sentence.text() == "bad.toml could not be opened. The form was not changed."
    assert str(bad) in page.trouble.more.text()
    assert page.draft.text(N) == "16"
    assert not page.set_recipe(tmp_path / "gone.toml")
    assert "cannot be read" in page.trouble.more.text()


def test_opening_another_recipe_sets_edits_aside_and_they_come_back(page: FormPage, tmp_path: Path) -> None:
    """Nothing typed is lost silently."""
    retype(page, N, "abc")
    other = tmp_path / "other.toml"
    other.write_text(RECIPE.replace("3e-4", "6e-4"))
    assert page.set_recipe(other)
    assert page.draft.text(N) == "4"
    assert page.notice.sentence.text() == "Your edits to small.toml were set aside."
    page.undo.click()
    assert page.draft.text(N) == "abc"
    assert page.draft.path == tmp_path / "small.toml"


def test_a_restart_brings_back_what_was_typed(
    page: FormPage, make_page: Callable[[], FormPage], tmp_path: Path
) -> None:
    """Right or not, with the recipe that it belongs to."""
    retype(page, N, "abc")
    page.shut_down()
    again = make_page()
    assert again.draft.text(N) == "abc"
    assert again.draft.path == tmp_path / "small.toml"
    assert again.faults
    assert again.notice.sentence.text() == "Restored your unsaved changes."


def test_without_edits_a_restart_shows_the_demo_again(
    page: FormPage, make_page: Callable[[], FormPage]
) -> None:
    """And says nothing."""
    page.shut_down()
    again = make_page()
    assert again.notice.isHidden()
    assert again.draft.path is not None
    assert again.draft.path.name == FIRST_RECIPE


def test_a_damaged_draft_costs_only_the_draft(make_page: Callable[[], FormPage], gradacc_home: Path) -> None:
    """The form opens."""
    gradacc_home.mkdir(parents=True)
    (gradacc_home / "form-draft.json").write_bytes(b"\xff{")
    assert make_page().faults == {}


def test_the_menu_offers_what_comes_with_gradacc_and_what_was_open(page: FormPage) -> None:
    """By name; the whole path in the tool-tip."""
    page.bar.fill_menu()
    offered = {action.text(): action.toolTip() for action in page.bar.menu.actions()}
    assert "stdlib-gpt" in offered
    assert offered["small"] == str(page.draft.path)


def test_the_installations_own_recipe_is_never_written_to(
    make_page: Callable[[], FormPage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Save asks where to."""
    page = make_page()
    path = page.draft.path
    assert path is not None
    before = path.read_bytes()
    asked: list[bool] = []
    monkeypatch.setattr(page.bar, "ask_where_to_save", lambda: asked.append(True))
    retype(page, N, "16")
    page.bar.save.click()
    assert asked == [True]
    assert path.read_bytes() == before


def test_a_recipe_dropped_on_the_page_is_opened(page: FormPage, tmp_path: Path) -> None:
    """Also when it is dropped on a field; a file of another kind becomes a path only in a field for paths."""
    other = tmp_path / "other.toml"
    other.write_text(RECIPE.replace("3e-4", "6e-4"))
    drop(page, other)
    assert page.draft.text("optimizer.learning_rate") == "6e-4"
    text = tmp_path / "book.txt"
    text.write_text("x" * 4000)
    view = page.fields.view("data.path")
    assert view is not None
    assert isinstance(view.editor, PathEdit)
    drop(view.editor.line, text)
    assert page.draft.text("data.path") == str(text)


def drop(target: QWidget, path: Path) -> None:
    """Drop one file."""
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(path))])
    event = QDropEvent(
        QPointF(5, 5),
        Qt.DropAction.CopyAction,
        mime,
        Qt.MouseButton.LeftButton,
        Qt.KeyboardModifier.NoModifier,
    )
    target.dropEvent(event)


def test_the_recipe_of_an_earlier_run_can_be_shown(page: FormPage, tmp_path: Path) -> None:
    """From its directory, where it names its source folder."""
    text = RECIPE + f'\n[source]\nfolder = "{tmp_path.as_posix()}/elsewhere"\n'
    assert page.recipe.open_text(text, folder=tmp_path, name="run-1")
    assert page.draft.folder == tmp_path / "elsewhere"
    assert "[source]" not in str(page.draft.document())
    assert not page.recipe.open_text("[run]\n", folder=None, name="run-2")
    assert page.trouble.sentence.text().startswith("run-2 could not be opened")


# ------------------------------------------------------------------ published


def test_published_values_stand_beside_the_fields_that_differ(page: FormPage, tmp_path: Path) -> None:
    """And in a table, with a learning rate carried over by a named rule."""
    path = tmp_path / "paper.toml"
    path.write_text(
        RECIPE
        + '\n[published]\nsource = "Table 3"\n[published.optimizer]\nname = "lamb"\nlearning_rate = 1e-3\n'
        + "[published.accumulation]\neffective_batch_size = 512\n"
    )
    assert page.set_recipe(path)
    view = page.fields.view("optimizer.learning_rate")
    assert view is not None
    assert "published: 0.001" in [label.text() for label in view.findChildren(QLabel)]
    panel = page.fields.published
    assert ("Optimizer", "lamb", "adamw") in panel.rows()
    assert panel.source.text() == "Table 3"
    assert panel.preview.text() == "0.001 becomes 6.25e-5 (batch × 0.0625)"
    assert page.this_run.kappa.text().endswith("(× 0.0625 here).")
    choose(panel.rule, "sqrt")
    panel.fill.click()
    assert page.draft.text("optimizer.learning_rate") == "0.00025"
    assert page.draft.recipe().config.optimizer.learning_rate == 2.5e-4


def test_published_lines_that_are_wrong_are_a_fault_like_any_other(page: FormPage, qtbot: QtBot) -> None:
    """Looked at from the Start button."""
    page.show()
    qtbot.waitExposed(page)
    page.fields.published.set_editing(True)
    QTest.keyClicks(page.fields.published.toml, "x = ")
    assert "Not valid TOML" in page.fields.published.note.text()
    page.fields.published.set_editing(False)
    page.start_bar.look.click()
    assert page.focusWidget() is page.fields.published.toml


# ------------------------------------------------------------------ data


def test_a_model_may_be_a_folder_or_a_hub_id_and_the_form_says_so(page: FormPage) -> None:
    """In the empty field, and in the sentence that asks for it."""
    page.fields.kind.edited.emit("task.kind", "causal-lm")
    view = page.fields.view("task.model")
    assert view is not None
    assert isinstance(view.editor, PathEdit)
    assert view.editor.line.placeholderText() == "a folder, or a hub id such as organisation/name"
    assert view.error == "Missing. Choose a folder, or write a hub id such as organisation/name."
    retype(page, "task.model", "organisation/name")
    assert view.error == ""


def test_data_that_are_not_there_are_said_beside_their_field(
    page: FormPage, qtbot: QtBot, tmp_path: Path
) -> None:
    """And looked at again when they may have been mended."""
    page.show()
    qtbot.waitExposed(page)
    retype(page, "data.path", "books")
    qtbot.waitUntil(lambda: "data.path" in page.faults, timeout=10_000)
    view = page.fields.view("data.path")
    assert view is not None
    assert "no such file or folder" in view.error
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("x" * 40_000)
    page.start_bar.look.click()
    qtbot.waitUntil(lambda: page.faults == {}, timeout=10_000)
    qtbot.waitUntil(lambda: view.note.text().startswith("1 file, 40 kB."), timeout=10_000)


# ------------------------------------------------------------------ everybody can use it


@pytest.mark.parametrize(
    ("width", "height"), [(1440, 900), (1208, 660), (910, 532), (2000, 1100), (640, 400), (430, 240)]
)
@pytest.mark.parametrize("kind", ["language-model", "causal-lm", "custom"])
def test_everything_can_be_reached_at_every_size(
    page: FormPage, qtbot: QtBot, kind: str, width: int, height: int
) -> None:
    """No field is cut off at its side, and scrolling brings each one and Start into sight."""
    page.resize(width, height)
    page.show()
    qtbot.waitExposed(page)
    page._kind_chosen(kind)
    for panel in page.fields.panels:
        panel.set_open(True)
    with contextlib.suppress(QtBotTimeout):
        qtbot.waitUntil(lambda: not misplaced(page), timeout=10_000)
    assert misplaced(page) == []
    assert page.width() == width


def misplaced(page: FormPage) -> list[str]:
    """What is cut off, or cannot be scrolled to."""
    content = page.area.widget()
    assert content is not None
    found = []
    if content.width() > page.area.viewport().width():
        found.append("the content is wider than its view")
    for view in page.fields.views():
        if view.isVisible():
            corner = view.mapTo(content, QPoint(view.width(), view.height()))
            inside = corner.x() <= content.width() and corner.y() <= content.height()
            whole = view.width() >= view.minimumSizeHint().width() and view.height() >= view.heightForWidth(
                view.width()
            )
            found += [] if inside and whole else [view.path]
    for widget in (page.start_bar, page.bar):
        place = widget.mapTo(page, QPoint(0, 0))
        far = place + QPoint(widget.width() - 1, widget.height() - 1)
        found += [] if page.rect().contains(place) and page.rect().contains(far) else [type(widget).__name__]
    return found


def test_tab_visits_every_field_in_reading_order(page: FormPage, qtbot: QtBot) -> None:
    """From the first to the last, and on to Start."""
    page.resize(1300, 900)
    page.show()
    qtbot.waitExposed(page)
    page.fields.panels[0].set_open(True)
    start: QWidget = page.bar.recipes
    start.setFocus()
    visited: list[QWidget] = []
    for _ in range(200):
        QApplication.sendEvent(
            page.focusWidget(),
            QKeyEvent(QKeyEvent.Type.KeyPress, Qt.Key.Key_Tab, Qt.KeyboardModifier.NoModifier),
        )
        visited.append(page.focusWidget())
        if visited[-1] is start:
            break
    order = [view.path for widget in visited for view in page.fields.views() if view.isAncestorOf(widget)]
    shown = [
        spec.path
        for panel in page.fields.panels
        for spec in panel.specs()
        if (view := panel.view(spec.path)) is not None and view.isVisible()
    ]
    assert list(dict.fromkeys(order)) == ["task.kind", *shown]
    assert page.start_bar.start in visited


def test_a_screen_reader_is_told_what_each_editor_is_and_what_is_wrong_with_it(page: FormPage) -> None:
    """Name with unit; help or fault as the description."""
    for panel in page.fields.panels:
        panel.set_open(True)
    for view in page.fields.views():
        assert view.editor.accessibleName(), view.path
        assert view.editor.accessibleDescription(), view.path
    retype(page, N, "0")
    wrong = page.fields.view(N)
    assert wrong is not None
    assert wrong.editor.accessibleName() == "Accumulation steps N, micro-batches"
    assert wrong.editor.accessibleDescription() == wrong.error
    unnamed = [
        widget
        for kind in (QAbstractButton, QComboBox, QLineEdit)
        for widget in page.findChildren(kind)
        if not widget.accessibleName()
        and not getattr(widget, "text", str)()
        and not widget.objectName().startswith("qt_")
        and not isinstance(widget.parent(), QComboBox)
    ]
    assert unnamed == []


def test_the_page_follows_another_theme_while_it_is_shown(
    page: FormPage, styled: QApplication, qtbot: QtBot
) -> None:
    """Icons too; a fault keeps its colour."""
    page.show()
    qtbot.waitExposed(page)
    retype(page, N, "0")
    try:
        styled.setPalette(palette(DARK))
        styled.setStyleSheet(style_sheet(DARK))
        dark = page.grab().toImage().pixelColor(3, 3).name()
    finally:
        styled.setPalette(palette(LIGHT))
        styled.setStyleSheet(style_sheet(LIGHT))
    assert dark == DARK.background
    assert page.grab().toImage().pixelColor(3, 3).name() == LIGHT.background


def test_the_product_shows_in_red_what_was_typed_wrong_and_not_what_follows_from_it(page: FormPage) -> None:
    """With an effective batch that does not divide, N is open and the batch is to be mended."""
    view = page.fields.view(N)
    assert isinstance(view, ChoiceView)
    choose(view.counts, BATCH)
    retype(page, BATCH, "30")
    roles = [label.property("role") for label in page.this_run._numbers]
    assert [page.this_run.number(place) for place in range(4)] == ["8", "–", "1", "30"]
    assert roles == ["number", "number", "number", "number-bad"]


def test_another_trainer_s_configuration_fills_the_form_when_asked(page: FormPage, tmp_path: Path) -> None:
    """First its account is shown; a file that is none leaves the form as it was."""
    path = tmp_path / "axolotl.yaml"
    path.write_text(
        "base_model: my/model\nsequence_len: 512\nmicro_batch_size: 2\ngradient_accumulation_steps: 16\n"
        "learning_rate: 1e-4\nflash_attention: true\n",
        encoding="utf-8",
    )
    before = page.draft
    page.bar.import_requested.emit(path)
    assert page.draft is before
    assert page.imports.isVisibleTo(page)
    page.bar.open_import.click()
    assert page.area.isVisibleTo(page)
    view = page.fields.view(N)
    assert view is not None
    line = line_of(view.editor)
    assert line is not None
    assert line.text() == "16"
    path.write_text("nothing: here\n", encoding="utf-8")
    page.bar.import_requested.emit(path)
    assert line_of(page.fields.view(N).editor).text() == "16"  # type: ignore[union-attr]


# ------------------------------------------------------------------ nobody's edits are overwritten


def test_saving_over_a_file_that_was_edited_elsewhere_asks_first(page: FormPage, tmp_path: Path) -> None:
    """Nothing is written until the person has chosen; reloading keeps the person's own edits aside."""
    path = tmp_path / "small.toml"
    outside = path.read_text("utf-8").replace("micro_batch_size = 8", "micro_batch_size = 2")
    assert outside != path.read_text("utf-8")
    page._edited("optimizer.learning_rate", "0.5")
    path.write_text(outside, encoding="utf-8")
    page._save()
    assert path.read_text("utf-8") == outside
    assert not page.conflict.isHidden()
    assert page.conflict.sentence.text() == "small.toml was changed on disk since you opened it."
    page._reload()
    assert page.conflict.isHidden()
    assert page.draft.text("accumulation.micro_batch_size") == "2"
    assert [kept.texts for kept in page.memory.aside()] == [{"optimizer.learning_rate": "0.5"}]


def test_one_s_own_edits_can_be_kept_over_those_made_elsewhere(page: FormPage, tmp_path: Path) -> None:
    """And the next save asks nothing."""
    path = tmp_path / "small.toml"
    page._edited("optimizer.learning_rate", "0.5")
    path.write_text("this is no recipe", encoding="utf-8")
    page._save()
    assert path.read_text("utf-8") == "this is no recipe"
    page._keep_mine()
    assert "learning_rate = 0.5" in path.read_text("utf-8")
    page._edited("optimizer.learning_rate", "0.25")
    page._save()
    assert page.conflict.isHidden()
    assert "learning_rate = 0.25" in path.read_text("utf-8")


def test_a_change_on_disk_is_told_when_the_page_is_shown_again(
    page: FormPage, tmp_path: Path, qtbot: QtBot
) -> None:
    """Before anything is typed into an old recipe."""
    page.show()
    qtbot.waitExposed(page)
    assert page.conflict.isHidden()
    page.hide()
    path = tmp_path / "small.toml"
    path.write_text(path.read_text("utf-8") + "# a line more\n", encoding="utf-8")
    page.show()
    assert not page.conflict.isHidden()


def test_an_example_is_never_written_over(page: FormPage, tmp_path: Path) -> None:
    """A place among the person's own recipes is proposed; the installation's folder is refused."""
    example = bundled_recipes()[0]
    before = example.read_bytes()
    assert page.set_recipe(example)
    page._edited("run.name", "mine")
    page._save()
    dialog = page.findChild(QFileDialog)
    assert dialog is not None
    assert Path(dialog.selectedFiles()[0]).parent == tmp_path
    dialog.reject()
    assert not page.recipe.save(example)
    assert "Save it in another folder" in page.trouble.more.text()
    assert example.read_bytes() == before


def test_edits_to_several_recipes_are_set_aside_and_each_can_come_back(
    page: FormPage, tmp_path: Path
) -> None:
    """The menu has an entry for each, the newest first, also after a restart of the window."""
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.toml").write_text((tmp_path / "small.toml").read_text("utf-8"), encoding="utf-8")
        assert page.set_recipe(tmp_path / f"{name}.toml")
        page._edited("run.name", f"mine-{name}")
    assert page.set_recipe(tmp_path / "small.toml")
    page.bar.fill_menu()
    entries = [action.text() for action in page.bar.menu.actions() if "Restore" in action.text()]
    assert entries == [f"Restore the edits to {name}.toml" for name in ("c", "b", "a")]
    page.bar.aside_requested.emit(2)
    assert page.draft.text("run.name") == "mine-a"
    assert [Path(kept.recipe).name for kept in FormMemory().aside()] == ["c.toml", "b.toml"]


def test_the_reason_for_a_greyed_kind_is_wrapped(page: FormPage) -> None:
    """Qt breaks the lines of rich text only; whatever the reason says is shown as it stands."""
    page.fields.grey_kinds({"causal-lm": "transformers < 5 & more are missing. " * 20})
    box = page.fields.kind.editor
    assert isinstance(box, ComboBox)
    tip = box.itemData(box.findData("causal-lm"), Qt.ItemDataRole.ToolTipRole)
    assert tip.startswith("<qt>transformers &lt; 5 &amp; more")


def test_what_could_be_started_can_be_handed_to_another_page(page: FormPage) -> None:
    """None while anything is wrong."""
    found = page.startable()
    assert found is not None
    assert found[0] == str(tomlkit.dumps(page.draft.recipe().document))
    page._edited("optimizer.learning_rate", "fast")
    assert page.startable() is None


def test_the_schedule_is_drawn_as_it_is_typed(page: FormPage) -> None:
    """What is half typed leaves the last picture."""
    page._edited("schedule.kind", "wsd")
    retype(page, "schedule.decay_ratio", "0.5")
    picture = page.fields.schedule
    assert "Stable, then decay" in picture.words.text()
    before = picture.line.points()
    retype(page, "schedule.decay_ratio", "x")
    assert picture.line.points() == before
    retype(page, "schedule.decay_ratio", "0.9")
    assert picture.line.points() != before
    page._edited("schedule.kind", "constant")
    page._edited(page.draft.chosen(CHOICE_OF["schedule.warmup_samples"]), "")
    assert picture.isHidden()


def test_a_copied_recipe_has_no_file_and_a_bad_one_leaves_the_form(page: FormPage, tmp_path: Path) -> None:
    """Saving asks where to: the run it came from keeps its own."""
    assert page.open_copy(RECIPE.replace("small", "copied"), tmp_path, "copied")
    assert page.draft.path is None
    before = page.draft.text("accumulation.micro_batch_size")
    assert not page.open_copy("no = [toml", tmp_path, "bad")
    assert page.draft.text("accumulation.micro_batch_size") == before
