"""From a recipe to a run directory: what can be told to be wrong before anything starts is told here."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path

from trainer_backend.config_check import Problem
from trainer_backend.kinds.language_model import LanguageModelData, LanguageModelTask
from trainer_backend.recipe import Recipe, RecipeError, default_name, text_for_run
from trainer_backend.run_directory import RunDirectory


def new_run(recipe: Recipe, recipe_path: Path | None = None) -> RunDirectory:
    """Make the directory of a run that `launch.start` can start.

    Raises RecipeError when its data is not there, RunDirectoryError when nothing can be written.
    """
    where = str(recipe_path) if recipe_path is not None else "recipe"
    problems = preflight(recipe)
    if problems:
        raise RecipeError(where, problems)
    name = recipe.config.run.name or default_name(recipe_path)
    text = text_for_run(recipe, recipe_path=str(recipe_path.absolute()) if recipe_path else "")
    return RunDirectory.create(text, name=name)


def preflight(recipe: Recipe) -> list[Problem]:
    """What the recipe names and this machine lacks. A few looks at the disk; no data is read."""
    task, data = recipe.config.task, recipe.config.data
    if isinstance(task, LanguageModelTask) and isinstance(data, LanguageModelData) and data.path:
        return _text_problems(recipe.folder, data, task.context_length)
    return []


def _text_problems(folder: Path, data: LanguageModelData, context_length: int) -> list[Problem]:
    path = folder / Path(data.path).expanduser()

    def problem(said: str) -> list[Problem]:
        return [Problem("data.path", data.path, f'data.path = "{data.path}" {said}')]

    if not path.exists():
        return problem(f"is not there ({path}). Give a file or folder of text, or leave it empty.")
    if path.is_file():
        if not os.access(path, os.R_OK):
            return problem("cannot be read. Check its rights.")
        size = path.stat().st_size
        if size <= context_length:
            return problem(
                f"has {size} bytes, fewer than one context (task.context_length = {context_length}, and the"
                " byte after it). Give more text, or a shorter context."
            )
        return []
    found = size = 0
    for file in _matching(path, data.pattern):
        found += 1
        size += file.stat().st_size
        if size > context_length and found > 1:
            return []
    if not found:
        return problem(
            f"has no file that matches data.pattern ({data.pattern}). Give another folder or pattern."
        )
    if size <= context_length:
        return problem(
            f"has {size} bytes of text, fewer than one context (task.context_length = {context_length}, and"
            " the byte after it). Give more text, or a shorter context."
        )
    return []


def _matching(folder: Path, pattern: str) -> Iterator[Path]:
    patterns = [part.strip() for part in pattern.split(",") if part.strip()]
    for root, _, names in os.walk(folder):
        for name in names:
            if any(fnmatch.fnmatch(name, wanted) for wanted in patterns):
                file = Path(root, name)
                if file.is_file() and os.access(file, os.R_OK):
                    yield file
