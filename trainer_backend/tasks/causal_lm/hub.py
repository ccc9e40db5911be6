"""Data sets of the hub and folders that `save_to_disk` wrote, by the datasets library where there is one."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainer_backend.errors import UsageError
from trainer_backend.tasks.causal_lm.raw_text import DataRecord, Item

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?(#[\w.-]+)?")
"""organisation/name, then :subset and #split where they are not the only ones."""


def looks_like_hub_id(text: str) -> bool:
    """Whether a path that is none could be a data set of the hub."""
    known = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".md", ".gz")
    return HUB_ID.fullmatch(text) is not None and not text.lower().endswith(known)


def is_saved_folder(folder: Path) -> bool:
    """Whether `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote this folder."""
    single = (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    return single or (folder / "dataset_dict.json").is_file()


def _datasets(what: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module("datasets")  # an optional, heavy library
    except ImportError as error:
        message = f"{what} needs datasets, which this Python does not have. Run: pip install datasets"
        raise UsageError(message) from error


def read_saved_folder(folder: Path) -> Iterator[Item]:
    """The rows of a saved data set; of several splits the one called train. Raises UsageError."""
    datasets = _datasets(f"{folder}, which the datasets library saved,")
    try:
        found = datasets.load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        message = f"{folder} cannot be read as a saved data set: {error}. Save it again."
        raise UsageError(message) from error
    if isinstance(found, dict):
        if "train" not in found:
            message = (
                f"{folder} has the splits {', '.join(found)} and none called train. Give one of its folders."
            )
            raise UsageError(message)
        found = found["train"]
    yield from _rows(str(folder), found)


def read_hub(text: str, *, offline: bool) -> Iterator[Item]:
    """The rows of `organisation/name:subset#split`, streamed. Raises UsageError."""
    if offline:
        message = (
            f"data.path = {text} is neither a file nor a folder, and the hub may not be asked (offline)."
            " Give a path, or turn task.offline off."
        )
        raise UsageError(message)
    datasets = _datasets(f"data.path = {text}, a data set of the hub,")
    name, _, split = text.partition("#")
    name, _, subset = name.partition(":")
    try:
        found = datasets.load_dataset(name, subset or None, split=split or "train", streaming=True)
        yield from _rows(text, found)
    except (OSError, ValueError) as error:
        message = (
            f"data.path = {text} is neither a file nor a folder, and it did not come from the hub: {error}."
            " Check the name, its subset (name:subset) and split (name#split)."
        )
        raise UsageError(message) from error


def _rows(name: str, found: Any) -> Iterator[Item]:  # noqa: ANN401 - a Dataset or an IterableDataset
    for row, fields in enumerate(found, 1):
        yield DataRecord(f"{name}:{row}", fields)
