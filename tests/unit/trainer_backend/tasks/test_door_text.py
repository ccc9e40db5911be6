"""People's text data and chat templates, against right values that were worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.door import DOOR, cases, read_case

TEXT_CASES = [case for case in cases() if case["id"][0] in "TF"]


@pytest.mark.parametrize("case", TEXT_CASES, ids=lambda case: str(case["id"]))
def test_a_recipe_s_text_is_read_right(case: dict[str, Any], tmp_path: Path) -> None:
    """Every key of what is right is held."""
    found = read_case(case, tmp_path)
    right = dict(case["right"])
    refused = right.pop("refused", [])
    if not refused:
        assert found.refused is None
    for word in refused:
        assert word in (found.refused or "")
    for word in right.pop("said", []):
        assert any(word in sentence for sentence in found.said), found.said
    assert sorted(found.learnt) == sorted(right.pop("learnt", found.learnt))
    assert found.samples == right.pop("samples", found.samples)
    for word in right.pop("prompt_contains", []):
        assert any(word in "".join(row.texts) for row in found.rows)
    if "bos_count" in right:
        assert [row.texts.count("<|bos|>") for row in found.rows] == [right.pop("bos_count")]
    if right.pop("prompt_ids_equal_generation_prompt", False):
        _holds_the_prompt_of_use(found, case)
    if right.pop("rule", ""):
        _holds_every_token_once(found, case)
    assert right == {}, "a key of expected.json is not held"


def _holds_the_prompt_of_use(found: Any, case: dict[str, Any]) -> None:
    (row,) = found.rows
    (line,) = (DOOR / case["input"]).read_text("utf-8").splitlines()
    text = found.tokenizer.apply_chat_template(
        json.loads(line)["messages"][:-1], tokenize=False, add_generation_prompt=True
    )
    prompt = found.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert list(row.ids[: len(prompt)]) == prompt
    assert [bool(weight) for weight in row.weights] == [place >= len(prompt) for place in range(len(row.ids))]


def _holds_every_token_once(found: Any, case: dict[str, Any]) -> None:
    text = (DOOR / case["input"]).read_text("utf-8")
    ids = [*found.tokenizer(text)["input_ids"], found.tokenizer.eos_token_id]
    longest = case["recipe"]["max_length"]
    assert found.samples == -(-len(ids) // longest)
    assert [number for row in found.rows for number in row.ids] == ids
    assert all(len(row.ids) == longest for row in found.rows[:-1])
    assert all(row.weights == (0.0, *[1.0] * (len(row.ids) - 1)) for row in found.rows)
