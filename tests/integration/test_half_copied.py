"""A run directory of which a part was left behind is refused, and stays as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gradacc_gui import cli
from tests.support.trainers import make_probe, records, run_here
from trainer_backend import __main__ as trainer
from trainer_backend.run_directory import RunDirectory

LONGER = {"run": {"max_samples": 16}, "checkpoint": {"every_samples": 8}}


@pytest.fixture(params=["checkpoints", "run.sqlite"])
def half(request: pytest.FixtureRequest, tmp_path: Path) -> RunDirectory:
    """A run that has trained, without its checkpoints or without its journal."""
    run = make_probe(tmp_path, LONGER)
    assert run_here(run) == 0
    if request.param == "checkpoints":
        shutil.rmtree(run.checkpoints_path)
    else:
        run.journal_path.unlink()
    return run


def contents(run: RunDirectory) -> dict[str, bytes]:
    """All files but the lock, and what SQLite lays beside a journal to read it."""
    besides = ("trainer.lock", "run.sqlite-wal", "run.sqlite-shm")
    files = {path.relative_to(run.path).as_posix(): path for path in run.path.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in besides}


def test_a_half_copied_run_is_refused_by_the_trainer(
    half: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the recipe would be written over first."""
    before = contents(half)
    assert trainer.main(["run", str(half.path), "--set", "run.max_samples=32"]) == 2
    said = capsys.readouterr().err
    assert f"{half.path} is half copied" in said
    assert "Copy" in said
    assert contents(half) == before


def test_a_half_copied_run_is_not_resumed(half: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command, which starts nothing for it."""
    before = contents(half)
    assert cli.main(["resume", str(half.path)]) == 2
    assert "is half copied" in capsys.readouterr().err
    assert contents(half) == before


def test_a_run_that_saved_nothing_yet_may_start_again(tmp_path: Path) -> None:
    """It was killed before its first checkpoint, so none is missing."""
    run = make_probe(tmp_path, LONGER)
    run.checkpoints_path.rmdir()
    assert run_here(run) == 0
    assert records(run)
