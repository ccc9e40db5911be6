"""Imports against what files mean to their own programs, whose classes are asked where they are installed."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from gradacc_gui.importing.sft_keys import DATA_ROWS, MODEL_ROWS, SFT_PROGRAM_ROWS
from gradacc_gui.importing.trainer_keys import FIELD_ROWS
from tests.support.imports import all_pairs
from tests.support.imports.pairs import Pair, differences


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")  # TRL sets it
@pytest.mark.parametrize("pair", all_pairs(), ids=lambda pair: pair.name)
def test_an_import_is_exact(pair: Pair) -> None:
    """Every key, what is asked for, what is left out, and the learning rate of each step."""
    assert differences(pair) == []


def test_a_meaning_that_is_another_is_seen() -> None:
    """In a value, a rate, what is asked for, what is left out, and a refusal."""
    pair = next(pair for pair in all_pairs() if pair.name == "DeepSpeed: optimizer and a falling rate")
    right = pair.meaning()
    others: dict[str, dict[str, Any]] = {
        "learning rate of step 3": {"rates": (*right.rates[:3], 1.0, *right.rates[4:])},
        "run.precision": {"recipe": right.recipe | {"run.precision": "fp32"}},
        "optimizer.momentum": {"recipe": right.recipe | {"optimizer.momentum": 0.9}},
        "open": {"open": ("data.path",)},
        "left out": {"changes": ("optimizer",)},
        "it is not refused": {"refused": ("optimizer",)},
    }
    for words, change in others.items():
        other = msgspec.structs.replace(right, **change)
        (found,) = differences(msgspec.structs.replace(pair, meaning=lambda other=other: other))
        assert found.startswith(words)


def test_every_field_of_their_arguments_is_known_with_its_default() -> None:
    """Those of the installed versions: a new field, or another default, is found here."""
    import transformers
    import trl

    for owner, rows, own in (
        (transformers.TrainingArguments, FIELD_ROWS, None),
        (trl.SFTConfig, SFT_PROGRAM_ROWS, trl.SFTConfig.__annotations__),
        (trl.ModelConfig, MODEL_ROWS, None),
        (trl.ScriptArguments, DATA_ROWS, None),
    ):
        for field in dataclasses.fields(owner):
            if own is not None and field.name not in own:
                continue
            assert field.name in rows, (owner.__name__, field.name)
            row = rows[field.name]
            if row.fate == "read" and field.default is not dataclasses.MISSING:
                default = getattr(field.default, "value", field.default)
                assert row.default == default, (owner.__name__, field.name)
