"""From an exception to a sentence with the user's own place."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from trainer_backend.errors import GradaccError, UsageError
from trainer_backend.trainer import failures


def raised(error: BaseException) -> BaseException:
    """The error, with a traceback through this file."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_our_own_errors_are_their_sentence_alone() -> None:
    """No traceback, no place; usage is told apart."""
    fact = failures.run_failed(raised(UsageError("Do this instead.")), step=3, samples_seen=24)
    assert (fact.reason, fact.code, fact.traceback) == ("Do this instead.", "usage", "")
    assert failures.code_of(GradaccError("x")) == "refused"


def test_the_deepest_line_of_the_user_is_named(tmp_path: Path) -> None:
    """Library frames below it are folded into one line."""
    script = tmp_path / "theirs.py"
    script.write_text("import json\ndef f():\n    return json.loads('{')\n\nf()\n", encoding="utf-8")
    with pytest.raises(ValueError, match="Expecting") as caught:
        runpy.run_path(str(script))
    assert failures.where(caught.value) == f"{script}:3"
    told = failures.folded(caught.value)
    assert "return json.loads('{')" in told
    assert "frames of libraries" in told
    assert told.splitlines()[-1].startswith("json.decoder.JSONDecodeError")


def test_a_syntax_error_is_placed_in_the_file_that_has_it(tmp_path: Path) -> None:
    """Not in the import that found it."""
    script = tmp_path / "theirs.py"
    script.write_text("x = 1\ny = = 2\n", encoding="utf-8")
    with pytest.raises(SyntaxError) as caught:
        runpy.run_path(str(script))
    assert failures.where(caught.value) == f"{script}:2"


def test_a_workers_error_is_told_as_it_was_in_the_worker() -> None:
    """torch wraps it: the last line and the user's line are taken out of the text."""
    text = (
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/home/me/task.py", line 12, in __getitem__\n    raise ValueError("bad image")\n'
        "ValueError: bad image\n"
    )
    error = ValueError(text)
    assert failures.sentence_of(error) == "ValueError: bad image (in /home/me/task.py:12)"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), "out-of-memory"),
        (ModuleNotFoundError("x"), "import-error"),
        (KeyError("x"), "exception"),
    ],
)
def test_kinds_of_failure_have_codes(error: BaseException, code: str) -> None:
    """For readers that word them."""
    assert failures.code_of(error) == code


def test_a_batch_norm_of_one_value_gets_a_remedy() -> None:
    """As torch refuses it itself."""
    with pytest.raises(ValueError, match="more than 1 value") as caught:
        torch.nn.BatchNorm1d(2)(torch.zeros(1, 2))
    reason = failures.run_failed(caught.value, step=0, samples_seen=0).reason
    assert reason.startswith("BatchNorm in training cannot normalize")
    assert "Use a larger accumulation.micro_batch_size" in reason
    assert "GroupNorm" in reason
