"""Notes about a run are kept beside it; its directory and id never change."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gradacc_gui.session.about_file import NO_NOTES, AboutRun, read_about, write_about
from gradacc_gui.session.listing import list_runs
from tests.support.fake_runs import Plan, write_run
from trainer_backend.errors import RunDirectoryError
from trainer_backend.run_directory import RunDirectory, find_run, runs_folder


@pytest.fixture
def run() -> RunDirectory:
    """A run of few steps."""
    return write_run(runs_folder(), Plan(name="small", steps=2, total_steps=2, end="finished"))


def test_notes_come_back_as_they_were_written(run: RunDirectory) -> None:
    """Emoji, quotes and 10,000 characters too; blanks around are not kept."""
    about = AboutRun("a \"quoted\" 'label' 🦊", ("🦊", "it's", "x" * 10_000), "two\nlines\t\\", starred=True)
    write_about(run, about)
    assert read_about(run) == about
    write_about(run, AboutRun("  a\n b ", ("x", " x ", "", "y"), " \n"))
    assert read_about(run) == AboutRun("a b", ("x", "y"))
    assert (run.path / "about.toml").stat().st_mode & 0o077 == 0
    write_about(run, NO_NOTES)
    assert read_about(run) == NO_NOTES


def test_a_label_names_the_run_everywhere_and_moves_nothing(run: RunDirectory) -> None:
    """Lists show it, commands find it, id and directory stay."""
    before = run.path
    write_about(run, AboutRun("the good one"))
    (listed,) = list_runs()
    assert (listed.name, listed.run.path, listed.run.id) == ("the good one", before, run.id)
    assert find_run("the good one") == run
    assert find_run(run.id) == run
    write_about(run, NO_NOTES)
    assert list_runs()[0].name == "small"
    assert find_run("small") == run


def test_keys_of_a_newer_version_stay(run: RunDirectory) -> None:
    """They are not this version's to remove."""
    (run.path / "about.toml").write_text('label = "old"\ncolour = "red"\ntags = 3\n', "utf-8")
    assert read_about(run) == AboutRun("old")
    write_about(run, AboutRun("new"))
    table = tomllib.loads((run.path / "about.toml").read_text("utf-8"))
    assert table == {"label": "new", "colour": "red"}


def test_a_damaged_file_costs_the_notes_and_is_not_overwritten(run: RunDirectory) -> None:
    """The list is there all the same; saving says what to do."""
    (run.path / "about.toml").write_bytes(b"label = \xff")
    assert read_about(run) == NO_NOTES
    assert [line.run for line in list_runs()] == [run]
    with pytest.raises(RunDirectoryError, match="Mend it"):
        write_about(run, AboutRun("x"))
    assert (run.path / "about.toml").read_bytes() == b"label = \xff"


def test_notes_that_are_too_long_or_no_text_are_refused(run: RunDirectory) -> None:
    """By a sentence; what was there stays."""
    write_about(run, AboutRun("kept"))
    with pytest.raises(RunDirectoryError, match="may take"):
        write_about(run, AboutRun(note="x" * 20_000_000))
    with pytest.raises(RunDirectoryError, match="surrogate"):
        write_about(run, AboutRun("\ud800"))
    assert read_about(run) == AboutRun("kept")


def test_a_place_that_cannot_be_written_is_told(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its path."""

    def refuse(_self: Path, _target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(RunDirectoryError, match="cannot be written: Permission denied"):
        write_about(run, AboutRun("x"))
    monkeypatch.undo()
    assert [path.name for path in run.path.glob(".about*")] == []
