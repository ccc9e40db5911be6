"""What is typed stays as typed; only what is right becomes a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomlkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradacc_gui.recipe.arrangement import CHOICES
from gradacc_gui.recipe.draft import PUBLISHED, Draft
from gradacc_gui.recipe.field_specs import all_specs
from tests.support.recipes import RECIPE
from trainer_backend.config import KINDS, RunConfig
from trainer_backend.errors import UsageError
from trainer_backend.recipe import parse_document, recipe_from_document

N = "accumulation.gradient_accumulation_steps"
BATCH = "accumulation.effective_batch_size"
LENGTH, ACCUMULATION, _CHECKPOINT, WARM_UP = CHOICES


def draft_of(text: str) -> Draft:
    """The draft of a recipe's text."""
    return Draft(recipe_from_document(parse_document(text), folder=Path("/nowhere")))


def faults_of(draft: Draft) -> dict[str, str]:
    """The sentences beside its fields."""
    checked = draft.check()
    return {} if isinstance(checked, RunConfig) else checked


def test_a_draft_that_nobody_touched_is_the_recipe_byte_for_byte(draft: Draft) -> None:
    """Opening and saving changes nothing."""
    assert tomlkit.dumps(draft.document()) == RECIPE
    assert not draft.is_edited


def test_an_edit_changes_its_own_value_and_keeps_every_comment(draft: Draft) -> None:
    """The rest of the file stays as its author wrote it."""
    draft.set_text(N, "16")
    draft.set_text("schedule.warmup_samples", "640")
    text = tomlkit.dumps(draft.document())
    assert "gradient_accumulation_steps = 16   # N" in text
    assert "# kept: a line of its own" in text
    assert "max_optimizer_steps = 2_000   # kept: at a line's end" in text
    assert "learning_rate = 3e-4" in text
    assert draft.recipe().config.schedule.warmup_samples == 640


def test_a_word_that_may_stand_for_a_number_is_written_as_a_word(draft: Draft) -> None:
    """No checkpoints on the way; a number after it is a number again."""
    for text, minutes in (("never", None), ("5", 5.0)):
        draft.set_text("checkpoint.every_minutes", text)
        assert faults_of(draft) == {}
        assert draft.recipe().config.checkpoint.minutes == minutes
        assert draft.text("checkpoint.every_minutes") == text


def test_typing_the_old_value_again_is_no_edit(draft: Draft) -> None:
    """The mark goes away when nothing differs."""
    draft.set_text(N, "5")
    assert draft.is_edited
    draft.set_text(N, "4")
    assert not draft.is_edited


@pytest.mark.parametrize("text", ["0", "-4", "0.5", "", "  ", "abc", str(10**12), "4.0"])
@pytest.mark.parametrize("path", [N, "accumulation.micro_batch_size", BATCH, "run.max_optimizer_steps"])
def test_nonsense_for_a_count_is_said_beside_its_field_and_makes_no_recipe(
    draft: Draft, path: str, text: str
) -> None:
    """0, negatives, decimals, blanks, words and slips are explained, never clamped."""
    if path == BATCH:
        draft.choose(ACCUMULATION, BATCH)
        if text == str(10**12):
            text = str(10**16)
    if path == "run.max_optimizer_steps" and text == str(10**12):
        text = str(10**16)
    draft.set_text(path, text)
    faults = faults_of(draft)
    place = N if path == BATCH else path
    assert list(faults) == [place]
    assert faults[place][-1] in ".…"
    assert path not in faults[place]
    with pytest.raises(UsageError):
        draft.recipe()


def test_the_sentence_names_the_value_the_bounds_and_one_to_try(draft: Draft) -> None:
    """Value, what would be right, remedy."""
    draft.set_text(N, "0")
    assert faults_of(draft)[N] == "0 is not right. It must be a whole number from 1 to 1,000,000. Try 4."


def test_every_fault_is_said_at_once(draft: Draft) -> None:
    """Not one after the other."""
    draft.set_text(N, "0")
    draft.set_text("optimizer.betas", "0.9")
    draft.set_text("run.device", "gpu")
    draft.set_text(PUBLISHED, "x =")
    assert set(faults_of(draft)) == {N, "optimizer.betas", "run.device", PUBLISHED}


def test_n_and_the_effective_batch_exclude_each_other(draft: Draft) -> None:
    """One is written; the other is taken out of the recipe."""
    draft.choose(ACCUMULATION, BATCH)
    draft.set_text(BATCH, "64")
    recipe = draft.recipe()
    assert recipe.config.accumulation_steps == 8
    assert "gradient_accumulation_steps" not in tomlkit.dumps(recipe.document)


def test_an_effective_batch_that_does_not_divide_names_its_neighbours(draft: Draft) -> None:
    """30 is not 8 times anything."""
    draft.choose(ACCUMULATION, BATCH)
    draft.set_text(BATCH, "30")
    assert "Try 24 or 32" in faults_of(draft)[N]


def test_a_recipe_without_the_table_of_accumulation_keeps_its_n_when_the_table_is_made() -> None:
    """Without the table N is 4; with a micro-batch size in it, it must still be."""
    draft = draft_of("[run]\nepochs = 1\n")
    assert draft.text(N) == "4"
    draft.set_text("accumulation.micro_batch_size", "2")
    config = draft.recipe().config
    assert (config.accumulation.micro_batch_size, config.accumulation_steps) == (2, 4)


def test_another_kind_brings_its_own_fields_and_the_way_back_brings_the_edits(draft: Draft) -> None:
    """Looking at another kind costs nothing that was typed."""
    draft.set_text("task.layers", "6")
    draft.set_kind("custom")
    assert "task.entry" in faults_of(draft)
    draft.set_text("task.entry", "my_task:Task")
    draft.set_text("task.options", "size = 3  # kept\n[inner]\ndeep = true")
    config = draft.recipe().config
    assert config.kind == "custom"
    text = tomlkit.dumps(draft.document())
    assert "[task.options.inner]" in text
    assert "size = 3  # kept" in text
    draft.set_kind("language-model")
    assert draft.text("task.layers") == "6"
    assert draft.recipe().config.task.layers == 6  # type: ignore[attr-defined]  # a language model's task


def test_toml_lines_that_are_wrong_say_where(draft: Draft) -> None:
    """Of the options of one's own code."""
    draft.set_kind("custom")
    draft.set_text("task.entry", "a:b")
    draft.set_text("task.options", "size = \nother = 2")
    assert "line 1" in faults_of(draft)["task.options"]


def test_published_values_are_edited_as_lines_and_keep_their_comments() -> None:
    """Headers inside the table start at the table; what is written starts at the recipe."""
    draft = draft_of(
        RECIPE + '\n[published]\nsource = "x"  # where\n[published.optimizer]\nlearning_rate = 1\n'
    )
    assert draft.text(PUBLISHED) == 'source = "x"  # where\n[optimizer]\nlearning_rate = 1'
    draft.set_text(PUBLISHED, draft.text(PUBLISHED) + "\nname = 'lamb'")
    recipe = draft.recipe()
    assert recipe.config.published.optimizer == {"learning_rate": 1, "name": "lamb"}
    assert "# where" in tomlkit.dumps(recipe.document)
    draft.set_text(PUBLISHED, "")
    assert "published" not in tomlkit.dumps(draft.document())


def test_a_draft_comes_back_from_disk_with_everything_typed_right_or_not(draft: Draft) -> None:
    """Also what is no recipe yet."""
    draft.set_text(N, "abc")
    draft.set_kind("custom")
    draft.set_text("task.entry", "a:b")
    draft.choose(LENGTH, "run.epochs")
    draft.set_text("run.epochs", "3")
    back = Draft.restore(draft.keep())
    assert back.data() == draft.data()
    assert back.keep() == draft.keep()


def test_relative_paths_are_written_out_for_another_folder(draft: Draft, tmp_path: Path) -> None:
    """Saved elsewhere, the recipe still finds its data."""
    (tmp_path / "books").mkdir()
    draft.set_text("data.path", "books")
    assert draft.moved_document()["data"]["path"] == str(tmp_path / "books")


TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "0",
            "-4",
            "0.5",
            "1",
            "7",
            "1e-3",
            "true",
            "0: 4, 64: 8",
            "0.9, 0.95",
            "x = 1",
            "a:b",
            "cpu",
            "cosine",
        ]
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(list(KINDS)))
def test_any_texts_in_any_fields_give_a_recipe_that_is_right_or_sentences(
    data: st.DataObject, kind: str
) -> None:
    """The draft never raises while typed into; a recipe comes out exactly when the check is content."""
    draft = draft_of(RECIPE)
    draft.set_kind(kind)
    paths = st.sampled_from([*all_specs(kind), PUBLISHED])
    for path, text in data.draw(st.lists(st.tuples(paths, TEXTS), max_size=6)):
        draft.set_text(path, text)
    for choice in CHOICES:
        draft.choose(choice, data.draw(st.sampled_from(choice.paths)))
    checked = draft.check()
    assert Draft.restore(draft.keep()).data() == draft.data()
    if isinstance(checked, RunConfig):
        assert draft.recipe().config == checked
    else:
        assert all(checked.values())
        with pytest.raises(UsageError):
            draft.recipe()


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("optimizer.learning_rate", "0,5", '"0,5" is not a number here. Use a decimal point: 0.5'),
        (
            "optimizer.learning_rate",
            "-3,5e-4",
            '"-3,5e-4" is not a number here. Use a decimal point: -3.5e-4',
        ),
        ("optimizer.learning_rate", "1,000", '"1,000" is not a number here. Leave out the commas: 1000'),
        (
            "accumulation.micro_batch_size",
            "1,000",
            '"1,000" is not a number here. Leave out the commas: 1000',
        ),
    ],
)
def test_a_comma_in_a_number_is_named_with_what_to_write(
    draft: Draft, path: str, text: str, sentence: str
) -> None:
    """It is never guessed whether a decimal point was meant."""
    draft.set_text(path, text)
    assert faults_of(draft)[path] == sentence


def test_a_power_of_ten_is_a_whole_number_and_goes_into_the_recipe_as_one(draft: Draft) -> None:
    """The recipe's own check takes no float for a count."""
    draft.set_text("run.max_optimizer_steps", "1e3")
    assert draft.recipe().config.run.max_optimizer_steps == 1000
    assert "max_optimizer_steps = 1000" in tomlkit.dumps(draft.document())
    draft.set_text("run.max_optimizer_steps", "1.5e0")
    assert "run.max_optimizer_steps" in faults_of(draft)


@pytest.mark.parametrize("text", ["0.9, 0.95", "[0.9, 0.95]", "(0.9, 0.95)", " [ 0.9 , 0.95 ] "])
def test_a_pair_is_taken_in_brackets_too(draft: Draft, text: str) -> None:
    """As it stands in a recipe, and in Python."""
    draft.set_text("optimizer.betas", text)
    assert draft.recipe().config.optimizer.betas == (0.9, 0.95)


@pytest.mark.parametrize("text", ["", "0.9", "0.9, 1.5", "[0.9, 0.95", "a, b"])
def test_a_wrong_pair_is_told_in_one_sentence(draft: Draft, text: str) -> None:
    """Not a sentence inside another."""
    draft.set_text("optimizer.betas", text)
    assert faults_of(draft)["optimizer.betas"] == (
        "Enter 2 numbers separated by a comma, each from 0 to below 1: 0.9, 0.95."
    )


def test_a_wrong_pair_that_may_be_absent_is_told_with_an_example_of_its_own(draft: Draft) -> None:
    """There is no default to show."""
    draft.set_kind("segmentation")
    draft.set_text("data.value_range", "0")
    assert faults_of(draft)["data.value_range"] == "Enter 2 numbers separated by a comma: 0, 4095."


def test_a_warm_up_is_counted_in_what_a_person_chooses(draft: Draft) -> None:
    """Samples, steps, a share or tokens: the recipe has one of them."""
    draft.set_text("schedule.warmup_samples", "640")
    draft.choose(WARM_UP, "schedule.warmup_ratio")
    draft.set_text("schedule.warmup_ratio", "0.03")
    schedule = draft.recipe().config.schedule
    assert (schedule.warmup_samples, schedule.warmup_ratio) == (None, 0.03)


def test_milestones_are_typed_as_numbers(draft: Draft) -> None:
    """Separated by commas, in brackets or not."""
    draft.set_text("schedule.kind", "multistep")
    for text in ("1_000, 2e3", "[1000, 2000]"):
        draft.set_text("schedule.milestones", text)
        assert draft.recipe().config.schedule.milestones == (1000, 2000)
    draft.set_text("schedule.milestones", "1000, x")
    assert not isinstance(draft.check(), RunConfig)
