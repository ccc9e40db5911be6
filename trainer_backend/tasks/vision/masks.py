"""Masks: which value or colour of a file means which class, counted over all of them before anything starts.

Letters: h height, w width.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch

from trainer_backend.errors import UsageError
from trainer_backend.tasks.built_in import ReportWarning
from trainer_backend.tasks.vision.pictures import (
    BrokenImageError,
    PictureRules,
    Values,
    Window,
    bands,
    decode,
)

IGNORED: Final = -100
"""A pixel without a loss where the recipe names no value for it; no file can hold it."""
BORDER_VALUE: Final = 255
BORDER_SHARE: Final = 0.1
"""Borders between objects are thin: a value that covers more is something else."""
MUCH_IGNORED_SHARE: Final = 0.25
MOST_NAMED: Final = 5
"""Values or files that one sentence lists."""
Colour = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskRules:
    """How a mask's numbers or colours become classes 0 … classes − 1, or `ignored` (no loss)."""

    classes: int
    ignore_value: int | None = None
    """As the recipe states it, or what the survey found to be borders."""
    values: Mapping[int, int] = dataclasses.field(default_factory=dict)
    colours: Mapping[Colour, int] = dataclasses.field(default_factory=dict)
    page: int | None = None
    max_pixels: int = 1_000_000_000

    @property
    def ignored(self) -> int:
        """What a pixel without a loss is in a tensor."""
        return IGNORED if self.ignore_value is None else self.ignore_value


@dataclasses.dataclass(kw_only=True)
class MaskSurvey:
    """What all masks hold, after the recipe's own mapping."""

    pixels: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    files: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    values_of: dict[Path, frozenset[int]] = dataclasses.field(default_factory=dict)
    beside_border: set[int] = dataclasses.field(default_factory=set)
    """Values that touch a pixel of BORDER_VALUE."""

    def share(self, value: int) -> float:
        """The share of a value among all pixels, 0 to 1."""
        return self.pixels[value] / max(1, self.pixels.total())

    def shares(self) -> dict[int, float]:
        """Each value's share of all pixels, by value."""
        return {value: self.share(value) for value in sorted(self.pixels)}


class MaskDecisionError(UsageError):
    """What the masks hold does not fit the recipe: a person has to say what it means."""

    def __init__(
        self, sentence: str, survey: MaskSurvey, *, undecided: Iterable[int] = (), missing: Iterable[int] = ()
    ) -> None:
        super().__init__(sentence)
        self.survey = survey
        self.undecided = tuple(undecided)
        """Values that are no class."""
        self.missing = tuple(missing)
        """Classes that never occur."""


def parse_colours(colours: Mapping[str, int]) -> dict[Colour, int]:
    """{"#ff0000": 2} as {(255, 0, 0): 2}. Raises UsageError."""
    found = {}
    for text, number in colours.items():
        digits = text.removeprefix("#")
        if len(digits) != 6 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            message = f'data.mask_colours has "{text}". Write colours as "#rrggbb", such as "#ff0000".'
            raise UsageError(message)
        red, green, blue = bytes.fromhex(digits)
        found[red, green, blue] = number
    return found


def parse_values(values: Mapping[str, int]) -> dict[int, int]:
    """{"255": 1} as {255: 1}. Raises UsageError."""
    for text in values:
        if not (text.isascii() and text.isdigit()):
            message = f'data.mask_values has "{text}". Write whole numbers, such as {{ 255 = 1 }}.'
            raise UsageError(message)
    return {int(text): number for text, number in values.items()}


# ------------------------------------------------------------------------------- one file


def read_mask(path: Path, rules: MaskRules, window: Window | None = None) -> torch.Tensor:
    """int64 (h, w) of classes and `rules.ignored`. Raises BrokenImageError for a value that is no class."""
    values_hw = mask_values(path, rules, window)
    known = (values_hw >= 0) & (values_hw < rules.classes)
    known |= values_hw == rules.ignored
    if not known.all():
        value = int(values_hw[~known][0])
        ignored = "" if rules.ignore_value is None else f" (and {rules.ignored} for pixels without a loss)"
        message = (
            f"{path} has the value {value}, but task.classes = {rules.classes} means 0 to"
            f" {rules.classes - 1}{ignored}. Map it with data.mask_values, or correct the mask."
        )
        raise BrokenImageError(message)
    return torch.from_numpy(values_hw)


def mask_values(path: Path, rules: MaskRules, window: Window | None = None) -> Values:
    """int64 (h, w): the file's numbers after the recipe's own mapping. Raises BrokenImageError."""
    decoded = decode(path, PictureRules(page=rules.page, max_pixels=rules.max_pixels), window)
    array = decoded.array
    if decoded.alpha:
        array = array[..., :-1]
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if decoded.palette is not None and rules.colours:
        array = decoded.palette[np.minimum(array, len(decoded.palette) - 1)]
    if rules.colours:
        return _by_colour(path, array, rules)
    if array.ndim == 3:
        array = _one_of_equal_channels(path, array)
    if array.dtype.kind == "f" and not np.array_equal(array, np.round(array)):
        message = f"{path} has values between whole numbers; a mask's values are classes."
        raise BrokenImageError(message)
    values_hw = array.astype(np.int64)
    if not rules.values:
        return values_hw
    mapped_hw = values_hw.copy()
    for value, number in rules.values.items():
        mapped_hw[values_hw == value] = number
    return mapped_hw


def _one_of_equal_channels(path: Path, array_hwc: Values) -> Values:
    """A grey mask that was saved in colour has one number in all its channels."""
    first_hw: Values = array_hwc[..., 0]
    if not (array_hwc == first_hw[..., None]).all():
        colours = np.unique(array_hwc.reshape(-1, array_hwc.shape[-1]), axis=0)[:MOST_NAMED]
        named = ", ".join("#" + "".join(f"{value:02x}" for value in colour) for colour in colours.tolist())
        message = (
            f"{path} has {array_hwc.shape[-1]} channels that differ ({named} …). Say which colour is"
            ' which class with data.mask_colours = { "#rrggbb" = 1 }.'
        )
        raise BrokenImageError(message)
    return first_hw


def _by_colour(path: Path, array: Values, rules: MaskRules) -> Values:
    if array.ndim == 2:
        array = np.repeat(array[..., None], 3, -1)
    if array.shape[-1] != 3 or array.dtype != np.uint8:
        message = f"{path} has no 8-bit colours, which data.mask_colours needs. Save it as RGB."
        raise BrokenImageError(message)
    packed_hw = array.astype(np.int64) @ np.array([65_536, 256, 1])
    classes_hw = np.full(packed_hw.shape, -1, np.int64)
    for (red, green, blue), number in rules.colours.items():
        classes_hw[packed_hw == red * 65_536 + green * 256 + blue] = number
    unknown = classes_hw < 0
    if unknown.any():
        colours = np.unique(packed_hw[unknown])[:MOST_NAMED]
        named = ", ".join(f"#{colour:06x}" for colour in colours.tolist())
        message = f"{path} has colours that data.mask_colours does not name: {named}. Add them."
        raise BrokenImageError(message)
    return classes_hw


# ------------------------------------------------------------------------------ all files


def count_values(path: Path, rules: MaskRules, survey: MaskSurvey) -> None:
    """Add a file's values to the survey. Raises BrokenImageError."""
    counted: collections.Counter[int] = collections.Counter()
    beside: set[int] = set()
    # A border may run along the edge between two bands: its neighbours there are counted in either.
    for window in bands(path, PictureRules(page=rules.page, max_pixels=rules.max_pixels)):
        values_hw = mask_values(path, rules, window)
        values, counts = np.unique(values_hw, return_counts=True)
        counted.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        if BORDER_VALUE in counted and rules.ignore_value is None and rules.classes <= BORDER_VALUE:
            beside |= _neighbours(values_hw, BORDER_VALUE)
    survey.pixels.update(counted)
    survey.files.update(dict.fromkeys(counted, 1))
    survey.values_of[path] = frozenset(counted)
    survey.beside_border |= beside


def _neighbours(values_hw: Values, value: int) -> set[int]:
    """Other values that touch `value` at a side."""
    found: set[int] = set()
    is_it = values_hw == value
    for one, other in (
        ((slice(None), slice(1, None)), (slice(None), slice(None, -1))),
        ((slice(1, None), slice(None)), (slice(None, -1), slice(None))),
    ):
        found |= set(np.unique(values_hw[one][is_it[other]]).tolist())
        found |= set(np.unique(values_hw[other][is_it[one]]).tolist())
    return found - {value}


def judge(
    survey: MaskSurvey, rules: MaskRules, *, allow_missing: bool, may_skip: bool, warn: ReportWarning
) -> tuple[MaskRules, set[Path]]:
    """The rules with what the survey settled, and files to leave out. Raises UsageError, with the remedy."""
    unknown = {value for value in survey.pixels if not 0 <= value < rules.classes} - {rules.ignored}
    if unknown == {BORDER_VALUE} and _is_border(survey, rules):
        warn("mask-borders-ignored", {"value": BORDER_VALUE, "percent": 100 * survey.share(BORDER_VALUE)})
        rules = dataclasses.replace(rules, ignore_value=BORDER_VALUE)
        unknown = set()
    odd = {path for path, values in survey.values_of.items() if values & unknown}
    if unknown and not (may_skip and 2 * len(odd) <= len(survey.values_of)):
        sentence = _unknown_sentence(survey, rules, sorted(unknown), sorted(odd))
        raise MaskDecisionError(sentence, survey, undecided=sorted(unknown))
    ignored_share = survey.share(rules.ignored)
    if ignored_share > MUCH_IGNORED_SHARE:
        warn("mask-much-ignored", {"value": rules.ignored, "percent": 100 * ignored_share})
    missing = [
        number
        for number in range(rules.classes)
        if not any(number in values for path, values in survey.values_of.items() if path not in odd)
    ]
    if missing and number_of_known(survey, rules):
        if not allow_missing:
            raise MaskDecisionError(_missing_sentence(missing, rules.classes), survey, missing=missing)
        warn("mask-classes-missing", {"classes": _listed(missing), "count": len(missing)})
    return rules, odd


def number_of_known(survey: MaskSurvey, rules: MaskRules) -> int:
    """Pixels that have a class."""
    return sum(count for value, count in survey.pixels.items() if 0 <= value < rules.classes)


def _is_border(survey: MaskSurvey, rules: MaskRules) -> bool:
    """Thin lines between classes, as in Pascal VOC, and not an object of a two-valued mask."""
    touched = {value for value in survey.beside_border if 0 <= value < rules.classes}
    return len(touched) >= 2 and survey.share(BORDER_VALUE) < BORDER_SHARE


def _unknown_sentence(survey: MaskSurvey, rules: MaskRules, unknown: list[int], odd: list[Path]) -> str:
    named = ", ".join(
        f"{value} ({survey.share(value):.1%} of the pixels, {survey.files[value]} files)"
        for value in unknown[:MOST_NAMED]
    )
    more = "" if len(unknown) <= MOST_NAMED else f" and {len(unknown) - MOST_NAMED} more"
    first = (
        f"{odd[0]} has the value {unknown[0]}, but task.classes = {rules.classes} means 0 to"
        f" {rules.classes - 1}. Over all masks: {named}{more}."
    )
    if rules.classes == 2 and len(unknown) == 1 and 1 not in survey.pixels:
        return f"{first} If {unknown[0]} is the foreground, set data.mask_values = {{ {unknown[0]} = 1 }}."
    if len(unknown) > 16:
        return f"{first} So many values come from scaling or JPEG. Save masks as PNG, without resampling."
    return (
        f"{first} Set task.classes = {max(unknown) + 1}, map a value with data.mask_values ="
        f" {{ {unknown[0]} = 1 }}, or give it no loss with task.ignore_value = {unknown[0]}."
    )


def _missing_sentence(missing: list[int], classes: int) -> str:
    what = f"class {missing[0]}" if len(missing) == 1 else f"any of the classes {_listed(missing)}"
    return (
        f"No mask has {what}, but task.classes = {classes}. Check task.classes and data.mask_values, or set"
        " data.allow_missing_classes = true."
    )


def _listed(numbers: Iterable[int]) -> str:
    shown = list(numbers)
    return ", ".join(map(str, shown[:MOST_NAMED])) + (" …" if len(shown) > MOST_NAMED else "")
