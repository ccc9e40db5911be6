"""Many conversations: the quick ways, and several processes, give what the plain way gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.support.door import read_text, write_door_model
from tests.support.language_models import write_json_lines
from trainer_backend.tasks.causal_lm import dialogues, encoding, quick_template, spans
from trainer_backend.tasks.causal_lm.answers import Answers, Row
from trainer_backend.tasks.causal_lm.spans import Tokens, specials_of
from trainer_backend.tasks.causal_lm.templates import Template
from trainer_backend.tasks.causal_lm.turns import Dialogue, Role, Turn

WORDS = ("two plus two?", "  four ", "", "<|e|> is an end", "ünïcode\n\n", "x" * 90, "<|b|", "a\tb")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer whose template is plain."""
    return write_door_model(tmp_path_factory.mktemp("models"), "tok_plain")


@pytest.fixture
def tokenizer(model: Path) -> Any:
    """Its tokenizer."""
    return transformers.AutoTokenizer.from_pretrained(model)


def talks() -> Iterator[tuple[Turn, ...]]:
    """Conversations of one to four answers, with odd words in all places."""
    for number in range(len(WORDS) * 4):
        turns = []
        for place in range(2 * (1 + number % 4)):
            role: Role = "assistant" if place % 2 else "user"
            turns.append(Turn(role, WORDS[(number + place * 3) % len(WORDS)] or "nothing"))
        yield tuple(turns)


def test_a_template_rendered_by_itself_writes_what_the_library_writes(tokenizer: Any) -> None:
    """Beyond the first conversations, which are rendered both ways."""
    quick, plain = Template(tokenizer), Template(tokenizer)
    quick._quick._unproven = 0
    plain._quick.takes = lambda *_: False  # type: ignore[method-assign]
    for turns in talks():
        for asks in (False, True):
            options: Any = {"asks": asks, "thinks": None}
            assert quick.render(turns, (), **options) == plain.render(turns, (), **options)
    assert quick._quick._compiled is not None


def test_a_tokenizer_that_renders_otherwise_keeps_its_own_way(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a method of its own, and where the two ways once differed."""
    own = type(tokenizer).apply_chat_template
    monkeypatch.setattr(
        transformers.PreTrainedTokenizerBase,
        "apply_chat_template",
        lambda self, *a, **k: own(self, *a, **k) + "!",
    )
    template = Template(tokenizer)
    turns = (Turn("user", "a"), Turn("assistant", "b"))
    for _ in range(quick_template.PROVEN_BY * 2):
        assert template.render(turns, (), asks=False, thinks=None).endswith("!")

    class Own(type(tokenizer)):  # type: ignore[misc]
        def apply_chat_template(self, *_: Any, **__: Any) -> str:
            return "own"

    tokenizer.__class__ = Own
    assert Template(tokenizer).render(turns, (), asks=False, thinks=None) == "own"


def test_ids_behind_a_cut_are_those_of_the_whole_text(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the first rows, whose ids are found both ways."""
    monkeypatch.setattr(spans, "PROVEN_BY", 0)
    answers = Answers(Template(tokenizer), specials_of(tokenizer))
    quick, plain = Tokens(tokenizer), Tokens(tokenizer)
    plain._cuts = None
    rows = [row for turns in talks() for row in answers.rows(Dialogue("a:1", turns, ()))]
    assert len(rows) > len(WORDS)
    for row in rows:
        assert quick.learnt(row) == plain.learnt(row)
    assert quick._cuts is not None


def test_a_text_is_tokenised_once_however_many_answers_it_has(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from its beginning for each boundary: long conversations cost what their length asks for."""
    monkeypatch.setattr(spans, "PROVEN_BY", 0)
    turns = tuple(
        Turn("assistant" if place % 2 else "user", f"{place} many words " * 20) for place in range(40)
    )
    (row,) = Answers(Template(tokenizer), specials_of(tokenizer)).rows(Dialogue("a:1", turns, ()))
    tokens = Tokens(tokenizer)
    seen, ids_of = 0, tokens._ids_of

    def counted(text: str) -> Any:
        nonlocal seen
        seen += len(text)
        return ids_of(text)

    monkeypatch.setattr(tokens, "_ids_of", counted)
    ids, mask = tokens.learnt(row)
    assert seen < 2 * len(row.text)
    assert len(row.spans) == 20
    assert sum(mask) < len(ids)


def test_tokens_that_look_at_their_neighbours_are_no_cuts(tokenizer: Any) -> None:
    """One that takes the space before it belongs to what is before it."""
    tokenizer.add_tokens([transformers.AddedToken("<|left|>", lstrip=True, normalized=False)])
    text = "<|b|>user\na   <|left|>b<|e|>"
    row = Row(text, ((text.index("b<|e|>"), len(text)),))
    tokens = Tokens(tokenizer)
    assert tokens._cuts is None
    assert tokens.learnt(row)[0] == tokens.ids(text)


def test_several_processes_make_the_same_of_the_data(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, weights, what is said, and the place of the first broken record."""
    records = [
        {"messages": [{"role": turn.role, "content": turn.text} for turn in turns]} for turns in talks()
    ]
    records.insert(20, {"messages": [{"role": "user", "content": "no answer"}]})
    path = write_json_lines(tmp_path / "talks.jsonl", records)
    monkeypatch.setattr(dialogues, "ALONE", 3)
    monkeypatch.setattr(dialogues, "PORTION", 4)
    read = {}
    for count in (0, 2):
        monkeypatch.setattr(encoding, "processes", lambda count=count: count)
        found = read_text(model, path, {}, {})
        assert found.refused is None
        read[count] = (found.samples, found.said, found.rows)
    assert read[0] == read[2]
    records.insert(9, {"messages": [{"role": "elf", "content": "x"}]})
    write_json_lines(path, records)
    refused = read_text(model, path, {}, {}).refused
    assert refused is not None
    assert "talks.jsonl:10" in refused
