"""What the README and its second part, HOW-IT-WORKS, say can be typed as it stands."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from gradacc_gui import cli
from trainer_backend import protocol
from trainer_backend.config import RunConfig
from trainer_backend.kinds import KINDS
from trainer_backend.recipe import parse_document, recipe_from_document

CHECKOUT = Path(__file__).parents[2]
README = (CHECKOUT / "README.md").read_text("utf-8")
MANUAL = (CHECKOUT / ".github" / "HOW-IT-WORKS.md").read_text("utf-8")


def indented_lines(text: str) -> list[str]:
    """Its lines of code, without their indentation."""
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


def table_rows() -> dict[str, set[str]]:
    """The manual's tables: words in code of the first cell, and those of the second."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", MANUAL, flags=re.MULTILINE)
    return {
        name: set(re.findall(r"`([a-z0-9_]+)(?: = [^`]*)?`", cell))
        for head, cell in rows
        for name in re.findall(r"`\[?(\w+)\]?`", head)
    }


def test_ci_runs_the_readmes_test_command() -> None:
    """So that what a newcomer types is what was tested."""
    (command,) = [line for line in indented_lines(README) if line.endswith(".venv/bin/python -m pytest")]
    assert (CHECKOUT / ".ci" / "run").read_text("utf-8").splitlines()[-1] == command


@pytest.mark.parametrize("page", [README, MANUAL], ids=["README", "HOW-IT-WORKS"])
def test_the_recipe_of_each_page_is_accepted(page: str, tmp_path: Path) -> None:
    """By the check that `gradacc run` makes."""
    (text,) = re.findall(r"```toml\n(.+?)```", page, flags=re.DOTALL)
    recipe = recipe_from_document(parse_document(text), folder=tmp_path)
    assert recipe.config.effective_batch == 32


def test_the_manual_names_every_key_of_a_recipe() -> None:
    """And none that is not there."""
    told = table_rows()
    for section in msgspec.structs.fields(RunConfig):
        if section.name not in ("task", "data"):
            known = {field.name for field in msgspec.structs.fields(section.type)}
            assert told[section.name] == known, section.name


def test_the_manual_names_every_kind_of_task() -> None:
    """As the recipe wants them."""
    assert [kind for kind in KINDS if f"`{kind}`" not in MANUAL] == []


def test_what_a_kind_says_to_install_is_its_extra() -> None:
    """The packages are named, since an interpreter of the user's own need not have gradacc."""
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    named = {
        name: tuple(sorted(text.partition(">=")[0] for text in extras[name])) for name in ("hf", "vision")
    }
    assert {kind.packages for kind in KINDS.values()} == {(), *named.values()}


def test_the_manual_names_every_command() -> None:
    """And none that is not there."""
    (actions,) = [
        action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction)
    ]
    told = {line.split()[1] for line in indented_lines(MANUAL) if re.match(r"gradacc [a-z]", line)}
    assert told == set(actions.choices)


def test_fields_that_scripts_may_rely_on_are_there() -> None:
    """A field that is renamed breaks other people's scripts."""
    told = table_rows()
    kinds = protocol.FACTS | {kind.__name__: kind for kind in protocol.MEASUREMENTS}
    promised = {name: fields for name, fields in told.items() if name in kinds}
    assert len(promised) == 7
    for name, fields in promised.items():
        assert fields <= set(kinds[name].__struct_fields__), name


def test_the_readme_is_short_enough_for_a_newcomer() -> None:
    """What a first look does not need is in the manual, which it links."""
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("path", ["README.md", ".github/HOW-IT-WORKS.md", ".github/CONTRIBUTING.md"])
def test_every_link_to_a_file_or_a_heading_leads_there(path: str) -> None:
    """A picture that is renamed, or a section, would leave a dead link."""
    page = CHECKOUT / path
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    assert targets
    for target in targets:
        file, _, heading = target.partition("#")
        linked = page.parent / file if file else page
        assert linked.exists(), target
        if heading:
            assert heading in _anchors(linked.read_text("utf-8")), target


def _anchors(text: str) -> set[str]:
    """How headings are linked: in small letters, spaces as hyphens, without punctuation."""
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_each_measured_figure_says_whether_it_met_its_target() -> None:
    """What, figure, target, met or missed, date, machine; where there is no target, nothing is met."""
    table = MANUAL.partition("| what | figure | target | met or missed | date | machine |\n")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[1:]]
    assert len(rows) > 10
    for what, _figure, target, verdict, date, machine in rows:
        assert (target == "none") == (verdict == ""), what
        assert re.search(r"met|missed|inconclusive|^$", verdict), what
        assert re.match(r"20\d\d-\d\d-\d\d", date), what
        assert machine, what
