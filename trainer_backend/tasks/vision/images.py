"""Images and masks from files: PNG, JPEG and TIFF, 8 and 16 bits.

Letters: c channels, h height, w width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from trainer_backend.errors import UsageError

SUFFIXES: Final = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp"}
Image.MAX_IMAGE_PIXELS = None  # large scenes are what this is for


class BrokenImageError(UsageError):
    """A file that is no image, or no image of the kind that is wanted."""


def _open(path: Path) -> Any:  # noqa: ANN401 - numpy's arrays of any type
    try:
        with Image.open(path) as image:
            image.load()
            # A palette's numbers are a mask's classes, not colours.
            return np.asarray(image), image.mode
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
        message = f"{path} cannot be read as an image: {error}."
        raise BrokenImageError(message) from error


def read_image(path: Path, channels: int) -> torch.Tensor:
    """fp32 (c, h, w) from 0 to 1, grey or colour as asked. Raises BrokenImageError."""
    array, mode = _open(path)
    if mode == "P":
        with Image.open(path) as image:
            array = np.asarray(image.convert("RGB"))
    top = 65_535.0 if array.dtype.itemsize > 1 and array.dtype != np.float32 else 255.0
    values = torch.from_numpy(array.astype(np.float32))
    if array.dtype == np.float32:  # a float TIFF holds its own scale
        top = max(1.0, float(values.max()))
    if array.dtype == bool:
        top = 1.0
    image_chw = values[None] if values.ndim == 2 else values.movedim(-1, 0)
    image_chw = image_chw / top
    count = image_chw.shape[0]
    if count in (2, 4):  # the last channel is alpha
        image_chw = image_chw[:-1]
        count -= 1
    if count == channels:
        return image_chw.contiguous()
    if channels == 1:
        weights = torch.tensor([0.299, 0.587, 0.114])  # ITU-R BT.601
        return (image_chw * weights[:, None, None]).sum(0, keepdim=True)
    return image_chw.expand(channels, -1, -1).contiguous()


def read_mask(path: Path, classes: int, ignore_value: int) -> torch.Tensor:
    """int64 (h, w) of classes. Raises BrokenImageError for a class that is not known."""
    array, _ = _open(path)
    if array.ndim != 2:
        message = f"{path} has {array.shape[-1]} channels; a mask has one, whose values are the classes."
        raise BrokenImageError(message)
    mask_hw = torch.from_numpy(array.astype(np.int64))
    unknown = (mask_hw >= classes) & (mask_hw != ignore_value)
    if bool(unknown.any()):
        value = int(mask_hw[unknown][0])
        message = (
            f"{path} has the value {value}, but task.classes = {classes} means 0 to {classes - 1}"
            f" (and {ignore_value} for pixels without a loss)."
        )
        raise BrokenImageError(message)
    return mask_hw


def size_of(path: Path) -> tuple[int, int]:
    """Height and width, without reading the pixels. Raises BrokenImageError."""
    try:
        with Image.open(path) as image:
            return image.height, image.width
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
        message = f"{path} cannot be read as an image: {error}."
        raise BrokenImageError(message) from error
