"""One table says which optimizers there are; config, form and settings follow it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gradacc_gui.recipe.arrangement import applies
from gradacc_gui.recipe.field_specs import all_specs
from trainer_backend.config import OptimizerSection, RunConfig
from trainer_backend.config_check import check
from trainer_backend.optimizer_table import OPTIMIZERS, keys_of_some
from trainer_backend.settings import settings_of

LENGTH: dict[str, Any] = {
    "run": {"epochs": 1},
    "data": {"path": "x.txt"},
    "accumulation": {"gradient_accumulation_steps": 1},
}


def checked(optimizer: dict[str, Any]) -> RunConfig:
    """A recipe's configuration with this optimizer."""
    config = check(LENGTH | {"optimizer": optimizer})
    assert isinstance(config, RunConfig), config
    return config


def test_the_form_offers_and_a_recipe_may_name_the_optimizers_of_the_table_in_its_order() -> None:
    """No other list of names exists."""
    assert all_specs("language-model")["optimizer.name"].choices == tuple(OPTIMIZERS)
    for name in OPTIMIZERS:
        assert checked({"name": name}).optimizer.name == name
    problems = check(LENGTH | {"optimizer": {"name": "adamx"}})
    assert isinstance(problems, list)
    assert all(name in problems[0].message for name in OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_field_is_shown_beside_the_optimizers_that_take_it(name: str) -> None:
    """Learning rate and weight decay beside all of them."""
    fields = {field.name for field in msgspec.structs.fields(OptimizerSection)}
    assert set(keys_of_some()) <= fields
    text = {"optimizer.name": name}.__getitem__
    shown = {key for key in fields if applies(f"optimizer.{key}", text)}
    assert fields - shown == set(keys_of_some()) - set(OPTIMIZERS[name].keys)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_beta2_is_a_setting_of_the_optimizers_that_have_one(name: str) -> None:
    """A command to scale it is offered for these only."""
    beta2 = settings_of(checked({"name": name, "betas": [0.8, 0.7]})).beta2
    has_one = name in {"adamw", "muon", "adamw-8bit", "paged-adamw-8bit", "schedule-free", "lamb"}
    assert beta2 == (0.7 if has_one else None)  # Lion's second beta is of its first moment


def test_two_averages_of_the_weights_are_refused() -> None:
    """An optimizer that averages them itself is what an evaluation takes."""
    problems = check(LENGTH | {"optimizer": {"name": "schedule-free", "ema_decay": 0.99}})
    assert isinstance(problems, list)
    assert "Take optimizer.ema_decay away" in problems[0].message


def test_what_no_test_ran_is_named_so_in_the_form() -> None:
    """A row for CUDA alone."""
    spec = all_specs("language-model")["optimizer.name"]
    words = dict(zip(spec.choices, spec.words, strict=True))
    assert [name for name, label in words.items() if "not proven here" in label] == ["paged-adamw-8bit"]
