"""Images with masks, cut into tiles, augmented together.

Letters: c channels, h height, w width.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from trainer_backend.errors import UsageError
from trainer_backend.kinds.segmentation import SegmentationTask
from trainer_backend.tasks.built_in import Warn, files_in
from trainer_backend.tasks.vision.images import SUFFIXES, BrokenImageError, read_image, read_mask, size_of

Pair = tuple[Path, Path]


def find_pairs(images: Path, masks: Path, keys: tuple[str, str]) -> list[Pair]:
    """Each image with the mask of its name (any suffix). Raises UsageError."""
    by_name = {_name(path, masks): path for path in files_in(masks, SUFFIXES, keys[1])}
    pairs = []
    for image in files_in(images, SUFFIXES, keys[0]):
        mask = by_name.get(_name(image, images))
        if mask is None:
            message = f"{image} has no mask named {image.stem} in {masks}. Add it, or take the image away."
            raise UsageError(message)
        pairs.append((image, mask))
    return pairs


def _name(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder).with_suffix(""))


def usable_pairs(
    pairs: list[Pair], task: SegmentationTask, broken: Literal["stop", "skip"], warn: Warn
) -> list[Pair]:
    """Pairs whose files open and whose sizes and classes fit. Raises UsageError under "stop"."""
    good, bad = [], 0
    for image, mask in pairs:
        try:
            _check(image, mask, task)
        except BrokenImageError as error:
            if broken == "stop":
                message = f'{error} Mend it, or set data.broken = "skip".'
                raise UsageError(message) from error
            bad += 1
        else:
            good.append((image, mask))
    if bad:
        warn("images-skipped", {"count": bad})
    if not good:
        message = (
            f"None of the {len(pairs)} images can be used; the first fault is shown under data.broken = stop."
        )
        raise UsageError(message)
    return good


def _check(image: Path, mask: Path, task: SegmentationTask) -> None:
    size, other = size_of(image), size_of(mask)
    if size != other:
        message = f"{mask} is {other[1]} x {other[0]} pixels, but its image is {size[1]} x {size[0]}."
        raise BrokenImageError(message)
    read_mask(mask, task.classes, task.ignore_value)
    read_image(image, 3)


class Scenes(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Tiles (or whole images): image fp32 (c, h, w) and mask int64 (h, w)."""

    def __init__(self, pairs: list[Pair], task: SegmentationTask, *, augment: bool) -> None:
        self._pairs = pairs
        self._task = task
        self._tiles = [
            (number, top, left) for number, pair in enumerate(pairs) for top, left in self._corners(pair[0])
        ]
        self.uses_randomness = augment and bool(task.flip or task.jitter)
        """Whether reading a sample draws."""
        self._augment = _augmentation(task) if augment else None

    def _corners(self, image: Path) -> list[tuple[int, int]]:
        side = self._task.tile_size
        height, width = size_of(image)
        if not side:
            return [(0, 0)]
        # The last tile of a row ends at the edge: it overlaps its neighbour rather than hang over.
        tops = sorted({min(top, max(0, height - side)) for top in range(0, height, side)})
        lefts = sorted({min(left, max(0, width - side)) for left in range(0, width, side)})
        return [(top, left) for top in tops for left in lefts]

    def __len__(self) -> int:
        return len(self._tiles)

    def name(self, index: int) -> str:
        """The image's file name."""
        return self._pairs[self._tiles[index][0]][0].name

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        number, top, left = self._tiles[index]
        image_chw, mask_hw = self._whole(number)
        if self._task.tile_size:
            bottom, right = top + self._task.tile_size, left + self._task.tile_size
            image_chw, mask_hw = image_chw[:, top:bottom, left:right], mask_hw[top:bottom, left:right]
        if self._augment is not None:
            image_chw, mask_hw = self._augment(image_chw, mask_hw)
        return image_chw, mask_hw

    def _whole(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, mask = self._pairs[number]
        return _read_pair(image, mask, self._task.classes, self._task.ignore_value)


@functools.lru_cache(maxsize=4)  # neighbouring tiles come from one image when not shuffled
def _read_pair(image: Path, mask: Path, classes: int, ignore_value: int) -> tuple[torch.Tensor, torch.Tensor]:
    return read_image(image, 3), read_mask(mask, classes, ignore_value)


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
