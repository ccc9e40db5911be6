"""Checks of pictures: classes that are rare, numbers that use a part of their range, normalization."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

from trainer_backend.errors import UsageError
from trainer_backend.preflight.data_checks import Findings, found
from trainer_backend.preflight.findings import Amendment, ClassShares, Finding, PictureValues
from trainer_backend.preflight.first_window import DataRead
from trainer_backend.preflight.picture_rows import label_shares, mask_shares
from trainer_backend.recipe import Recipe
from trainer_backend.tasks.built_in import place, unheard
from trainer_backend.tasks.vision.files import MOST_MEASURED, picture_files
from trainer_backend.tasks.vision.normalization import Normalization
from trainer_backend.tasks.vision.pictures import BrokenImageError, PictureRules, Values, decode

BINS: Final = 64
VALUES_COUNTED: Final = 100_000
"""Of each picture."""
RARE_SHARE: Final = 0.05
"""A class in fewer of the masks may be missing in the validation part."""


def class_shares(data: DataRead, read_s: float) -> ClassShares:
    """How often each class occurs, over all files."""
    task: Any = data.task
    if data.config.kind == "segmentation":
        return mask_shares(task.survey, task.rules.mask, duration_s=read_s)
    return label_shares(data.datasets.train.labels, task.classes)


def measure_values(data: DataRead) -> PictureValues | None:
    """The numbers of up to 200 pictures; None for 8-bit ones, whose range is plain."""
    task: Any = data.task
    dataset = data.datasets.train
    paths = list(dict.fromkeys(dataset.source(index) for index in range(len(dataset))))
    rules: PictureRules = task.rules.picture if data.config.kind == "segmentation" else task.picture_rules
    return measured(paths, rules)


def measured(paths: list[Path], rules: PictureRules) -> PictureValues | None:
    """The range and distribution of the numbers in pictures of more than 8 bits."""
    began = perf_counter()
    lows, highs, kinds, parts = [], [], [], []
    for path in paths[:: max(1, len(paths) // MOST_MEASURED)][:MOST_MEASURED]:
        try:
            array = decode(path, rules).array
        except BrokenImageError:
            continue  # named where the files are checked one by one
        if array.dtype in (np.uint8, np.bool_):
            return None
        valid = array[_is_measured(array, rules.nodata)]
        if valid.size:
            lows.append(float(valid.min()))
            highs.append(float(valid.max()))
            kinds.append(str(array.dtype))
            parts.append(valid[:: max(1, valid.size // VALUES_COUNTED)].astype(np.float64))
    if not kinds:
        return None
    low, high = min(lows), max(highs)
    counts = np.histogram(np.concatenate(parts), BINS, (low, high if high > low else low + 1.0))[0]
    return PictureValues(
        pictures=len(kinds),
        kind=kinds[0],
        low=low,
        high=high,
        counts=tuple(counts.tolist()),
        proposed=_proposed(kinds[0], low, high),
        stated=rules.value_range,
        duration_s=perf_counter() - began,
    )


def _is_measured(array: Values, nodata: float | None) -> Values:
    """Where there is a number, and not the one that stands for none."""
    there: Values = np.isfinite(array) if array.dtype.kind == "f" else np.ones(array.shape, np.bool_)
    return there if nodata is None or math.isnan(nodata) else there & (array != nodata)


def _proposed(kind: str, low: float, high: float) -> tuple[float, float]:
    """Whole numbers get the next power of two; others their own range."""
    if not kind.startswith("uint"):
        return low, high
    return 0.0, float(2 ** max(1, math.ceil(math.log2(high + 1))) - 1)


def check_pictures(data: DataRead, values: PictureValues | None) -> Findings:
    """Everything but whether the files can be read."""
    if data.config.kind == "segmentation":
        yield from _check_masks(data)
    yield from _check_values(data, values)
    yield from _check_normalization(data)


def _check_masks(data: DataRead) -> Findings:
    task: Any = data.task
    survey, rules = task.survey, task.rules.mask
    yield found("masks-known", classes=rules.classes)
    for code, said in data.heard:
        if code == "mask-much-ignored":
            yield Finding(code="masks-much-ignored", state="doubtful", values=said)
        if code == "picture-turned-alone":
            yield Finding(code="turned-alone", state="doubtful", values=said)
    held = None if data.datasets.validation is None else data.datasets.validation.masks
    if held is None:
        return
    for value in range(rules.classes):
        files = survey.files[value]
        if 0 < files <= max(1, RARE_SHARE * len(survey.values_of)) and not _occurs(value, held, survey):
            yield found("class-rare", "doubtful", value=value, files=files, all_files=len(survey.values_of))


def _occurs(value: int, masks: Iterable[Path], survey: Any) -> bool:  # noqa: ANN401 - a MaskSurvey
    return any(value in survey.values_of.get(mask, ()) for mask in masks)


def range_asked_for(recipe: Recipe, error: Exception) -> tuple[Finding, PictureValues] | None:
    """What to state where numbers have no scale of their own; None where `error` is about something else."""
    if not isinstance(error, UsageError) or "data.value_range" not in str(error):
        return None
    data: Any = recipe.config.data
    text = data.images if recipe.config.kind == "segmentation" else data.path
    folder = place(recipe.folder, text)
    if not folder.is_dir():
        return None
    rules = PictureRules(page=data.page, nodata=data.nodata, max_pixels=round(data.max_megapixels * 1e6))
    values = measured(picture_files(folder, "data", unheard), rules)
    if values is None:
        return None
    change = Amendment(key="data.value_range", value=list(values.proposed))
    return found("range-unknown", "stop", change, sentence=str(error)), values


def _check_values(data: DataRead, values: PictureValues | None) -> Findings:
    for code, said in data.heard:
        if code == "values-below-range" and values is not None:
            change = Amendment(key="data.value_range", value=[0, said["range_high"]])
            yield Finding(code="values-low", state="doubtful", values=said, change=change)
            return
    if values is None:
        yield found("values-scaled", low=0, high=255)
    else:
        low, high = values.stated or (0.0, 65_535.0)
        yield found("values-scaled", low=low, high=high)


def _check_normalization(data: DataRead) -> Findings:
    task: Any = data.task
    normalize: Normalization | None = data.datasets.train.normalization
    words = "from 0 to 1" if normalize is None else normalize.words()
    stated = bool(task.task.mean)
    own = next((said for code, said in data.heard if code == "own-normalization"), None)
    if own is not None:
        yield Finding(code="normalized-own", state="ok", values=own)
    elif not stated:
        yield found("normalized-plain", values=words)
    else:
        expected = task.own_normalization() if task.task.pretrained else None
        if expected is not None and expected.words() != words:
            name = getattr(task.task, "encoder", "") or getattr(task.task, "model", "")
            yield found("normalized-other", "doubtful", model=name, values=expected.words(), stated=words)
        else:
            yield found("normalized-stated", values=words)
