"""Certificates as data and in words: what is written is read back, and every code has its sentences."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import pytest

from tests.support.reports import comparison, report
from trainer_backend.errors import UsageError
from trainer_backend.verify import sentences
from trainer_backend.verify.html import page, save
from trainer_backend.verify.report import (
    Culprit,
    Remark,
    VerifyFailed,
    VerifyProgress,
    decode,
    encode,
)

SOURCES = Path(__file__).resolve().parents[4] / "trainer_backend" / "verify"


def test_a_certificate_is_read_back_as_it_was_written() -> None:
    """Non-finite numbers too, by their names."""
    written = report(comparisons=(comparison(error=math.inf, loss=-math.inf),))
    line = encode(written)
    assert b'"Infinity"' in line
    assert b'"-Infinity"' in line
    assert decode(line) == written


def test_nan_is_written_by_its_name() -> None:
    """JSON has none."""
    read = decode(encode(report(comparisons=(comparison(error=math.nan),))))
    assert math.isnan(read.comparisons[0].error)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "message",
    [VerifyProgress(code="comparing", done=1, of=3, values={"steps": 2}), VerifyFailed(message="why")],
)
def test_progress_and_failure_are_lines_too(message: VerifyProgress | VerifyFailed) -> None:
    """Told apart by their type."""
    line = encode(message)
    assert b"\n" not in line
    assert f'"type":"{type(message).__name__}"'.encode() in line
    assert decode(line) == message


def test_a_line_of_somebody_else_is_no_message() -> None:
    """The reader can tell it."""
    for line in (b"epoch 1", b"{}", b'{"type": "RunStarted"}', b"[1]"):
        with pytest.raises(msgspec.MsgspecError):
            decode(line)


def used_codes(pattern: str) -> set[str]:
    """Codes that the sources make."""
    text = "\n".join(path.read_text("utf-8") for path in SOURCES.glob("*.py"))
    return set(re.findall(pattern, text))


def test_every_culprit_that_is_made_has_its_sentences() -> None:
    """And no sentence stands for a culprit that nobody makes."""
    made = used_codes(r'Culprit\(\s*code="([\w-]+)"') | used_codes(r'code = "([\w-]+)"')
    made |= {"random-numbers", "state", "other-denominator", "ratio"}
    made -= set(sentences.REMARKS) - set(sentences.CULPRITS)
    assert made == set(sentences.CULPRITS)


def test_every_remark_that_is_made_has_its_sentence() -> None:
    """Those of the trainer's inspection included, but what the comparisons prove."""
    made = used_codes(r'Remark\(\s*code="([\w-]+)"') | {"half-inside", "fp32-inside"}
    made |= {"batch-norm", "batch-norm-of-one", "optimizer-in-backward", "half-gradients"}
    made |= {"reentrant-checkpointing"}
    assert made == set(sentences.REMARKS)


@pytest.mark.parametrize("code", sentences.CULPRITS)
def test_a_culprit_is_worded_also_without_values(code: str) -> None:
    """A value that is missing is a dash, never an error."""
    sentence, remedy = sentences.culprit(Culprit(code=code, where=("loss",)))
    assert sentence
    assert remedy
    assert "{" not in sentence + remedy


@pytest.mark.parametrize("code", sentences.REMARKS)
def test_a_remark_is_worded_also_without_values(code: str) -> None:
    """Likewise."""
    assert "{" not in sentences.remark(Remark(code=code))


def test_the_headline_says_when_the_recipe_declares_another_verdict() -> None:
    """What was found first."""
    assert sentences.headline(report()) == "Equal"
    other = report(expected="per-micro-batch")
    assert "and the recipe declares" in sentences.headline(other)
    assert not other.as_declared


def test_the_page_is_one_file_and_escapes_what_comes_from_outside() -> None:
    """No script, nothing loaded, no markup of a layer's name."""
    text = page(report(recipe="<b>x</b>", culprits=(Culprit(code="state", where=("<img src=x>",)),)))
    assert "<b>x</b>" not in text
    assert "<img" not in text
    assert "<script" not in text
    assert "http" not in text
    assert text.startswith("<!doctype html>")


def test_a_certificate_is_saved_by_its_names_ending(tmp_path: Path) -> None:
    """JSON, or a page."""
    made = report()
    save(made, tmp_path / "a.json")
    save(made, tmp_path / "a.html")
    assert decode((tmp_path / "a.json").read_bytes()) == made
    assert (tmp_path / "a.html").read_text("utf-8").endswith("</html>\n")


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    """With the path in it."""
    with pytest.raises(UsageError, match="cannot be saved"):
        save(report(), tmp_path / "no" / "a.html")
