"""What the built-in kinds share: how they are made from a recipe, and how they find their files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Generic, Literal, Self, TypeAlias, TypeVar

from trainer_backend.errors import UsageError
from trainer_backend.protocol import Scalar
from trainer_backend.recipe import Recipe
from trainer_backend.section import Section

ReportWarning: TypeAlias = Callable[[str, dict[str, Scalar]], None]
"""`warn(code, values)` becomes a `Warned` in the journal."""
T = TypeVar("T", bound=Section)
D = TypeVar("D", bound=Section)
Entry = TypeVar("Entry")


def unheard(_code: str, _values: dict[str, Scalar]) -> None:
    """A `ReportWarning` where nobody listens."""


@dataclasses.dataclass(eq=False)
class BuiltIn(Generic[T, D]):
    """A task of a built-in kind: its two tables of the recipe, and what it wants to know of the others."""

    task: T
    data: D
    _: dataclasses.KW_ONLY
    folder: Path
    """What relative paths start in."""
    normalization: Literal["tokens", "samples"] = "tokens"
    seed: int = 0
    accumulation_steps: int = 1
    warn: ReportWarning = unheard
    most_records: int | None = None
    """Read only so many of each data path, for a quick look; None: all of them."""

    @classmethod
    def from_recipe(cls, recipe: Recipe, warn: ReportWarning, *, most_records: int | None = None) -> Self:
        """The task of a recipe of this kind. Raises UsageError."""
        config = recipe.config
        return cls(
            config.task,  # type: ignore[arg-type]  # the check gave the sections of this kind
            config.data,  # type: ignore[arg-type]
            folder=recipe.folder,
            normalization=config.accumulation.normalization,
            seed=config.run.seed,
            accumulation_steps=config.accumulation_steps,
            warn=warn,
            most_records=most_records,
        )

    def spread(self, entries: list[Entry]) -> list[Entry]:
        """At most `most_records` of them, evenly spread."""
        most = self.most_records
        return entries if most is None else entries[:: max(1, -(-len(entries) // most))]

    def __post_init__(self) -> None:
        """What a kind does with these when it is made. Raises UsageError where they do not fit."""

    def path(self, text: str) -> Path:
        """Where a path of the recipe leads."""
        return place(self.folder, text)


def place(folder: Path, text: str) -> Path:
    """Where a path that a person wrote leads: `~` is their home, a relative one starts at `folder`."""
    return folder / os.path.expanduser(text)  # noqa: PTH111 - pathlib's raises where "~x" is no user


def files_in(folder: Path, suffixes: Collection[str], key: str) -> list[Path]:
    """The files of a folder and its folders with these suffixes, in a fixed order. Raises UsageError."""
    if not folder.is_dir():
        message = f"{key} = {folder} is not a folder. Check the path; it starts at the recipe's folder."
        raise UsageError(message)
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file())
    if not found:
        message = f"{key} = {folder} holds no {', '.join(sorted(suffixes))} file. Choose another folder."
        raise UsageError(message)
    return found
