"""Deleted runs: moved to GRADACC_HOME/trash with all they hold, put back from there, or removed for good."""

from __future__ import annotations

from pathlib import Path

from gradacc_gui.session.runs import delete_run
from trainer_backend.errors import RunDirectoryError
from trainer_backend.private_files import home, make_private
from trainer_backend.regular_files import is_folder
from trainer_backend.run_directory import RunDirectory, runs_folder


def trash_folder() -> Path:
    """Where deleted runs lie."""
    return home() / "trash"


def trashed() -> list[RunDirectory]:
    """The deleted runs, the one that was deleted last first."""
    try:
        folders = [entry for entry in trash_folder().iterdir() if is_folder(entry)]
        return [RunDirectory(entry) for entry in sorted(folders, key=_changed_at, reverse=True)]
    except OSError:
        return []


def _changed_at(path: Path) -> float:
    return path.lstat().st_ctime


def to_trash(run: RunDirectory) -> RunDirectory:
    """Move a run that no trainer works in to the trash; gives it as it lies there.

    Raises RunDirectoryError when it is live, or cannot be moved.
    """
    run.check()
    try:
        make_private(trash_folder())
        with run.locked(named=False):  # no trainer starts in it meanwhile
            pass
        return _moved(run, trash_folder())
    except OSError as error:
        message = f"{run.path} cannot be moved to the trash: {error.strerror}. Check its permissions."
        raise RunDirectoryError(message) from error


def put_back(run: RunDirectory) -> RunDirectory:
    """Move a run from the trash to the others. Raises RunDirectoryError when one of its id lies there."""
    try:
        make_private(runs_folder())
        return _moved(run, runs_folder())
    except OSError as error:
        message = f"{run.path} cannot be put back: {error.strerror}. Check its permissions."
        raise RunDirectoryError(message) from error


def _moved(run: RunDirectory, folder: Path) -> RunDirectory:
    target = folder / run.id
    if target.exists():
        message = f"{target} exists already. Rename or move that folder first."
        raise RunDirectoryError(message)
    run.path.rename(target)
    return RunDirectory(target)


def remove_for_good(run: RunDirectory) -> None:
    """Delete a run that lies in the trash. Raises RunDirectoryError when something cannot be removed."""
    if run.path.parent != trash_folder().absolute():
        message = f"{run.path} does not lie in the trash. Delete the run first."
        raise RunDirectoryError(message)
    delete_run(run)
