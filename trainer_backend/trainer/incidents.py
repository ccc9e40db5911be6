"""A file for each time that something went wrong and the run went back: what, why, on which samples.

    <run>/incidents/step-000000412-1.json

It stands for itself: what happened and who decided, the steps and facts before it from the journal, the
samples that were left out, the settings before and after, and the environment.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

from trainer_backend.errors import RunDirectoryError
from trainer_backend.journal_reader import JournalReader
from trainer_backend.private_files import make_folder_in, private_opener
from trainer_backend.protocol import OptimizerStepMeasured, PhaseEntered, RunStarted, plain
from trainer_backend.run_directory import RunDirectory

FOLDER: Final = "incidents"
LAST_STEPS: Final = 50
LAST_FACTS: Final = 40


def write_incident(run: RunDirectory, step: int, told: dict[str, Any]) -> str:
    """Write an incident's file; gives its path relative to the run, or "" where the disk refuses it.

    `told`: what happened and what was decided, as plain data; the evidence is taken from the journal.
    """
    content = {"written_at": time.time(), "run": run.id, **told, **_evidence(run)}
    try:
        folder = make_folder_in(run.path, FOLDER)
        path = _free_path(folder, step)
        with open(path, "w", encoding="utf-8", opener=private_opener) as file:
            json.dump(plain(content), file, indent=1)
    except OSError:  # a full disk; the facts in the journal tell the same in short
        return ""
    return path.relative_to(run.path).as_posix()


def _free_path(folder: Path, step: int) -> Path:
    count = 1
    while (path := folder / f"step-{step:09d}-{count}.json").exists():
        count += 1
    return path


def _evidence(run: RunDirectory) -> dict[str, Any]:
    """The newest steps and facts, and the environment of the attempt."""
    try:
        reader = JournalReader(run.journal_path)
    except RunDirectoryError:
        return {}
    try:
        steps = [record.event for record in reader.measurements(OptimizerStepMeasured, LAST_STEPS)]
        facts = [record for record in reader.facts() if not isinstance(record.event, PhaseEntered)]
        started = reader.newest_fact(RunStarted)
    finally:
        reader.close()
    return {
        "steps": [plain(step) for step in steps],
        "facts": [
            {"seq": record.seq, "at": record.at, "type": type(record.event).__name__, **plain(record.event)}
            for record in facts[-LAST_FACTS:]
        ],
        "environment": {} if started is None else plain(started.event),
    }
