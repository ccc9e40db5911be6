"""Doors of files that people and programs write: recipes, commands in an inbox, others' configurations."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Final

import msgspec

from gradacc_gui.importing.programs import import_config
from tests.bench.faults._mutations import ODD_TEXTS, bytes_of, plain_of, text_of
from tests.bench.faults._trying import Attempt
from tests.support.trainers import ROOT
from trainer_backend.config_check import fields, section_types
from trainer_backend.errors import UsageError
from trainer_backend.inbox import SUFFIX, Inbox, Malformed
from trainer_backend.kinds import KINDS
from trainer_backend.protocol import (
    AnyCommand,
    Pause,
    RollBack,
    SaveCheckpoint,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    Stop,
)
from trainer_backend.recipe import load_recipe, parse_document, recipe_for_run, recipe_from_document

COMMANDS: Final[tuple[AnyCommand, ...]] = (
    SetAccumulation(steps=4, asked_by="x", learning_rate_rule="sqrt"),
    SetMicroBatchSize(size=4, keep_effective_batch=True, asked_by="x"),
    SetLearningRate(value=1e-3, asked_by="x"),
    SetMaxGradNorm(value=None, asked_by="x"),
    Pause(asked_by="x"),
    SaveCheckpoint(asked_by="x"),
    RollBack(asked_by="x", step=7),
    Stop(asked_by="x", now=True),
)


def check_sentence(text: str, given: object = "") -> None:
    """Raise AssertionError for what no person is to be shown."""
    assert text.strip(), f"nothing is said of {str(given)[:300]}"
    assert "Traceback" not in text, text


def recipe(folder: Path) -> Attempt:
    """Recipes: checked, and those that are taken are written into a run and read again."""
    seeds = [path.read_text("utf-8") for path in sorted((ROOT / "assets/recipes").glob("*.toml"))]
    keys = ("x", *ODD_TEXTS, *_keys())
    path = folder / "recipe.toml"

    def attempt(draw: random.Random) -> None:
        seed = draw.choice(seeds)
        if draw.random() < 0.25:
            content = bytes_of(draw, seed.encode("utf-8"))
        else:
            content = text_of(draw, seed, keys, "=").encode("utf-8", "surrogatepass")
        path.write_bytes(content)
        try:
            taken = load_recipe(path)
            text = recipe_for_run(taken, recipe_path=str(path)).text
            again = recipe_from_document(parse_document(text), folder=folder)
        except UsageError as error:
            check_sentence(str(error))
            return
        assert again.config == taken.config, "a run would have another recipe"

    return attempt


def _keys() -> list[str]:
    names = []
    for kind in KINDS:
        for section, found in section_types(kind).items():
            if found is not None:
                names += [name for field in fields(found) for name in (field, f"{section}.{field}")]
    return sorted(set(names))


def inbox(folder: Path) -> Attempt:
    """Commands' files: each is one command or one refusal, and none is in the way of the others."""
    place = Inbox(folder)
    kinds = [msgspec.to_builtins(command) for command in COMMANDS]

    def attempt(draw: random.Random) -> None:
        seed = draw.choice(kinds)
        name = draw.choice((str(seed["id"]), "x", "é", " ", ".", "a" * 200))
        match draw.randrange(3):
            case 0:
                content = bytes_of(draw, json.dumps(seed).encode())
            case 1:
                content = json.dumps(plain_of(draw, seed)).encode()
            case _:
                content = text_of(draw, json.dumps(seed, indent=1), tuple(seed), ":").encode(
                    "utf-8", "replace"
                )
        path = folder / f"{name}{SUFFIX}"
        path.write_bytes(content)
        found = place.poll()
        assert len(found) == 1, found
        (entry,) = found
        if isinstance(entry, Malformed):
            check_sentence(entry.reason)
            msgspec.json.encode(entry.id + entry.reason)  # they go into an event
        place.remove(entry.name if isinstance(entry, Malformed) else entry.id)
        assert not path.exists(), "it stays in the way"

    return attempt


def imports(folder: Path) -> Attempt:
    """Configurations of other programs: refused with a sentence, or a recipe that is TOML."""
    seeds = [path.read_text("utf-8") for path in sorted((ROOT / "tests/data/door").glob("I*.yaml"))]
    keys = tuple(sorted({line.partition(":")[0].strip(" -") for seed in seeds for line in seed.splitlines()}))
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)
    )

    def attempt(draw: random.Random) -> None:
        seed = draw.choice(seeds)
        path = folder / f"import.{draw.choice(('yaml', 'yml', 'json'))}"
        match draw.randrange(8):
            case 0 | 1:
                content = bytes_of(draw, seed.encode("utf-8"))
            case 2:
                content = text_of(draw, seed + bomb, keys, ":").encode("utf-8", "surrogatepass")
            case _:
                content = text_of(draw, seed, keys, ":").encode("utf-8", "surrogatepass")
        path.write_bytes(content)
        try:
            imported = import_config(path)
        except UsageError as error:
            check_sentence(str(error))
            return
        finally:
            os.unlink(path)  # noqa: PTH108 - as quick as can be
        parse_document(imported.recipe_text())
        json.dumps(imported.as_json())

    return attempt
