"""What a recipe may say, and the sentence for everything else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer_backend.config import KINDS, RunConfig
from trainer_backend.config_check import check, fields, section_types

RUN = {"max_optimizer_steps": 10}
STEPS = {"gradient_accumulation_steps": 4}


def messages(data: dict[str, Any]) -> list[str]:
    """Sentences about a recipe; empty when it is right."""
    checked = check(data)
    return [] if isinstance(checked, RunConfig) else [problem.message for problem in checked]


@pytest.mark.parametrize("value", [0, -4, 0.5, "", " ", "abc", 10**12, True, [4], {}, float("nan")])
def test_n_that_is_no_count_is_refused_with_key_value_and_bounds(value: Any) -> None:
    """The whole family of slips that other trainers accept."""
    (message,) = messages({"run": RUN, "accumulation": {"gradient_accumulation_steps": value}})
    assert message.startswith("accumulation.gradient_accumulation_steps")
    assert "whole number from 1 to 1,000,000" in message


def test_every_problem_is_said_at_once() -> None:
    """A person mends a recipe in one go, not one sentence at a time."""
    found = check(
        {
            "run": {"device": "tpu", "seed": -1},
            "optimizer": {"lr": 1},
            "accumulation": {"micro_batch_size": 0},
        }
    )
    assert isinstance(found, list)
    assert [problem.path for problem in found] == [
        "run.device",
        "run.seed",
        "optimizer.lr",
        "accumulation.micro_batch_size",
    ]


@pytest.mark.parametrize(
    ("data", "near"),
    [
        ({"run": RUN, "accumulation": {"gradient_acumulation_steps": 4}}, "gradient_accumulation_steps?"),
        ({"rum": RUN}, "Did you mean run?"),
        ({"run": RUN, "task": {"kind": "languag-model"}}, "Did you mean language-model?"),
        ({"run": {"epoch": 1}}, "Did you mean epochs?"),
    ],
)
def test_an_unknown_name_gets_the_nearest_known_one(data: dict[str, Any], near: str) -> None:
    """A typo is answered with what was probably meant."""
    assert any(near in message for message in messages(data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"run": {"epochs": 1, "max_samples": 8}, "accumulation": STEPS}, "given together"),
        ({"run": {}, "accumulation": STEPS}, "how long to train"),
        ({"run": RUN, "accumulation": {}}, "gradient_accumulation_steps is missing"),
        ({"run": RUN, "accumulation": STEPS | {"effective_batch_size": 32}}, "both given"),
        ({"run": RUN, "accumulation": {"micro_batch_size": 3, "effective_batch_size": 32}}, "Try 30 or 33"),
        ({"run": RUN, "checkpoint": {"every_samples": 1, "every_minutes": 1}}, "both given"),
        ({"run": RUN, "optimizer": {"nesterov": True}}, "needs optimizer.momentum"),
        ({"run": RUN, "task": {"width": 10, "heads": 4}}, "Try 12"),
        ({"run": RUN, "task": {"kind": "custom"}}, "task.entry is missing"),
        ({"run": RUN, "task": {"kind": "custom", "entry": "task.py"}}, "my_task:Task"),
        ({"run": RUN, "task": "custom"}, "is not a table"),
        ({"recipe_version": 2}, "newer gradacc"),
        ({"recipe_version": "one"}, "not a recipe version"),
    ],
)
def test_keys_that_do_not_fit_together_are_one_sentence(data: dict[str, Any], words: str) -> None:
    """Rules across keys name the keys and a way out."""
    (message,) = messages(data)
    assert words in message


@pytest.mark.parametrize(
    ("asked", "minutes"),
    [
        ({}, 10.0),
        ({"keep": 1}, 10.0),
        ({"every_minutes": 2.5}, 2.5),
        ({"every_minutes": "never"}, None),
        ({"every_samples": 100}, None),
    ],
)
def test_a_recipe_that_says_nothing_of_checkpoints_saves_every_ten_minutes(
    asked: dict[str, Any], minutes: float | None
) -> None:
    """It saved nothing for hours; who wants that says never."""
    config = check({"run": RUN, "accumulation": STEPS, "checkpoint": asked})
    assert isinstance(config, RunConfig)
    assert config.checkpoint.minutes == minutes


@pytest.mark.parametrize("value", ["Never", "off", 0, -1, True])
def test_a_word_in_a_numbers_place_is_named_beside_the_number(value: Any) -> None:
    """One word is right there, and any other is refused."""
    (message,) = messages({"run": RUN, "accumulation": STEPS, "checkpoint": {"every_minutes": value}})
    assert message.startswith("checkpoint.every_minutes")
    assert message.endswith(', or "never".')


def test_n_follows_from_the_effective_batch() -> None:
    """effective_batch_size / micro_batch_size is N."""
    config = check({"run": RUN, "accumulation": {"micro_batch_size": 8, "effective_batch_size": 96}})
    assert isinstance(config, RunConfig)
    assert (config.accumulation_steps, config.effective_batch) == (12, 96)


def test_a_schedule_of_n_must_rise_and_start_somewhere() -> None:
    """Points out of order, or nothing before the first, are refused."""
    points = [{"from_sample": 10, "steps": 2}, {"from_sample": 10, "steps": 3}]
    assert "must rise" in messages({"run": RUN, "accumulation": STEPS | {"schedule": points}})[0]
    assert "starts at sample 10" in messages({"run": RUN, "accumulation": {"schedule": points[:1]}})[0]
    inner = messages({"run": RUN, "accumulation": {"schedule": [{"from_sample": 0, "stps": 2}]}})
    assert inner == ["accumulation.schedule[0].stps is not a key. Remove it."]


def test_a_recipe_of_an_older_version_is_read_under_its_old_names() -> None:
    """An update does not refuse yesterday's recipes."""
    config = check(
        {
            "recipe_version": 0,
            "run": RUN,
            "accumulation": {"accumulation_steps": 3, "batch_size": 2},
            "optimizer": {"lr": 0.5, "clip": 1.0},
        }
    )
    assert isinstance(config, RunConfig)
    assert (config.accumulation_steps, config.accumulation.micro_batch_size) == (3, 2)
    assert (config.optimizer.learning_rate, config.optimizer.max_grad_norm) == (0.5, 1.0)


def test_every_field_has_a_title() -> None:
    """A form is built from the types, so none may be without a label."""
    sections = [kind for kind in section_types("language-model").values() if kind is not None]
    sections += [part for kind in KINDS.values() for part in (kind.task, kind.data)]
    for section in sections:
        for name, field in fields(section).items():
            if name == "kind" and section.__name__.endswith("Task"):
                continue
            schema = getattr(field.type, "extra_json_schema", None) or {}
            assert schema.get("title"), f"{section.__name__}.{name} has no title"


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(
    [name for section in section_types("language-model").values() if section for name in fields(section)]
)
tables = st.dictionaries(keys | st.text(max_size=8), plain, max_size=5) | plain


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines
@given(st.dictionaries(st.sampled_from([*section_types("custom"), "recipe_version"]), tables, max_size=5))
def test_any_data_is_a_config_or_sentences_and_never_an_exception(data: dict[str, Any]) -> None:
    """Whatever a file holds, checking it ends in one of two ways."""
    checked = check(data)
    if isinstance(checked, RunConfig):
        assert msgspec.to_builtins(checked)
    else:
        assert checked
        assert all(entry.message.endswith((".", "?")) for entry in checked)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([{"steps": 2}], "must have from_sample or from_token"),
        ([{"from_sample": 0, "from_token": 0, "steps": 2}], "must have from_sample or from_token"),
        ([{"from_sample": 0}], "must have steps or effective_batch_size"),
        ([{"from_sample": 0, "effective_batch_size": 20}], "Try 16 or 24."),
        ([{"from_sample": 0, "steps": 2}, {"from_token": 9, "steps": 4}], "Use one of the two."),
        ([{"from_token": 9, "steps": 2}], "starts at token 9"),
    ],
)
def test_a_point_of_the_schedule_says_each_thing_once(points: list[dict[str, int]], said: str) -> None:
    """Where it starts, and what N is."""
    (message,) = messages({"run": RUN, "accumulation": {"micro_batch_size": 8, "schedule": points}})
    assert said in message


def test_a_schedule_may_count_tokens_and_give_effective_batches() -> None:
    """N at the start follows from the micro-batch."""
    points = [{"from_token": 0, "effective_batch_size": 32}, {"from_token": 1000, "effective_batch_size": 64}]
    config = check({"run": RUN, "accumulation": {"micro_batch_size": 8, "schedule": points}})
    assert isinstance(config, RunConfig)
    assert config.accumulation_steps == 4


@pytest.mark.parametrize(
    ("run", "tail", "said"),
    [({"devices": 2}, "step", "works on one device"), ({}, "drop", "do not go together")],
)
def test_a_window_by_tokens_is_refused_where_n_must_be_known(
    run: dict[str, int], tail: str, said: str
) -> None:
    """Several ranks, and a tail that is dropped."""
    asked = {"gradient_accumulation_steps": 8, "tokens_per_step": 512, "tail": tail}
    (message,) = messages({"run": RUN | run, "accumulation": asked})
    assert message.startswith("accumulation.tokens_per_step")
    assert said in message
