"""A run directory of which a part was left behind is refused, and stays as it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gradacc_gui import cli
from gradacc_gui.commands import running
from gradacc_gui.session.runs import summarise
from tests.support.trainers import events, make_probe, records, run_here, set_recipe
from trainer_backend import __main__ as trainer
from trainer_backend.errors import RunDirectoryError
from trainer_backend.protocol import RunStarted, Warned
from trainer_backend.run_directory import RunDirectory, checkpoints_in
from trainer_backend.run_facts import RunState

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


def lose(run: RunDirectory) -> None:
    """The journal is gone."""
    run.journal_path.unlink()


def empty(run: RunDirectory) -> None:
    """A power cut left its name."""
    run.journal_path.write_bytes(b"")


def garble(run: RunDirectory) -> None:
    """A bad disk."""
    run.journal_path.write_bytes(b"no database " * 500)


@pytest.mark.parametrize("harm", [lose, empty, garble])
def test_a_run_goes_on_without_the_history_it_lost(
    tmp_path: Path, harm: Callable[[RunDirectory], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its newest checkpoint, to the same bits; what was there is kept, and the loss is told."""
    longer = {"run": {"max_samples": 32}, "checkpoint": {"every_samples": 8}}
    whole = make_probe(tmp_path / "whole", longer)
    assert run_here(whole) == 0

    run = make_probe(tmp_path / "run", LONGER)
    assert run_here(run) == 0
    harm(run)
    set_recipe(run, **{"run.max_samples": 32})
    with pytest.raises(RunDirectoryError, match=r"--without-history|damaged"):
        run_here(run)
    started: list[RunDirectory] = []

    def follow_start(run: RunDirectory, *_: object) -> int:
        started.append(run)
        return 0

    monkeypatch.setattr(running, "_follow_start", follow_start)
    assert cli.main(["resume", str(run.path), "--without-history"]) == 0
    assert started == [run]
    assert summarise(run).state is RunState.INTERRUPTED
    assert (run.path / "run.sqlite.unreadable-1").exists() is (harm is not lose)

    assert run_here(run) == 0
    (lost,) = [told for told in events(run, Warned) if told.code == "history-lost"]
    (started_at,) = [told.from_step for told in events(run, RunStarted)]
    assert lost.values["step"] == started_at == 4
    ends = [list(checkpoints_in(each.checkpoints_path).values())[-1] for each in (whole, run)]
    assert len({(end / "model.safetensors").read_bytes() for end in ends}) == 1


def test_a_history_that_is_there_is_not_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is a run made anew that has no checkpoint."""
    run = make_probe(tmp_path, LONGER)
    assert cli.main(["resume", str(run.path), "--without-history"]) == 2
    assert "no checkpoint to go on from" in capsys.readouterr().err
    assert run_here(run) == 0
    before = contents(run)
    assert cli.main(["resume", str(run.path), "--without-history"]) == 2
    assert "has its history" in capsys.readouterr().err
    assert contents(run) == before
