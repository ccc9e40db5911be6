"""The newest check of each recipe, kept by what the recipe says, and copied beside the run that it becomes.

It lies in <GRADACC_HOME>/checks, and in the run's directory as check.json.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from trainer_backend.private_files import home, make_private, private_opener
from trainer_backend.recipe import Recipe

KEPT: Final = 100
"""Checks that are kept of recipes that may become a run."""
NAME: Final = "check.json"


def check_path(recipe: Recipe) -> Path:
    """Where the check of a recipe lies, if there is one: the same for the same words and folder."""
    said = {key: value for key, value in recipe.document.unwrap().items() if key != "source"}
    text = json.dumps([said, recipe.source.folder], sort_keys=True, default=str)
    return home() / "checks" / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def keep_check(recipe: Recipe, content: bytes) -> None:
    """Keep a check's report; a disk that refuses costs the copy only."""
    path = check_path(recipe)
    with suppress(OSError):
        make_private(path.parent)
        with open(path, "wb", opener=private_opener) as file:
            file.write(content)
        newest = sorted(path.parent.glob("*.json"), key=lambda found: found.stat().st_mtime, reverse=True)
        for old in newest[KEPT:]:
            old.unlink(missing_ok=True)


def keep_with_run(recipe: Recipe, folder: Path) -> bool:
    """Copy the recipe's check into a run's directory; whether there was one."""
    try:
        shutil.copyfile(check_path(recipe), folder / NAME)
        (folder / NAME).chmod(0o600)
    except OSError:
        return False
    return True
