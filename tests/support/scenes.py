"""Large made-up scenes with exact masks, and real digits as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write_scenes(
    folder: Path, count: int = 6, side: int = 96, seed: int = 0, *, bits: int = 8
) -> tuple[Path, Path]:
    """Noisy images of bright discs (class 1) and darker bars (class 2) on a gradient, and their masks."""
    images, masks = folder / "images", folder / "masks"
    images.mkdir(parents=True)
    masks.mkdir(parents=True)
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:side, :side]
    for number in range(count):
        mask = np.zeros((side, side), np.uint8)
        for _ in range(3):
            y, x = random.integers(0, side, 2).tolist()
            radius = int(random.integers(side // 12, side // 5))
            mask[(rows - y) ** 2 + (columns - x) ** 2 <= radius**2] = 1
        for _ in range(2):
            top = int(random.integers(0, side - side // 10))
            mask[top : top + side // 10] = 2
        level = np.choose(mask, [0.45, 0.8, 0.15]) + 0.1 * columns / side + random.normal(0, 0.05, mask.shape)
        colour = np.stack([level, level * 0.9, 1 - level], -1).clip(0, 1)
        if bits == 16:
            Image.fromarray((level.clip(0, 1) * 65_535).astype(np.uint16)).save(
                images / f"scene-{number}.tif"
            )
        else:
            Image.fromarray((colour * 255).astype(np.uint8)).save(images / f"scene-{number}.png")
        Image.fromarray(mask).save(masks / f"scene-{number}.png")
    return images, masks


def write_digits(folder: Path, per_class: int = 12) -> Path:
    """scikit-learn's handwritten digits, a folder a class."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
        chosen = np.flatnonzero(digits.target == label)[:per_class]
        for number in chosen.tolist():
            pixels = (digits.images[number] / 16 * 255).astype(np.uint8)
            Image.fromarray(pixels).resize((16, 16), Image.Resampling.BICUBIC).save(
                folder / str(label) / f"{number}.png"
            )
    return folder
