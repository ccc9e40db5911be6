"""What the README says can be typed as it stands."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

import msgspec

from gradacc_gui import cli
from trainer_backend import protocol
from trainer_backend.config import RunConfig
from trainer_backend.kinds import KINDS
from trainer_backend.recipe import parse_document, recipe_from_document

CHECKOUT = Path(__file__).parents[2]
README = (CHECKOUT / "README.md").read_text("utf-8")


def indented_lines() -> list[str]:
    """The README's lines of code, without their indentation."""
    return [line.strip() for line in README.splitlines() if line.startswith("    ")]


def table_rows() -> dict[str, set[str]]:
    """The README's tables: words in code of the first cell, and those of the second."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", README, flags=re.MULTILINE)
    return {
        name: set(re.findall(r"`([a-z_]+)(?: = [^`]*)?`", cell))
        for head, cell in rows
        for name in re.findall(r"`\[?(\w+)\]?`", head)
    }


def test_ci_runs_the_readmes_test_command() -> None:
    """So that what a newcomer types is what was tested."""
    (command,) = [line for line in indented_lines() if line.endswith(".venv/bin/python -m pytest")]
    assert (CHECKOUT / ".ci" / "run").read_text("utf-8").splitlines()[-1] == command


def test_the_recipe_in_the_readme_is_accepted(tmp_path: Path) -> None:
    """By the check that `gradacc run` makes."""
    (text,) = re.findall(r"```toml\n(.+?)```", README, flags=re.DOTALL)
    recipe = recipe_from_document(parse_document(text), folder=tmp_path)
    assert recipe.config.effective_batch == 32


def test_the_readme_names_every_key_of_a_recipe() -> None:
    """And none that is not there."""
    told = table_rows()
    for section in msgspec.structs.fields(RunConfig):
        if section.name not in ("task", "data"):
            known = {field.name for field in msgspec.structs.fields(section.type)}
            assert told[section.name] == known, section.name


def test_the_readme_names_every_kind_of_task() -> None:
    """As the recipe wants them."""
    assert [kind for kind in KINDS if f"`{kind}`" not in README] == []


def test_what_a_kind_says_to_install_is_its_extra() -> None:
    """The packages are named, since an interpreter of the user's own need not have gradacc."""
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    named = {
        name: tuple(sorted(text.partition(">=")[0] for text in extras[name])) for name in ("hf", "vision")
    }
    assert {kind.packages for kind in KINDS.values()} == {(), *named.values()}


def test_the_readme_names_every_command() -> None:
    """And none that is not there."""
    (actions,) = [
        action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction)
    ]
    told = {line.split()[1] for line in indented_lines() if re.match(r"gradacc [a-z]", line)}
    assert told == set(actions.choices)


def test_fields_that_scripts_may_rely_on_are_there() -> None:
    """A field that is renamed breaks other people's scripts."""
    told = table_rows()
    kinds = protocol.FACTS | {kind.__name__: kind for kind in protocol.MEASUREMENTS}
    promised = {name: fields for name, fields in told.items() if name in kinds}
    assert len(promised) == 7
    for name, fields in promised.items():
        assert fields <= set(kinds[name].__struct_fields__), name
