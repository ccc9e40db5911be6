"""`gradacc import FILE`: another trainer's configuration becomes a recipe."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
from pathlib import Path

from gradacc_gui.importing import import_config
from gradacc_gui.importing.account import words_of
from trainer_backend.errors import UsageError


def import_file(arguments: argparse.Namespace) -> int:
    """Write the recipe, and print what became of every key."""
    source = Path(arguments.file)
    target = Path(arguments.output) if arguments.output else source.with_suffix(".toml")
    imported = import_config(source)
    if target.exists() and not arguments.force:
        message = f"{target} is there already. Give another name with --output, or --force to write over it."
        raise UsageError(message)
    try:
        target.write_text(imported.recipe_text(), encoding="utf-8", newline="\n")
    except OSError as error:
        message = f"{target} cannot be written: {error.strerror}. Give another place with --output."
        raise UsageError(message) from error
    for line in imported.lines:
        print(words_of(line))
    print(f"{target} written from {imported.source}. Open it in the window: what it lacks is marked there.")
    return 0
