"""Templates that do what templates do: each answer is learnt as the model has to write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench.door.chat_templates import outcomes, templates
from tests.support.door import read_text, write_door_model
from tests.support.language_models import write_json_lines

SOME = (
    "cohere",
    "deepseek_r1_distill",
    "deepseekv3",
    "gemma4_v5",
    "glm4moe",
    "gptoss",
    "lfm2_2_5_v2",
    "llama3_1",
    "muse_glimmer",
    "nemotron_3_nano",
    "qwen3",
    "qwen3_8",
    "smolvlm",
)
"""One of each kind that trl ships; `python -m tests.bench.door chat_templates` tries them all."""
TALK = [
    {"role": "user", "content": "yes or no?"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "two plus two?"},
    {"role": "assistant", "content": "four"},
]
TURNS = "{% for m in messages %}<|b|>{{ m.role }}\n{{ m.content }}<|e|>\n{% endfor %}"
ASK = "{% if add_generation_prompt %}<|b|>assistant\n{% endif %}"


@pytest.mark.parametrize(
    "file", [file for file in templates() if file.stem in SOME], ids=lambda file: file.stem
)
def test_real_templates_learn_what_was_worked_out_by_hand(file: Path) -> None:
    """Eight conversations: plain, system, reasoning, tools, parts, weights, and short words in odd places."""
    found = outcomes(file)
    assert len(found) == 8
    assert [outcome for outcome in found if outcome.is_wrong or outcome.is_refused_without_reason] == []


def learn(folder: Path, template: str, messages: list[dict[str, Any]], **record: Any) -> Any:
    """What is made of one conversation under a template."""
    model = write_door_model(folder, "tok_plain")
    (folder / "mine.jinja").write_text(template, encoding="utf-8")
    path = write_json_lines(folder / "data.jsonl", [{"messages": messages} | record])
    return read_text(model, path, {"chat_template": str(folder / "mine.jinja")}, {})


def test_a_prompt_that_changes_once_it_is_answered_is_that_of_use(tmp_path: Path) -> None:
    """Tools stand before the last question while it is open, and nowhere afterwards."""
    tools = "{% if loop.last and m.role == 'user' and tools %}<|msg|>{{ tools | tojson }}<|ch|>{% endif %}"
    template = (
        "{% for m in messages %}" + tools + "<|b|>{{ m.role }}\n{{ m.content }}<|e|>\n{% endfor %}" + ASK
    )
    tool = {"name": "add_up", "parameters": {"type": "object", "properties": {}}}
    found = learn(tmp_path, template, TALK, tools=[tool])
    assert found.learnt == ["yes<|e|>", "four<|e|>"]
    assert found.samples == 2
    for row in found.rows:
        text = "".join(row.texts)
        assert text.count("add_up") == 1
        assert text.index("add_up") < text.rindex("<|b|>user")
    assert any("after the prompt" in sentence for sentence in found.said)


def test_a_block_that_answers_do_not_have_is_not_learnt_and_not_shown(tmp_path: Path) -> None:
    """The boundary never lies inside a special token, though both begin alike."""
    template = TURNS + "{% if add_generation_prompt %}<|b|>assistant\n<think>\n{% endif %}"
    talk = [TALK[0], {"role": "assistant", "content": "<that> is it"}]
    found = learn(tmp_path, template, talk)
    assert found.learnt == ["<that> is it<|e|>"]
    assert "<think>" not in "".join(found.rows[0].texts)
    assert any("opens a block" in sentence for sentence in found.said)


def test_an_answer_before_any_question_is_context_where_none_can_be_asked_for(tmp_path: Path) -> None:
    """As greetings of shared conversations are; said with their count."""
    template = "{% if messages[0].role == 'x' %}{% endif %}" + TURNS + ASK
    found = learn(tmp_path, template, TALK[1:])
    assert found.learnt == ["four<|e|>"]
    assert any("before any question" in sentence for sentence in found.said)


def test_reasoning_that_a_template_leaves_out_is_counted(tmp_path: Path) -> None:
    """The answer is learnt without it."""
    talk = [TALK[0], TALK[1] | {"reasoning_content": "I thought about it."}]
    found = learn(tmp_path, TURNS + ASK, talk)
    assert found.learnt == ["yes<|e|>"]
    assert any("leaves out the reasoning of 1" in sentence for sentence in found.said)


def test_an_answer_that_a_template_leaves_out_is_refused(tmp_path: Path) -> None:
    """Nothing would be learnt, and nobody would know."""
    template = "{% for m in messages %}<|b|>{{ m.role }}<|e|>{% endfor %}" + ASK
    found = learn(tmp_path, template, TALK)
    assert "data.jsonl:1: message 2" in (found.refused or "")
    assert "leaves out the answer's text" in (found.refused or "")


def test_the_date_that_a_template_writes_is_said(tmp_path: Path) -> None:
    """A comment that names the function writes none."""
    found = learn(tmp_path, "{{ strftime_now('%Y') }}" + TURNS + ASK, TALK)
    assert any("today's date" in sentence for sentence in found.said)
    (tmp_path / "other").mkdir()
    found = learn(tmp_path / "other", "{# strftime_now, enable_thinking #}" + TURNS + ASK, TALK)
    assert len(found.said) == 1


@pytest.mark.parametrize("answer", ["e", "|>", "assistant", "yes or no?", "a\n\nb  "])
def test_short_and_repeated_words_are_found_where_they_stand(tmp_path: Path, answer: str) -> None:
    """Not inside of a special token, a role or the question."""
    found = learn(tmp_path, TURNS + ASK, [TALK[0], {"role": "assistant", "content": answer}])
    assert found.learnt == [f"{answer}<|e|>"]
