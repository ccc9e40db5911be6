"""Files that are broken, or made to break what reads them: each is one sentence, and soon."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gradacc_gui.cli import main
from gradacc_gui.importing.programs import import_config
from trainer_backend.errors import UsageError

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
AXOLOTL = """
base_model: m
datasets: [{path: d}]
adapter: lora
lora_r: 8
lora_alpha: 8
learning_rate: 1
"""
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "an alias bomb": (BOMB, "stands for more than 20,000 values"),
    "a bomb of tables": (BOMB.replace("[", "{k: [").replace("]", "]}"), "more than"),
    "an alias of itself": ("a: &a [*a]\n", "refers to nothing before it"),
    "an alias of nothing": ("a: *b\n", "refers to nothing before it"),
    "deep lists": ("a: " + "[" * 5000, "nest"),
    "deep tables": ("learning_rate: " + "{a: " * 3000 + "1" + "}" * 3000, "nested more than 24 levels"),
    "a number of 5,000 digits": ("learning_rate: " + "9" * 5000, "4300 digits"),
    "a number of 30 digits": ("learning_rate: 1\nmax_steps: " + "9" * 30, "over 18 digits"),
    "control characters": ("learning_rate: \x01", "neither JSON nor YAML"),
    "bytes that are no text": (b"learning_rate: \xff\xfe", "not text in UTF-8"),
    "half of a character": (r'learning_rate: "\ud800"', "neither JSON nor YAML"),
    "an object": ("learning_rate: !!python/object/apply:os.getcwd []", "neither JSON nor YAML"),
    "two documents": ("a: 1\n---\nb: 2\n", "neither JSON nor YAML"),
    "nothing": ("", "no keys and values"),
    "a key that is a list": ("[1, 2]: 3\n", "neither JSON nor YAML"),
    "a megabyte": ("a: " + "x" * 2**20, "larger than 256 KiB"),
    "targets that are a number": (
        AXOLOTL + "lora_target_modules: 5\n",
        "lora_target_modules = 5 is not a list of names. Correct it in the file.",
    ),
    "a rate that is a list": ("learning_rate: [1]\nwarmup_ratio: 0\n", "learning_rate = [1] is not a number"),
    "a batch of nothing": (
        "per_device_train_batch_size: 0\nlearning_rate: 1\n",
        "per_device_train_batch_size = 0 is not a whole number from 1",
    ),
    "an infinite length": ("num_train_epochs: .inf\n", "num_train_epochs = inf is not a number"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.timeout(20)
def test_a_hostile_file_is_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, nothing written, no control characters, no traceback, in JSON alike."""
    content, words = HOSTILE[name]
    path = tmp_path / "given.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["import", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert "Traceback" not in said.err
    assert said.err.strip().isprintable()
    assert main(["import", str(path), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert words in found["refused"]
    assert (found["recipe"], found["account"], found["open"]) == ({}, [], [])
    assert [each.name for each in tmp_path.iterdir()] == ["given.yaml"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 100_000, "nested more than 24 levels"),
        ('{"learning_rate": ' + "9" * 5000 + "}", "4300 digits"),
        (r'{"run_name": "\ud800"}', "lone surrogate"),
        ("[1, 2]", "no keys and values"),
        ('{"learning_rate": 1e999}', "learning_rate = inf is not a number"),
    ],
)
def test_json_is_read_with_the_same_care(content: str, words: str, tmp_path: Path) -> None:
    """It has a reader of its own."""
    path = tmp_path / "given.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=words.replace("[", r"\[")):
        import_config(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
def test_what_is_no_file_is_a_sentence(tmp_path: Path) -> None:
    """A folder, a named pipe, nothing at all: none is waited for."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("pipe.yaml", "folder.yaml", "nothing.yaml"):
        with pytest.raises(UsageError, match="is no file"):
            import_config(tmp_path / name)


def test_odd_texts_leave_toml_and_terminal_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escapes of terminals, quotes and line breaks in keys and values end as text."""
    odd = 'a\x1b[31m"""\\\n\u2028b'
    given: dict[str, Any] = {"learning_rate": 1e-4, "run_name": odd, odd: odd, "output_dir": odd}
    path = tmp_path / "given.json"
    path.write_text(json.dumps(given))
    assert main(["import", str(path)]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
    tables = tomllib.loads((tmp_path / "given.toml").read_text("utf-8"))
    assert tables["run"]["name"] == odd
    assert main(["import", str(path), "--json"]) == 0
    account = {line["key"]: line for line in json.loads(capsys.readouterr().out)["account"]}
    assert account[odd]["class"] == "changes-the-run"
    assert account[odd]["value"] == odd


def test_a_key_of_dots_is_a_line_of_the_account(tmp_path: Path) -> None:
    """It names no table that the file has."""
    path = tmp_path / "config.yaml"
    path.write_text(AXOLOTL + "..: 1\n'': 2\n")
    keys = [line.key for line in import_config(path).lines]
    assert ".." in keys
    assert "" in keys
