"""Text data in every form that people have, and in every form of broken: what is read, refused and said."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.door import ReadBack, read_text, write_door_model
from tests.support.language_models import write_json_lines
from tests.support.text_forms import ANSWER, PAIR, QUESTION, TALK, write_arrow, write_parquet, written_forms


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer whose template is plain."""
    return write_door_model(tmp_path_factory.mktemp("models"), "tok_plain")


def read(model: Path, path: Path, task: dict[str, Any] | None = None, **data: Any) -> ReadBack:
    """What a recipe makes of a path."""
    return read_text(model, path, task or {}, data)


def refusal(model: Path, path: Path, task: dict[str, Any] | None = None, **data: Any) -> str:
    """Why a path is refused."""
    found = read(model, path, task, **data)
    assert found.refused is not None
    return found.refused


def test_every_form_gives_the_same_answer(model: Path, tmp_path: Path) -> None:
    """Fourteen of them, found out by what is in the files."""
    names = []
    for name, path, fields in written_forms(tmp_path):
        found = read(model, path, fields=fields)
        assert found.refused is None, name
        assert found.learnt[0].endswith("yes<|e|>"), name
        assert found.samples == 1, name
        names.append(name)
    assert len(names) == 14


def test_forms_are_told_by_content_where_suffixes_mislead(model: Path, tmp_path: Path) -> None:
    """An array called .jsonl, lines called .json, gzip without .gz, a stream called .arrow."""
    pairs = [PAIR, PAIR]
    (tmp_path / "array.jsonl").write_text(json.dumps(pairs, indent=1), encoding="utf-8")
    write_json_lines(tmp_path / "lines.json", pairs)
    (tmp_path / "packed.jsonl").write_bytes(gzip.compress((json.dumps(PAIR) + "\n").encode() * 2))
    write_arrow(tmp_path / "stream.arrow", pairs, stream=True)
    (tmp_path / "held.json").write_text(json.dumps({"data": pairs, "version": 1}), encoding="utf-8")
    (tmp_path / "behind.json").write_text(
        "".join(json.dumps(pair, indent=2) for pair in pairs), encoding="utf-8"
    )
    for path in sorted(tmp_path.iterdir()):
        assert read(model, path).learnt == ["yes<|e|>"] * 2, path.name


def test_a_folder_is_read_without_its_readme_and_hidden_files(model: Path, tmp_path: Path) -> None:
    """And a pattern names some files of it."""
    (tmp_path / "deep").mkdir()
    write_json_lines(tmp_path / "a.jsonl", [PAIR])
    write_json_lines(tmp_path / "deep" / "b.jsonl", [PAIR])
    (tmp_path / "README.md").write_text("About this data.", encoding="utf-8")
    (tmp_path / "._a.jsonl").write_bytes(b"\x00\x05\x16\x07")
    found = read(model, tmp_path)
    assert found.samples == 2
    assert any("1 text files" in sentence for sentence in found.said)
    assert read(model, tmp_path / "*.jsonl").samples == 1
    assert read(model, tmp_path / "**" / "*.jsonl").samples == 2
    (tmp_path / "none").mkdir()
    assert "holds no" in refusal(model, tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("latin.jsonl", '{"text": "a"}\n{"text": "gr\xfcn"}\n'.encode("latin-1"), [":2", "Latin-1"]),
        ("latin.csv", "text\ngr\xfcn\n".encode("latin-1"), ["not text in UTF-8"]),
        ("latin.txt", "gr\xfcn".encode("latin-1"), ["not text in UTF-8"]),
        ("wide.txt", "plain words, and more of them".encode("utf-16-le"), ["UTF-16"]),
        ("cut.jsonl", b'{"text": "a b"}\n{"text": "a', [":2", "cut off"]),
        ("cut.json", b'[\n{"text": "a b"},\n{"text": "a', [":3", "not valid JSON"]),
        ("open.json", b'[\n{"text": "a b"}\n', [":3", "no end"]),
        ("half.jsonl", b'{"text": "a \\ud800 b"}\n', [":1", "surrogates"]),
        ("half.json", b'[\n{"text": "a \\ud800 b"}\n]', [":2", "surrogates"]),
        ("list.jsonl", b'{"text": "a b"}\n[1]\n', [":2", "not a JSON object"]),
        ("short.csv", b"prompt,completion\na,b\nc\n", [":3", "1 cells"]),
        ("twice.csv", b"text,text\na,b\n", [":1", "each once"]),
        ("cut.jsonl.gz", gzip.compress(b'{"text": "a b c"}\n' * 999, mtime=0)[:-20], ["damaged or cut off"]),
        ("no.parquet", b"PAR1 and nothing else", ["not a Parquet file"]),
        ("no.arrow", b"ARROW1 and nothing else", ["not an Arrow file"]),
        ("empty.jsonl", b"", ["no sample"]),
        ("number.jsonl", b'{"prompt": 3, "completion": "x"}\n', [":1", "must be text"]),
        ("nothing.jsonl", b'{"txt": "x"}\n', [":1", "none of the known fields", "data.fields"]),
        ("system.jsonl", b'{"messages": [{"role": "system", "content": "x"}]}\n', ["1 without an answer"]),
        ("role.jsonl", b'{"messages": [{"role": "robot", "content": "x"}]}\n', [":1", "'robot'"]),
        ("string.jsonl", b'{"messages": "hello"}\n', [":1", "must be a list of messages"]),
        ("both.jsonl", b'{"prompt": "a", "answer": "b", "output": "c"}\n', [":1", "answer and output"]),
        ("half.jsonl", b'{"messages": [{"role": "assistant", "content": "x", "weight": 0.5}]}\n', ["weight"]),
        ("video.jsonl", b'{"prompt": "a", "completion": "b", "videos": ["x.mp4"]}\n', [":1", "videos"]),
        ("kto.jsonl", b'{"prompt": "a", "completion": "b", "label": true}\n', ["preference"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_broken_is_named_by_file_and_line(
    model: Path, tmp_path: Path, name: str, content: bytes, words: list[str]
) -> None:
    """Before anything starts, in a sentence that says what is wrong."""
    path = tmp_path / name
    path.write_bytes(content)
    sentence = refusal(model, path)
    assert all(word in sentence for word in words), sentence
    assert name in sentence or "no sample" in sentence or "without an answer" in sentence


def test_bad_records_can_be_skipped_and_are_counted(model: Path, tmp_path: Path) -> None:
    """Broken lines and records of another form alike."""
    lines = [json.dumps(PAIR), "{oops", json.dumps({"text": "x"}), json.dumps(PAIR)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = read(model, tmp_path / "data.jsonl", broken="skip")
    assert found.learnt == ["yes<|e|>"] * 2
    assert any("2 records" in sentence and "left out" in sentence for sentence in found.said)


def test_pairs_are_not_taken_for_bad_records(model: Path, tmp_path: Path) -> None:
    """Skipping would leave nothing, and say something else than what is the matter."""
    write_json_lines(tmp_path / "data.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    assert "preference pairs" in refusal(model, tmp_path / "data.jsonl", broken="skip")


def test_chosen_answers_are_learnt_where_that_is_asked(model: Path, tmp_path: Path) -> None:
    """Conversations as pairs, labels, and answers beside a conversation."""
    asked = [TALK[0]]
    chosen, rejected = [*asked, TALK[1]], [*asked, {"role": "assistant", "content": "no"}]
    forms: list[list[dict[str, Any]]] = [
        [{"chosen": chosen, "rejected": rejected}],
        [{"prompt": asked, "chosen": [TALK[1]], "rejected": rejected[1:]}],
        [{**PAIR, "label": True}, {"prompt": QUESTION, "completion": "no", "label": False}],
        [{"messages": chosen, "kto_tag": True}, {"messages": rejected, "kto_tag": False}],
        [{"conversations": asked, "chosen": TALK[1], "rejected": rejected[1]}],
    ]
    for number, records in enumerate(forms):
        path = write_json_lines(tmp_path / f"{number}.jsonl", records)
        assert read(model, path, preference="chosen").learnt == ["yes<|e|>"], number


def test_conversations_in_cells_and_columns_of_nothing_are_read(model: Path, tmp_path: Path) -> None:
    """A CSV holds JSON in a cell; a Parquet gives every message every key."""
    cell = json.dumps(TALK).replace('"', '""')
    (tmp_path / "talk.csv").write_text(f'id,messages\n1,"{cell}"\n', encoding="utf-8")
    assert read(model, tmp_path / "talk.csv").learnt == ["yes<|e|>"]
    wide = [{**TALK[0], "weight": None, "tool_calls": None}, {**TALK[1], "weight": 1, "tool_calls": None}]
    write_parquet(tmp_path / "talk.parquet", [{"messages": wide, "images": None}])
    assert read(model, tmp_path / "talk.parquet").learnt == ["yes<|e|>"]


def test_alpaca_s_history_and_system_are_turns(model: Path, tmp_path: Path) -> None:
    """The earlier answer is learnt too, and the system's text stands first."""
    record = {
        "instruction": "two plus two?",
        "output": "four",
        "system": "be kind",
        "history": [[QUESTION, ANSWER]],
    }
    found = read(model, write_json_lines(tmp_path / "data.jsonl", [record]))
    assert found.learnt == ["yes<|e|>", "four<|e|>"]
    assert "".join(found.rows[0].texts).startswith("<|b|>system\nbe kind<|e|>")


def test_a_saved_folder_is_read_by_the_datasets_library(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where it is not installed, the command that installs it is said."""
    import datasets
    import tqdm

    tqdm.tqdm.monitor_interval = 0  # its thread outlives a test
    datasets.disable_progress_bars()
    datasets.Dataset.from_list([PAIR]).save_to_disk(str(tmp_path / "saved"))
    assert read(model, tmp_path / "saved").learnt == ["yes<|e|>"]
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install datasets" in refusal(model, tmp_path / "saved")


def test_the_hub_is_not_asked_where_the_recipe_forbids_it(model: Path) -> None:
    """A name that is no path is a hub id."""
    found = read_text(model, "organisation/name", {"offline": True}, {})
    assert "may not be asked" in (found.refused or "")


def test_column_files_say_what_they_need(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer's own Python may lack pyarrow."""
    write_parquet(tmp_path / "data.parquet", [PAIR])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "pip install pyarrow" in refusal(model, tmp_path / "data.parquet")


# ------------------------------------------------------------------------------- what is learnt


def test_a_template_of_the_recipe_replaces_the_tokenizer_s(model: Path, tmp_path: Path) -> None:
    """What it raises is said with its file and the record's place."""
    write_json_lines(tmp_path / "data.jsonl", [{"messages": TALK}])
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}[{{ m.content }}]<|eot|>{% endfor %}", encoding="utf-8")
    options = {"chat_template": str(template)}
    assert read(model, tmp_path / "data.jsonl", options).learnt == ["[yes]<|eot|>"]
    template.write_text("{{ raise_exception('not with me') }}", encoding="utf-8")
    sentence = refusal(model, tmp_path / "data.jsonl", options)
    assert all(word in sentence for word in ("data.jsonl:1", "mine.jinja", "not with me"))
    template.write_text("line one\n{% if %}", encoding="utf-8")
    assert "line 2 of the template" in refusal(model, tmp_path / "data.jsonl", options)
    assert "cannot be read" in refusal(model, tmp_path / "data.jsonl", {"chat_template": "none.jinja"})


def test_the_last_answer_alone_or_everything_can_be_learnt(model: Path, tmp_path: Path) -> None:
    """As the recipe asks."""
    talk = [*TALK, {"role": "user", "content": "two plus two?"}, {"role": "assistant", "content": "four"}]
    path = write_json_lines(tmp_path / "data.jsonl", [{"messages": talk}])
    assert read(model, path, {"train_on": "last"}).learnt == ["four<|e|>"]
    (row,) = read(model, path, {"train_on": "everything"}).rows
    assert row.weights == (0.0, *[1.0] * (len(row.weights) - 1))


def test_long_texts_are_split_cut_or_dropped(model: Path, tmp_path: Path) -> None:
    """Split: every token once. Each is said with its count."""
    (tmp_path / "long.txt").write_text("0123456789" * 3, encoding="utf-8")
    (tmp_path / "short.txt").write_text("01", encoding="utf-8")
    sizes = {}
    for way in ("split", "cut", "drop"):
        found = read(model, tmp_path, {"long": way, "max_length": 8})
        sizes[way] = [len(row.ids) for row in found.rows]
        assert any("1 texts" in said or "1 records" in said for said in found.said), way
    assert sizes == {"split": [8, 8, 8, 7, 3], "cut": [8, 3], "drop": [3]}


def test_a_rest_of_one_token_is_left_out_and_said(model: Path, tmp_path: Path) -> None:
    """Nothing stands before it in its block."""
    (tmp_path / "long.txt").write_text("0123456789" * 3 + "01", encoding="utf-8")
    found = read(model, tmp_path / "long.txt", {"max_length": 8})
    assert [len(row.ids) for row in found.rows] == [8] * 4
    assert any("single token" in sentence for sentence in found.said)


def test_a_long_conversation_loses_its_beginning_and_never_half_an_answer(
    model: Path, tmp_path: Path
) -> None:
    """Where the last answer does not fit, the conversation is left out and counted."""
    talk = [{"role": "user", "content": "0123456789" * 2}, {"role": "assistant", "content": "01234567"}]
    path = write_json_lines(tmp_path / "data.jsonl", [{"messages": talk}, {"messages": TALK}])
    found = read(model, path, {"max_length": 24})
    assert found.learnt == ["01234567<|e|>", "yes<|e|>"]
    assert len(found.rows[0].ids) == 24
    found = read(model, path, {"max_length": 9})
    assert found.learnt == ["yes<|e|>"]
    assert any("1 records" in sentence and "no answer" in sentence for sentence in found.said)


def test_a_text_is_read_in_parts_and_stays_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens are those of the whole."""
    from trainer_backend.tasks.causal_lm import raw_text

    text = "".join(f"word {number} and more\n" for number in range(200))
    (tmp_path / "long.txt").write_text(text, encoding="utf-8")
    whole = read(model, tmp_path / "long.txt", {"max_length": 100_000})
    monkeypatch.setattr(raw_text, "PART", 300)
    parts = read(model, tmp_path / "long.txt", {"max_length": 100_000})
    assert whole.samples == parts.samples == 1
    assert whole.rows[0].ids == parts.rows[0].ids


def test_a_document_is_read_in_parts(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records longer and shorter than a part, each with its own line."""
    from trainer_backend.tasks.causal_lm import raw_text

    monkeypatch.setattr(raw_text, "PART", 64)
    records = [{"text": "word " * count} for count in (1, 40, 2, 100, 3)]
    (tmp_path / "data.json").write_text(json.dumps(records, indent=1), encoding="utf-8")
    found = read(model, tmp_path / "data.json")
    assert [row.source.rpartition(":")[2] for row in found.rows] == ["2", "5", "8", "11", "14"]
    assert ["".join(row.texts).count("word") for row in found.rows] == [1, 40, 2, 100, 3]


def test_tokens_beyond_the_embedding_are_refused_with_the_offer_to_resize(tmp_path: Path) -> None:
    """Before the first step, not by an index error inside of it."""
    import transformers

    small = write_door_model(tmp_path, "tok_plain")
    transformers.LlamaConfig(vocab_size=200, hidden_size=8, num_attention_heads=2).save_pretrained(small)
    path = write_json_lines(tmp_path / "data.jsonl", [PAIR])
    sentence = refusal(small, path)
    assert "200 rows" in sentence
    assert "resize_embedding" in sentence
    assert read(small, path, {"resize_embedding": True}).refused is None


def test_special_tokens_in_people_s_texts_are_counted(model: Path, tmp_path: Path) -> None:
    """They are read as tokens, which is said."""
    path = write_json_lines(tmp_path / "data.jsonl", [{"prompt": "what is <|e|>?", "completion": "an end"}])
    assert any("1 times" in sentence for sentence in read(model, path).said)


# ------------------------------------------------------------------------- held out and mixed


def datasets_of(model: Path, data: dict[str, Any]) -> Any:
    """Training and validation data, and what was said."""
    import msgspec

    from trainer_backend.kinds.causal_lm import CausalLMData, CausalLMTask
    from trainer_backend.tasks.causal_lm import CausalLM

    task = CausalLM(
        CausalLMTask(model=str(model), method="full"),
        msgspec.convert(data, CausalLMData),
        folder=model.parent,
        seed=3,
    )
    return task.datasets()


def sources(items: Any) -> list[str]:
    """Where each sample came from."""
    return [items.encoded.source(number) for number in range(len(items.encoded))]


def test_records_of_a_group_are_held_out_together(model: Path, tmp_path: Path) -> None:
    """By a field, or by the folder that they lie in."""
    records = [{**PAIR, "author": f"author {number % 5}"} for number in range(40)]
    path = write_json_lines(tmp_path / "data.jsonl", records)
    found = datasets_of(model, {"path": str(path), "validation_fraction": 0.2, "validation_group": "author"})
    held = {int(source.rpartition(":")[2]) % 5 for source in sources(found.validation)}
    kept = {int(source.rpartition(":")[2]) % 5 for source in sources(found.train)}
    assert len(held) == 1
    assert held | kept == set(range(5))
    assert not held & kept
    for name in ("a", "b", "c"):
        (tmp_path / "scenes" / name).mkdir(parents=True)
        write_json_lines(tmp_path / "scenes" / name / "data.jsonl", [PAIR] * 4)
    found = datasets_of(
        model,
        {"path": str(tmp_path / "scenes"), "validation_fraction": 0.3, "validation_group": "folder"},
    )
    assert (len(found.validation), len(found.train)) == (4, 8)
    assert "has no field age" in refusal(model, path, validation_group="age")


def test_rows_of_one_conversation_are_never_on_both_sides(tmp_path: Path) -> None:
    """A template that writes earlier answers differently makes several rows of it."""
    drops = write_door_model(tmp_path, "tok_drops")
    talk = [*TALK, {"role": "user", "content": "two plus two?"}, {"role": "assistant", "content": "four"}]
    path = write_json_lines(tmp_path / "data.jsonl", [{"messages": talk}] * 10)
    found = datasets_of(drops, {"path": str(path), "validation_fraction": 0.3})
    assert (len(found.train), len(found.validation)) == (14, 6)
    assert not set(sources(found.train)) & set(sources(found.validation))


def test_data_sets_are_mixed_by_their_weights_and_alike_each_time(model: Path, tmp_path: Path) -> None:
    """A small one is repeated, a large one is drawn from; the same recipe gives the same samples."""
    large = write_json_lines(tmp_path / "large.jsonl", [PAIR] * 90)
    small = write_json_lines(tmp_path / "small.jsonl", [PAIR] * 10)
    data = {
        "path": str(large),
        "mix": [{"path": str(small), "weight": 1.0}],
        "validation_fraction": 0.0,
    }
    first, second = datasets_of(model, data), datasets_of(model, data)
    came = sources(first.train)
    assert sorted(came) == sorted(sources(second.train))
    assert (len(came), sum("small" in source for source in came)) == (100, 50)
    assert len({source for source in came if "large" in source}) == 50
