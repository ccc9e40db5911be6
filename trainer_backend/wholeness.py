"""Whether a run's journal and its checkpoints belong together. No torch: the window asks too.

A run whose checkpoints were left behind by a copy would start from its first step again, over the rows
of all it had trained; one whose journal was left behind would begin a second history.
"""

from __future__ import annotations

from trainer_backend.errors import RunDirectoryError
from trainer_backend.journal_reader import JournalReader
from trainer_backend.protocol import CheckpointSaved
from trainer_backend.run_directory import RunDirectory, checkpoints_in


def has_checkpoints(run: RunDirectory) -> bool:
    """Whether a checkpoint lies there that is not set aside; none is opened."""
    return bool(checkpoints_in(run.checkpoints_path))


def check_whole(run: RunDirectory) -> None:
    """Raise RunDirectoryError when a run's checkpoints or its journal are missing; nothing is written."""
    if run.mirrored() is not None:
        return  # its checkpoints lie on the other machine
    saved = has_checkpoints(run)
    if not run.journal_path.is_file():
        if saved:
            message = f"{run.path} is half copied: it has checkpoints but no run.sqlite. {_remedy(run)}"
            raise RunDirectoryError(message)
        return
    reader = JournalReader(run.journal_path)
    try:
        if saved and not reader.facts():
            message = (
                f"{run.path} is half copied: it has checkpoints, but its run.sqlite is empty. {_remedy(run)}"
            )
            raise RunDirectoryError(message)
        newest = None if saved else reader.newest_fact(CheckpointSaved)
    finally:
        reader.close()
    if newest is not None and isinstance(newest.event, CheckpointSaved):
        message = (
            f"{run.path} is half copied: it saved a checkpoint at step {newest.event.step}, and has none in"
            f" checkpoints/. Copy that folder again, or start again: gradacc run {run.recipe_path}."
        )
        raise RunDirectoryError(message)


def check_trainable(run: RunDirectory) -> None:
    """Raise RunDirectoryError where no trainer may start here: a mirror, or a run that is not whole."""
    if (origin := run.mirrored()) is not None:
        message = (
            f"{run.path} mirrors a run of {origin.host}, so no trainer starts in it."
            f" gradacc resume {origin.address} goes on with it there."
        )
        raise RunDirectoryError(message)
    check_whole(run)


def _remedy(run: RunDirectory) -> str:
    return (
        "Copy it again, with run.sqlite-wal where there is one. If they are lost:"
        f" gradacc resume {run.typed} --without-history continues from the newest checkpoint."
    )
