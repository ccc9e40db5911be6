"""What is printed of others' texts gives a terminal no commands, and stays JSON where it was JSON."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from gradacc_gui.cli import main
from gradacc_gui.plain_output import plain_output
from tests.support.fake_runs import Plan, write_run
from trainer_backend.plain_text import plain
from trainer_backend.run_directory import RunDirectory, runs_folder

NAME = "\x1b]0;title\x07\x1b[31mred\x9b2J\u202e"


def test_control_characters_are_escaped_and_lines_stay() -> None:
    """As JSON writes them."""
    assert plain("a\x1b[2J\tb\nc\x9b\u202e✓") == "a\\u001b[2J\tb\nc\\u009b\\u202e✓"
    assert json.loads(plain(json.dumps({"a": NAME}, ensure_ascii=False))) == {"a": NAME}


def test_a_run_s_name_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """In lists, in messages, in JSON and in argparse's own words."""
    run = write_run(runs_folder(), Plan(name="x", steps=2, end="finished"))
    RunDirectory(run.path.rename(run.path.with_name(f"{NAME}-1")))
    for words in (["runs"], ["runs", "--json"], ["show", NAME], ["show", f"{NAME}?"], ["pause", "a", NAME]):
        with suppress(SystemExit):  # argparse's end
            main(words)
        told = capsys.readouterr()
        text = told.out + told.err
        assert "red" in text
        assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_streams_are_given_back() -> None:
    """Also where one is wrapped twice."""
    import sys

    before = sys.stdout
    with plain_output(), plain_output():
        assert sys.stdout is not before
    assert sys.stdout is before
