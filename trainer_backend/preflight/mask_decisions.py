"""Masks whose values the recipe does not explain: what to decide, and the pictures that show why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer_backend.preflight.data_checks import found
from trainer_backend.preflight.findings import Amendment, ClassShares, Finding, FirstWindow
from trainer_backend.preflight.picture_rows import mask_shares, undecided_window
from trainer_backend.recipe import Recipe
from trainer_backend.tasks.built_in import unheard
from trainer_backend.tasks.making import make_task
from trainer_backend.tasks.vision.masks import MaskDecisionError


def undecided(
    recipe: Recipe, error: Exception, pictures: Path | None
) -> tuple[Finding, FirstWindow, ClassShares] | None:
    """What is shown of masks that need a decision; None where `error` is about something else."""
    if not isinstance(error, MaskDecisionError):
        return None
    task: Any = make_task(recipe, unheard)
    task.list_files()
    rules = task.rules.mask
    window = undecided_window(recipe.config, task, error, pictures)
    shares = mask_shares(error.survey, rules, error.undecided)
    if error.undecided:
        value = error.undecided[0]
        is_foreground = rules.classes == 2 and len(error.undecided) == 1 and 1 not in error.survey.pixels
        change = (
            Amendment(key="data.mask_values", value={str(value): 1})
            if is_foreground
            else Amendment(key="task.ignore_value", value=value)
        )
        return found("masks-undecided", "stop", change, sentence=str(error), value=value), window, shares
    change = Amendment(key="data.allow_missing_classes", value=True)
    return found("classes-missing", "stop", change, sentence=str(error)), window, shares
