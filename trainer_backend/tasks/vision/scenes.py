"""Pictures with masks, cut into tiles, augmented together.

Letters: c channels, h height, w width.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import torch

from trainer_backend.errors import UsageError
from trainer_backend.kinds.segmentation import SegmentationTask
from trainer_backend.tasks.built_in import ReportWarning
from trainer_backend.tasks.vision.files import picture_files
from trainer_backend.tasks.vision.masks import MaskRules, MaskSurvey, count_values, judge, read_mask
from trainer_backend.tasks.vision.normalization import Normalization
from trainer_backend.tasks.vision.pictures import (
    TIFF_SUFFIXES,
    BrokenImageError,
    PictureRules,
    Window,
    bands,
    decode,
    picture,
    size_of,
)

Pair = tuple[Path, Path]
WHOLE_PIXELS: Final = 16_000_000
"""Larger TIFFs are read by window, and no larger sum of pictures is kept for the next tiles."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SceneRules:
    """How the files of a data set become tensors."""

    picture: PictureRules
    mask: MaskRules
    normalization: Normalization | None = None


def find_pairs(
    images: Path, masks: Path, keys: tuple[str, str], warn: ReportWarning, pattern: str = "{name}"
) -> list[Pair]:
    """Each picture with the mask that `pattern` names (any suffix). Raises UsageError."""
    pairs: list[Pair] = []
    by_name: dict[str, list[Path]] = {}
    for path in picture_files(masks, keys[1], warn):
        by_name.setdefault(_name(path, masks), []).append(path)
    seen: dict[str, Path] = {}
    same_folder = images == masks
    for image in picture_files(images, keys[0], warn):
        name = _name(image, images)
        wanted = str(Path(name).with_name(pattern.replace("{name}", Path(name).name)))
        found = [path for path in by_name.get(wanted, []) if path != image]
        if not found:
            if same_folder and _is_mask(name, pattern):
                continue
            message = (
                f"{image} has no mask named {Path(wanted).name} in {masks}. Add it, or remove the image."
            )
            raise UsageError(message)
        mask = found[0]
        if len(found) > 1:
            message = f"{found[0]} and {found[1].name} are both the mask of {image.name}. Remove one."
            raise UsageError(message)
        other = seen.setdefault(name, image)
        if other is not image:
            message = f"{other} and {image.name} would share the mask {mask.name}. Rename one."
            raise UsageError(message)
        pairs.append((image, mask))
    return pairs


def _name(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder).with_suffix(""))


def _is_mask(name: str, pattern: str) -> bool:
    """Whether a file in a folder that holds both is a mask by its name."""
    before, _, after = pattern.partition("{name}")
    last = Path(name).name
    return last.startswith(before) and last.endswith(after) and bool(before or after)


def usable_pairs(
    pairs: list[Pair],
    rules: SceneRules,
    *,
    broken: Literal["stop", "skip"],
    allow_missing: bool,
    warn: ReportWarning,
) -> tuple[list[Pair], SceneRules, MaskSurvey]:
    """Pairs whose files open and fit, and what their masks settled. Raises UsageError."""
    good: list[Pair] = []
    bad = 0
    survey = MaskSurvey()
    turned: list[str] = []
    for image, mask in pairs:
        try:
            if _check(image, mask, rules) is False:
                turned.append(image.name)
            count_values(mask, rules.mask, survey)
        except BrokenImageError as error:
            if broken == "stop":
                message = f'{error} Correct it, or set data.broken = "skip".'
                raise UsageError(message) from error
            bad += 1
        else:
            good.append((image, mask))
    if turned:
        warn("picture-turned-alone", {"count": len(turned), "first": turned[0]})
    if good:
        mask_rules, odd = judge(
            survey, rules.mask, allow_missing=allow_missing, may_skip=broken == "skip", warn=warn
        )
        rules = dataclasses.replace(rules, mask=mask_rules)
        bad += len(odd)
        good = [pair for pair in good if pair[1] not in odd]
    if bad:
        warn("images-skipped", {"count": bad})
    if not good:
        message = (
            f"None of the {len(pairs)} images can be used; the first fault is shown under data.broken = stop."
        )
        raise UsageError(message)
    return good, rules, survey


def _check(image: Path, mask: Path, rules: SceneRules) -> bool:
    """Whether their tags turn both or neither. Raises BrokenImageError where they do not fit."""
    size = size_of(image, rules.picture)
    other = size_of(mask, PictureRules(page=rules.mask.page, max_pixels=rules.mask.max_pixels))
    if size != other:
        message = f"{mask} is {other[1]} x {other[0]} pixels, but its image is {size[1]} x {size[0]}."
        raise BrokenImageError(message)
    for window in bands(image, rules.picture):
        picture(image, rules.picture, window)
    corner = (0, 0, 1, 1)
    page = PictureRules(page=rules.mask.page, max_pixels=rules.mask.max_pixels)
    return decode(image, rules.picture, corner).turned == decode(mask, page, corner).turned


class Scenes(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Tiles (or whole pictures): image fp32 (c, h, w) and mask int64 (h, w)."""

    def __init__(
        self, pairs: list[Pair], task: SegmentationTask, rules: SceneRules, *, augment: bool
    ) -> None:
        self._pairs = pairs
        self._task = task
        self._rules = rules
        self._sizes = [size_of(image, rules.picture) for image, _ in pairs]
        self._tiles = [
            (number, top, left) for number in range(len(pairs)) for top, left in self._corners(number)
        ]
        self._recent: collections.OrderedDict[int, tuple[torch.Tensor, torch.Tensor]] = (
            collections.OrderedDict()
        )
        self._foreground = self._tiles_with_foreground() if augment and task.foreground else []
        self.uses_randomness = augment and bool(task.flip or task.jitter or self._foreground)
        """Whether reading a sample draws."""
        self._augment = _augmentation(task) if augment else None

    def _corners(self, number: int) -> list[tuple[int, int]]:
        side = self._task.tile_size
        height, width = self._sizes[number]
        if not side:
            return [(0, 0)]
        # The last tile of a row ends at the edge: it overlaps its neighbour rather than hang over.
        tops = sorted({min(top, max(0, height - side)) for top in range(0, height, side)})
        lefts = sorted({min(left, max(0, width - side)) for left in range(0, width, side)})
        return [(top, left) for top in tops for left in lefts]

    def _tiles_with_foreground(self) -> list[int]:
        """Numbers of tiles whose mask has any class but 0."""
        ignored = self._rules.mask.ignored
        found = []
        for number, (pair, top, left) in enumerate(self._tiles):
            mask_hw = self._mask(pair, self._window(pair, top, left))
            if bool(((mask_hw > 0) & (mask_hw != ignored)).any()):
                found.append(number)
        return found

    def __len__(self) -> int:
        return len(self._tiles)

    def name(self, index: int) -> str:
        """The picture's file name."""
        return self._pairs[self._tiles[index][0]][0].name

    @property
    def normalization(self) -> Normalization | None:
        """What it does to a picture's values, which can be undone."""
        return self._rules.normalization

    @property
    def masks(self) -> tuple[Path, ...]:
        """The files of the masks."""
        return tuple(mask for _, mask in self._pairs)

    def source(self, index: int) -> Path:
        """The picture's file."""
        return self._pairs[self._tiles[index][0]][0]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._foreground and float(torch.rand(())) < self._task.foreground:
            index = self._foreground[int(torch.randint(len(self._foreground), ()))]
        number, top, left = self._tiles[index]
        image_chw, mask_hw = self._tile(number, top, left)
        if self._augment is not None:
            image_chw, mask_hw = self._augment(image_chw, mask_hw)
        normalization = self._rules.normalization
        return (image_chw if normalization is None else normalization.apply(image_chw)), mask_hw

    def _window(self, number: int, top: int, left: int) -> Window:
        height, width = self._sizes[number]
        side = self._task.tile_size or max(height, width)
        return top, left, min(height, top + side), min(width, left + side)

    def _tile(self, number: int, top: int, left: int) -> tuple[torch.Tensor, torch.Tensor]:
        height, width = self._sizes[number]
        image, mask = self._pairs[number]
        window = self._window(number, top, left)
        tiffs = image.suffix.lower() in TIFF_SUFFIXES and mask.suffix.lower() in TIFF_SUFFIXES
        if height * width > WHOLE_PIXELS and self._task.tile_size and tiffs:
            return self._read(number, window)
        image_chw, mask_hw = self._whole(number)
        top, left, bottom, right = window
        return image_chw[:, top:bottom, left:right], mask_hw[top:bottom, left:right]

    def _whole(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Neighbouring tiles come from one picture when not shuffled: the last few are kept."""
        if number not in self._recent:
            self._recent[number] = self._read(number, None)
        self._recent.move_to_end(number)
        while len(self._recent) > 1 and sum(mask.numel() for _, mask in self._recent.values()) > WHOLE_PIXELS:
            self._recent.popitem(last=False)
        return self._recent[number]

    def _read(self, number: int, window: Window | None) -> tuple[torch.Tensor, torch.Tensor]:
        found = picture(self._pairs[number][0], self._rules.picture, window)
        mask_hw = self._mask(number, window)
        if found.valid_hw is not None:  # what was not measured has no loss
            mask_hw = torch.where(found.valid_hw, mask_hw, self._rules.mask.ignored)
        return found.values_chw, mask_hw

    def _mask(self, number: int, window: Window | None) -> torch.Tensor:
        return read_mask(self._pairs[number][1], self._rules.mask, window)


def _augmentation(
    task: SegmentationTask,
) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Torchvision's transforms on image and mask together; torch's generator, so seeded a sample."""
    v2: Any = importlib.import_module("torchvision.transforms.v2")
    tv_tensors: Any = importlib.import_module("torchvision.tv_tensors")
    steps = []
    if task.flip:
        steps += [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()]
    if task.jitter:
        steps.append(v2.ColorJitter(brightness=task.jitter, contrast=task.jitter))
    together = v2.Compose([*steps, v2.Identity()])

    def augment(image_chw: torch.Tensor, mask_hw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        image, mask = together(tv_tensors.Image(image_chw), tv_tensors.Mask(mask_hw))
        return image.as_subclass(torch.Tensor), mask.as_subclass(torch.Tensor)

    return augment
