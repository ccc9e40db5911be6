"""From a recipe to a run directory: what can be told to be wrong before anything starts is told here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gradacc_gui.recipe.data_facts import Question, look
from trainer_backend.config_check import Problem, fields, metadata, show
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
    """What the recipe names and this machine lacks: paths that are not there, text that is too short.

    Looks at the disk, for seconds at most in a very large folder: not for the GUI thread.
    """
    task, data = recipe.config.task, recipe.config.data
    paths = dict(_paths(recipe))
    question = Question(
        kind=recipe.config.kind,
        folder=recipe.source.folder,
        paths=tuple(paths.items()),
        pattern=getattr(data, "pattern", ""),
        context_length=getattr(task, "context_length", 0),
        held_out=getattr(data, "validation_fraction", 0.0),
    )
    return [
        Problem(field, paths[field], f"{field} = {show(paths[field])}: {fault}")
        for field, fault in look(question).faults.items()
    ]


def _paths(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Fields of the data that name a file or folder, and what they name; a task's model may be a hub's."""
    data = recipe.config.data
    for name, field in fields(type(data)).items():
        value = getattr(data, name)
        if "path" in metadata(field.type)[2] and isinstance(value, str) and value.strip():
            yield f"data.{name}", value
