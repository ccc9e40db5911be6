"""Recipe files: read with their faults named, edited with their comments kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomlkit

from trainer_backend import recipe as recipe_module
from trainer_backend.__main__ import main
from trainer_backend.config import RunConfig
from trainer_backend.config_check import Problem, check
from trainer_backend.errors import UsageError
from trainer_backend.recipe import (
    Recipe,
    RecipeError,
    load_recipe,
    parse_document,
    parse_setting,
    recipe_for_run,
    save_recipe,
    set_value,
    with_settings,
)
from trainer_backend.run_directory import RunDirectory, all_runs

TEXT = """\
# my recipe
[run]
name = "small"  # a name
max_samples = 64

[accumulation]
micro_batch_size = 2   # what fits
gradient_accumulation_steps = 4
"""


@pytest.fixture
def recipe_path(tmp_path: Path) -> Path:
    """A good recipe on disk."""
    path = tmp_path / "small.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_a_changed_value_leaves_every_comment_where_it_was(recipe_path: Path) -> None:
    """Only the value differs in the saved file."""
    recipe = load_recipe(recipe_path)
    set_value(recipe.document, "accumulation.micro_batch_size", 16)
    set_value(recipe.document, "optimizer.learning_rate", 0.1)
    save_recipe(recipe.document, recipe_path)
    text = recipe_path.read_text("utf-8")
    assert text.startswith(TEXT.replace("micro_batch_size = 2 ", "micro_batch_size = 16 "))
    assert load_recipe(recipe_path).config.optimizer.learning_rate == 0.1


def test_a_value_can_be_taken_away(recipe_path: Path) -> None:
    """None removes a key, and removing what is not there changes nothing."""
    recipe = load_recipe(recipe_path)
    set_value(recipe.document, "run.name", None)
    set_value(recipe.document, "targets.cost", None)
    assert "name" not in recipe.document["run"]
    assert "targets" not in recipe.document


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[run\n", "is not valid TOML"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
        (b"a = 1\na = 2\n", "is not valid TOML"),
        (b"#" * (1024 * 1024 + 1), "larger than 1 MiB"),
    ],
)
def test_an_unreadable_recipe_is_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    """The path and the remedy are in it."""
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words) as caught:
        load_recipe(path)
    assert str(path) in str(caught.value)


def test_a_missing_recipe_and_a_folder_are_sentences(tmp_path: Path) -> None:
    """The operating system's reason is passed on."""
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            load_recipe(path)


def test_all_faults_of_a_recipe_come_together(tmp_path: Path) -> None:
    """One line each, with the file's name."""
    path = tmp_path / "two.toml"
    path.write_text("[run]\nmax_samples = 0\n[accumulation]\nsteps = 3\n", encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert [problem.path for problem in caught.value.problems] == ["run.max_samples", "accumulation.steps"]
    assert str(caught.value).count(str(path)) == 2


def test_the_recipe_of_a_run_says_where_it_came_from_and_runs_again(
    recipe_path: Path, tmp_path: Path
) -> None:
    """Its source folder survives being read from another place."""
    recipe_path.with_name("mine.py").write_text("class Task: ...\n", encoding="utf-8")
    recipe = load_recipe(recipe_path)
    set_value(recipe.document, "task.kind", "custom")
    set_value(recipe.document, "task.entry", "mine:Task")
    save_recipe(recipe.document, recipe_path)
    text = recipe_for_run(load_recipe(recipe_path), recipe_path=str(recipe_path)).text
    copy = tmp_path / "elsewhere" / "recipe.toml"
    copy.parent.mkdir()
    copy.write_text(text, encoding="utf-8")
    again = load_recipe(copy)
    assert again.folder == recipe_path.parent
    assert len(again.source.entry_sha256) == 64
    assert recipe_for_run(again).text == text
    assert RunDirectory(copy.parent).asked_name == "small"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run.seed=3", ("run.seed", 3)),
        ("run.name=my run", ("run.name", "my run")),
        ('run.name="3"', ("run.name", "3")),
        ("optimizer.betas=[0.9, 0.99]", ("optimizer.betas", [0.9, 0.99])),
        ("run.compile=true", ("run.compile", True)),
        ("run.name=", ("run.name", "")),
    ],
)
def test_a_setting_on_the_command_line_is_toml_or_a_bare_word(
    text: str, expected: tuple[str, object]
) -> None:
    """So that people need no quotes around a word."""
    assert parse_setting(text) == expected


@pytest.mark.parametrize("key", ["seed", "", "run.", ".seed", "run.seed.deep"])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    """Keys are table and name."""
    document = parse_document("[run]\nseed = 1\n")
    with pytest.raises(UsageError, match="not a recipe key"):
        set_value(document, key, 1)


def test_a_setting_without_a_value_is_refused() -> None:
    """KEY=VALUE is said."""
    with pytest.raises(UsageError, match="KEY=VALUE"):
        parse_setting("run.seed")


def test_a_full_disk_costs_no_recipe(recipe_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file stands when the new one cannot be written."""

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    document = tomlkit.parse("[run]\n")
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UsageError, match="No space left"):
        save_recipe(document, recipe_path)
    assert recipe_path.read_text("utf-8") == TEXT
    assert list(recipe_path.parent.iterdir()) == [recipe_path]


def test_a_run_s_recipe_is_read_again_only_when_its_file_changed(recipe_path: Path) -> None:
    """Charts, lists and commands ask for it often; a person edits it between two attempts."""
    run = RunDirectory.create(recipe_for_run(load_recipe(recipe_path)).text, name="x")
    first = run.recipe()
    assert run.recipe() is first
    assert RunDirectory(run.path).recipe() is first
    assert (run.asked_name, run.recipe_value("run.max_samples")) == ("small", 64)
    changed = with_settings(first, ["run.max_samples=65"], "recipe")
    assert first.config.run.max_samples == 64
    save_recipe(changed.document, run.recipe_path)
    config = run.config()
    assert config is not None
    assert config.run.max_samples == run.recipe_value("run.max_samples") == 65
    run.recipe_path.write_text("[run]\nname = 3\n", encoding="utf-8")
    assert run.config() is None
    assert (run.asked_name, run.recipe_value("run.name")) == ("", 3)
    run.recipe_path.unlink()
    assert run.recipe_value("run.name") is None


def test_a_recipe_is_checked_once_on_its_way_into_a_run(
    recipe_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's directory gets what was checked, and the trainer takes that."""
    checks: list[object] = []
    given: list[Recipe] = []

    def counted(data: dict[str, Any]) -> RunConfig | list[Problem]:
        checks.append(data)
        return check(data)

    def attempt(_run: RunDirectory, recipe: Recipe, **_how: object) -> int:
        given.append(recipe)
        return 0

    monkeypatch.setattr(recipe_module, "check", counted)
    monkeypatch.setattr("trainer_backend.trainer.attempt.run_attempt", attempt)
    assert main(["run", str(recipe_path)]) == 0
    assert len(checks) == 1
    written = RunDirectory(all_runs()[0].path).recipe()
    assert given[0].config == written.config
    assert given[0].source == written.source
