"""A pair is a file and its meaning; the import is exact where nothing of the meaning is missing or other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gradacc_gui.importing.programs import import_keys, program_of
from trainer_backend.config import RunConfig
from trainer_backend.config_check import check
from trainer_backend.errors import UsageError
from trainer_backend.schedule import schedule_of

STEPS: Final = 40
"""Optimizer steps of a run over which learning rates are compared, where the file gives no number."""
ABSENT: Final = "(absent)"
"""Of a recipe key that the import may not set."""


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What a file means to its own program."""

    recipe: dict[str, Any]
    """By recipe key; `ABSENT` where the recipe may not have it."""
    rates: tuple[float, ...] = ()
    """Learning rates of the optimizer steps, from the first; empty: not compared."""
    open: tuple[str, ...] = ()
    """Keys that are asked for, all of them; empty: not compared."""
    refused: tuple[str, ...] = ()
    """Words of the refusal; empty: it is imported."""
    changes: tuple[str, ...] | None = None
    """Keys of the file that are left out though they change the run, all of them; None: not compared."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A file, whose program it is, and what says what it means."""

    name: str
    program: str
    given: dict[str, Any]
    meaning: Callable[[], Meaning]
    source: str
    """The class that was asked, or file and line of the program's source."""


def differences(pair: Pair) -> list[str]:
    """What the import of a pair's file gets wrong, a sentence each; empty when it is exact."""
    right = pair.meaning()
    program = program_of(pair.given)
    if program is None or program.name != pair.program:
        return [f"it is read as {program.name if program else 'nothing'}"]
    try:
        imported = import_keys(program, pair.given)
    except UsageError as error:
        missing = [word for word in right.refused if word not in str(error)]
        return [] if right.refused and not missing else [f"it is refused: {error}"]
    if right.refused:
        return ["it is not refused"]
    found = {
        f"{name}.{key}": value for name, table in imported.tables.items() for key, value in table.items()
    }
    wrong = [
        f"{key} = {found.get(key, ABSENT)!r}, right {value!r}"
        for key, value in right.recipe.items()
        if not _is_equal(found.get(key, ABSENT), value)
    ]
    asked = tuple(one.key for one in imported.open)
    if right.open and set(asked) != set(right.open):
        wrong.append(f"open: {asked}, right {right.open}")
    left = {line.key for line in imported.of("changes-the-run")}
    if right.changes is not None and left != set(right.changes):
        wrong.append(f"left out: {sorted(left)}, right {right.changes}")
    return wrong + _rate_differences(imported.tables, right.rates)


def _is_equal(found: Any, right: Any) -> bool:
    if isinstance(found, float) and isinstance(right, int | float):
        return math.isclose(found, right, rel_tol=1e-12)
    if isinstance(right, list) and isinstance(found, list | tuple):
        return len(found) == len(right) and all(map(_is_equal, found, right))
    return bool(found == right) and isinstance(found, bool) == isinstance(right, bool)


def _rate_differences(tables: dict[str, dict[str, Any]], right: tuple[float, ...]) -> list[str]:
    """The learning rates of the first steps, which are those after so many samples."""
    if not right:
        return []
    config = check(tables)
    assert isinstance(config, RunConfig), config
    batch = config.effective_batch
    schedule = schedule_of(config, len(right) * batch)
    ours = [config.optimizer.learning_rate * schedule.ratio(step * batch) for step in range(len(right))]
    worst = max(range(len(right)), key=lambda step: abs(ours[step] - right[step]))
    if math.isclose(ours[worst], right[worst], rel_tol=1e-12, abs_tol=1e-18):
        return []
    return [f"learning rate of step {worst}: {ours[worst]:.12g}, right {right[worst]:.12g}"]
