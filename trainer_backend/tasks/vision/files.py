"""Which files of a folder are pictures, and what their values are."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

import numpy as np

from trainer_backend.errors import UsageError
from trainer_backend.tasks.built_in import ReportWarning
from trainer_backend.tasks.vision.pictures import SUFFIXES, BrokenImageError, PictureRules, decode

MOST_MEASURED: Final = 200
"""Pictures whose values are looked at to propose a range."""


def picture_files(folder: Path, key: str, warn: ReportWarning) -> list[Path]:
    """The pictures of a folder and its folders in a fixed order; hidden files are passed over and counted.

    A Mac writes "._name.png" beside a picture on a foreign disk, which is none. Raises UsageError.
    """
    if not folder.is_dir():
        message = f"{key} = {folder} is not a folder. Check the path; it starts at the recipe's folder."
        raise UsageError(message)
    found: list[Path] = []
    hidden: list[str] = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__MACOSX"]
        for name in names:
            if os.path.splitext(name)[1].lower() not in SUFFIXES:  # noqa: PTH122 - a million names
                continue
            if name.startswith("."):
                hidden.append(name)
            else:
                found.append(Path(place, name))
    if hidden:
        warn("hidden-files", {"count": len(hidden), "first": min(hidden), "key": key})
    if not found:
        known = ", ".join(sorted(SUFFIXES))
        message = f"{key} = {folder} holds no {known} file. Choose another folder."
        raise UsageError(message)
    return sorted(found)


def propose_range(files: list[Path], rules: PictureRules, warn: ReportWarning) -> None:
    """Says when values of 16 bits reach only the lower part of their range, and how to state that."""
    if rules.value_range is not None or not files:
        return
    highest = 0
    step = max(1, len(files) // MOST_MEASURED)
    for path in files[::step][:MOST_MEASURED]:
        try:
            array = decode(path, rules).array
        except BrokenImageError:
            continue  # named where the files are checked one by one
        if array.dtype != np.uint16:
            return
        highest = max(highest, int(array.max(initial=0)))
    bits = max(1, math.ceil(math.log2(highest + 1))) if highest else 1
    if 8 <= bits < 16:
        warn("values-below-range", {"highest": highest, "bits": bits, "range_high": 2**bits - 1})
