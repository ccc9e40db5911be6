"""The account of an import beside the form: five groups, the recipe, and what only the person knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent, QPalette
from PySide6.QtWidgets import QApplication, QLabel, QWidget

from gradacc_gui.form.new_run_page import FormPage
from trainer_backend.recipe import load_recipe

CONFIGURATION = """
model_name_or_path: models/small
stage: sft
finetuning_type: lora
lora_rank: 8
dataset: mine
cutoff_len: 512
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 1.0e-4
eval_strategy: epoch
val_size: 0.1
neftune_noise_alpha: 5
plot_loss: true
"""
OPEN = ["data.path", "evaluation.every_samples"]


@pytest.fixture
def brought(page: FormPage, tmp_path: Path) -> FormPage:
    """A page that shows the account of a LLaMA-Factory file."""
    path = tmp_path / "theirs.yaml"
    path.write_text(CONFIGURATION, encoding="utf-8")
    page.resize(1170, 650)
    page.show()
    page.recipe.bring_over(path)
    return page


def texts(widget: QWidget) -> list[str]:
    """What the labels in it say."""
    return [made.toolTip() or made.text() for made in widget.findChildren(QLabel)]


def type_into(page: FormPage, key: str, text: str) -> None:
    """Enter a text for an open key."""
    field = page.imports.open_keys.fields[key]
    field.set_text(text)
    field.edited.emit(key, text)


def test_the_groups_are_counted_and_shown_in_words(brought: FormPage) -> None:
    """Defaults of theirs stand among what was translated; consequences are sentences."""
    imported = brought.imports.recipe()
    counts = {group: int(card.number.text()) for group, card in brought.imports.tally.cards.items()}
    assert counts == {
        "taken": len(imported.of("taken")),
        "translated": len(imported.of("translated")) + len(imported.defaults),
        "changes-the-run": 1,
        "harmless": 1,
        "open": len(OPEN),
    }
    shown = texts(brought.imports.account)
    assert "They add noise to the embeddings during training. Here none is added." in shown
    assert "lora_alpha (absent)" in shown
    assert "task.lora_alpha = 16" in shown
    assert brought.bar.name.full_text() == "theirs.yaml, read as LLaMA-Factory"


def test_a_card_goes_to_its_group(brought: FormPage) -> None:
    """And that of the open keys puts the keyboard into the first that is empty."""
    QApplication.processEvents()
    cards = brought.imports.tally.cards
    cards["changes-the-run"].click()
    assert brought.imports.account.verticalScrollBar().value() > 0
    type_into(brought, "data.path", "mine.jsonl")
    cards["open"].click()
    field = brought.imports.open_keys.fields["evaluation.every_samples"]
    assert field.isAncestorOf(brought.focusWidget())


def test_what_is_filled_in_stands_in_the_recipe_at_once(brought: FormPage) -> None:
    """A value that is not right is said beside its field, and stays open."""
    imports = brought.imports
    assert "# to be filled in" in imports.preview.toPlainText()
    assert list(imports.open_keys.fields) == OPEN
    type_into(brought, "evaluation.every_samples", "many")
    assert imports.open_keys.fields["evaluation.every_samples"].error
    assert imports.open_keys.hint.text() == "2 keys that only you know"
    type_into(brought, "evaluation.every_samples", "640")
    assert imports.open_keys.fields["evaluation.every_samples"].error == ""
    assert imports.open_keys.hint.text() == "1 key that only you know"
    type_into(brought, "data.path", "mine.jsonl")
    text = imports.preview.toPlainText()
    assert 'path = "mine.jsonl"' in text
    assert "every_samples = 640" in text
    assert "to be filled in" not in text
    assert imports.tally.cards["open"].number.text() == "0"
    type_into(brought, "data.path", "")
    assert imports.tally.cards["open"].number.text() == "1"


def test_the_recipe_opens_in_the_form_with_what_was_filled_in(brought: FormPage) -> None:
    """Its account stays at hand until another recipe is opened."""
    type_into(brought, "data.path", "mine.jsonl")
    brought.bar.open_import.click()
    assert brought.area.isVisibleTo(brought)
    assert brought.draft.text("data.path") == "mine.jsonl"
    assert brought.draft.text("task.lora_alpha") == "16"
    account = brought.bar.views.button("import")
    assert account.isVisibleTo(brought)
    account.click()
    assert brought.imports.isVisibleTo(brought)
    brought.set_recipe(next(brought.draft.folder.glob("small.toml")))
    assert brought.area.isVisibleTo(brought)
    assert not account.isVisibleTo(brought)


def test_what_was_not_filled_in_is_marked_in_the_form(brought: FormPage) -> None:
    """A stand-in for a path does not start; another path does."""
    brought.bar.open_import.click()
    why = "dataset: mine is a name in their dataset_info.json. Choose the file behind it."
    assert brought.faults["data.path"] == f"Enter this before starting. {why}"
    assert not brought.start_bar.start.isEnabled()
    brought._edited("data.path", str(brought.draft.folder))
    assert "data.path" not in brought.faults


def test_the_recipe_is_saved_where_asked(brought: FormPage, tmp_path: Path) -> None:
    """With the account as comments; it is then the recipe in the form."""
    brought.bar.save_import_requested.emit(tmp_path / "mine.toml")
    assert load_recipe(tmp_path / "mine.toml").config.accumulation_steps == 4
    assert "# left out: neftune_noise_alpha = 5." in (tmp_path / "mine.toml").read_text("utf-8")
    assert brought.draft.path == tmp_path / "mine.toml"


def test_a_configuration_that_is_dropped_is_brought_over(page: FormPage, tmp_path: Path) -> None:
    """As a recipe that is dropped is opened."""
    path = tmp_path / "theirs.yml"
    path.write_text(CONFIGURATION, encoding="utf-8")
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path))])
    none = Qt.KeyboardModifier.NoModifier
    page.dropEvent(QDropEvent(QPointF(5, 5), Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, none))
    assert page.imports.isVisibleTo(page)


def test_what_is_not_trained_here_is_refused_by_name(page: FormPage, tmp_path: Path) -> None:
    """The form stays, with the sentence above it."""
    path = tmp_path / "theirs.yaml"
    path.write_text(CONFIGURATION.replace("sft", "dpo"), encoding="utf-8")
    page.recipe.bring_over(path)
    assert not page.imports.isVisibleTo(page)
    assert "preference pairs" in page.trouble.more.text()


def test_a_narrow_page_puts_the_recipe_below_and_another_theme_colours_it_anew(brought: FormPage) -> None:
    """Nothing is lost."""
    before = brought.imports.preview.toPlainText()
    brought.resize(700, 900)
    QApplication.processEvents()
    imports = brought.imports
    assert imports.recipe_panel.y() > imports.account.y()
    brought.setPalette(QPalette(Qt.GlobalColor.black))
    QApplication.processEvents()
    assert imports.preview.toPlainText() == before
