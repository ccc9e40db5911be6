"""Deleted runs lie in the trash, are put back whole, and are removed for good only from there."""

from __future__ import annotations

import pytest

from gradacc_gui.session.about_file import AboutRun, write_about
from gradacc_gui.session.listing import list_runs
from gradacc_gui.session.trash import put_back, remove_for_good, to_trash, trashed
from tests.support.fake_runs import Plan, write_run
from trainer_backend.errors import RunDirectoryError
from trainer_backend.run_directory import RunDirectory, runs_folder


@pytest.fixture
def run() -> RunDirectory:
    """A run of few steps, with notes."""
    made = write_run(runs_folder(), Plan(name="small", steps=2, total_steps=2, end="finished"))
    write_about(made, AboutRun("mine", ("kept",)))
    return made


def test_a_deleted_run_can_be_put_back_as_it_was(run: RunDirectory) -> None:
    """Nothing of it is lost on the way."""
    before = list_runs()
    in_trash = to_trash(run)
    assert list_runs() == []
    assert trashed() == [in_trash]
    assert put_back(in_trash) == run
    assert list_runs() == before
    assert trashed() == []


def test_a_live_run_is_not_deleted(run: RunDirectory) -> None:
    """Whoever asks."""
    with run.locked(), pytest.raises(RunDirectoryError):
        to_trash(run)
    assert [line.run for line in list_runs()] == [run]


def test_nothing_is_overwritten_on_the_way_back(run: RunDirectory) -> None:
    """Another run of the same id stays, and so does the one in the trash."""
    in_trash = to_trash(run)
    run.path.mkdir()
    with pytest.raises(RunDirectoryError, match="exists already"):
        put_back(in_trash)
    assert trashed() == [in_trash]
    run.path.rmdir()


def test_only_what_lies_in_the_trash_is_removed_for_good(run: RunDirectory) -> None:
    """Notes go with it."""
    with pytest.raises(RunDirectoryError, match="does not lie in the trash"):
        remove_for_good(run)
    in_trash = to_trash(run)
    remove_for_good(in_trash)
    assert trashed() == []
    assert not in_trash.path.exists()


def test_a_folder_that_is_no_run_is_not_deleted() -> None:
    """A project's folder is nobody's run."""
    folder = runs_folder() / "notes"
    folder.mkdir(parents=True)
    with pytest.raises(RunDirectoryError):
        to_trash(RunDirectory(folder))
    assert folder.is_dir()
