"""The guide for contributors names what is there."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
GUIDE = (CHECKOUT / ".github" / "CONTRIBUTING.md").read_text("utf-8")
TREES = ("gradacc_gui", "trainer_backend")


def named_paths() -> set[str]:
    """Words in code that are paths: with a stroke, or with a file's ending."""
    words = re.findall(r"`([^`\s]+)`", GUIDE)
    return {
        word for word in words if re.fullmatch(r"[\w./-]+", word) and re.search(r"/|\.(py|toml|txt)$", word)
    }


def is_there(path: str) -> bool:
    """In the checkout; a file without a folder may lie at the top of either package."""
    return any((folder / path).exists() for folder in (CHECKOUT, *(CHECKOUT / tree for tree in TREES)))


def test_every_path_that_the_guide_names_exists() -> None:
    """A file that is renamed leaves no wrong directions behind."""
    paths = named_paths()
    assert len(paths) > 30
    assert sorted(path for path in paths if not is_there(path)) == []


def test_the_map_has_a_line_for_every_package() -> None:
    """Without those inside of one: tasks of one kind."""
    packages = {
        f"{folder.relative_to(CHECKOUT).as_posix()}/"
        for tree in TREES
        for folder in (CHECKOUT / tree, *(CHECKOUT / tree).iterdir())
        if (folder / "__init__.py").is_file()
    }
    lines = re.findall(r"^\| `([\w/]+/)` \|", GUIDE, flags=re.MULTILINE)
    assert sorted(lines) == sorted(packages)


def test_what_the_guide_names_of_the_code_is_there() -> None:
    """The tables that are to be extended."""
    source = "\n".join(path.read_text("utf-8") for tree in TREES for path in (CHECKOUT / tree).rglob("*.py"))
    for name in ("PROGRAMS", "KeyRow", "Chart", "LossTerm"):
        assert f"`{name}`" in GUIDE
        assert re.search(rf"^(class {name}\b|{name}: Final)", source, flags=re.MULTILINE), name
