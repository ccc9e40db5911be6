"""What a user's code prints ends no run, whatever the environment says about encodings."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.trainers import ROOT

PROGRAM = r"""
import sys
from trainer_backend.trainer.streams import forgive_prints
forgive_prints()
print("\u2713 \udc80")
print("\u2713", file=sys.stderr)
"""


@pytest.mark.parametrize("variable", ["PYTHONIOENCODING", "LC_ALL"])
def test_the_log_is_utf_8_and_takes_what_cannot_be_encoded(variable: str, tmp_path: Path) -> None:
    """A check mark failed a run under cp1252."""
    value = "cp1252" if variable == "PYTHONIOENCODING" else "C"
    environment = os.environ | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", variable: value}
    with (tmp_path / "trainer.log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=60, check=True,
        )  # fmt: skip
    lines = (tmp_path / "trainer.log").read_text("utf-8").splitlines()
    assert sorted(lines) == sorted(["\u2713 \\udc80", "\u2713"])


def test_a_pipe_keeps_its_encoding_and_gets_escapes() -> None:
    """Who reads it asked for that encoding."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT, env=os.environ | {"PYTHONIOENCODING": "cp1252"},
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.decode("cp1252").strip() == r"\u2713 \udc80"


def test_each_line_is_in_the_log_when_it_is_printed(tmp_path: Path) -> None:
    """Who watches a run reads it at once, and not 8 KB later."""
    program = PROGRAM + "\nimport os\nprint('said before the end')\nos._exit(0)\n"
    with (tmp_path / "trainer.log").open("wb") as log:
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=log, timeout=60, check=True)
    assert "said before the end" in (tmp_path / "trainer.log").read_text("utf-8")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_refuses_the_log_fails_no_print(tmp_path: Path, error: int) -> None:
    """A log that could not be written ended the process with "lost sys.stderr"."""
    program = (
        "import io, os\n"
        "def refuse(self, data):\n"
        f"    raise OSError({error}, os.strerror({error}))\n"
        "from trainer_backend.trainer import streams\n"
        "class Failing(io.FileIO):\n"
        "    write = refuse\n"
        "streams.ForgivingFile.__bases__ = (Failing,)\n"
    )
    with (tmp_path / "trainer.log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-c", program + PROGRAM],
            cwd=ROOT, stdout=log, stderr=log, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0
