"""Pictures as the model will see them, with their masks or classes; copies to look at.

Letters: c channels, h height, w width, k classes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image

from trainer_backend.config import RunConfig
from trainer_backend.data.order import epoch_order
from trainer_backend.engine import Collated
from trainer_backend.preflight.findings import (
    AnyRow,
    ClassShares,
    FirstWindow,
    MicroBatchSeen,
    PictureRow,
    ValueShare,
)
from trainer_backend.tasks import Datasets
from trainer_backend.tasks.vision.masks import (
    BORDER_SHARE,
    BORDER_VALUE,
    MaskDecisionError,
    MaskRules,
    MaskSurvey,
    mask_values,
)
from trainer_backend.tasks.vision.normalization import Normalization
from trainer_backend.tasks.vision.pictures import picture

LARGEST_SIDE: Final = 320
"""Pixels of a copy to look at."""
IGNORED_GREY: Final = 255
MOST_CLASSES: Final = 64
LEAST_SHARE: Final = 0.005
"""Of a mixture that is named."""
SHOWN_UNDECIDED: Final = 12
"""Pictures that are shown where their masks need a decision."""


class PictureFiles:
    """Small copies of pictures in a folder, named by number; none where there is no folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    def write(self, image_chw: torch.Tensor, mask_hw: torch.Tensor | None, ignored: int) -> tuple[str, str]:
        """The paths of picture and mask; empty for what was not written."""
        if self._folder is None:
            return "", ""
        number = next(self._numbers)
        shown = Image.fromarray(_as_rgb(image_chw))
        small = _small(shown.size)
        path = self._folder / f"picture-{number:05d}.png"
        shown.resize(small, Image.Resampling.BOX).save(path, compress_level=1)
        if mask_hw is None:
            return str(path), ""
        grey_hw = torch.where(mask_hw == ignored, IGNORED_GREY, mask_hw.clamp(0, 255)).to(torch.uint8)
        mask = self._folder / f"mask-{number:05d}.png"
        Image.fromarray(grey_hw.numpy()).resize(small, Image.Resampling.NEAREST).save(mask, compress_level=1)
        return str(path), str(mask)


def _small(size: tuple[int, int]) -> tuple[int, int]:
    scale = min(1.0, LARGEST_SIDE / max(size))
    width, height = (max(1, round(side * scale)) for side in size)
    return width, height


def _as_rgb(image_chw: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 (h, w, 3): three channels as colours, any other number by its first."""
    shown = image_chw[:3] if image_chw.shape[0] >= 3 else image_chw[:1].expand(3, -1, -1)
    array: np.ndarray[Any, np.dtype[np.uint8]] = (
        (shown * 255).round().clamp(0, 255).to(torch.uint8).movedim(0, -1).contiguous().numpy()
    )
    return array


class SceneRows:
    """Rows of the kind "segmentation": a tile with its mask each."""

    def __init__(self, config: RunConfig, task: Any, datasets: Datasets, pictures: Path | None) -> None:  # noqa: ANN401
        del config
        self._task, self._train = task, datasets.train
        self._files = PictureFiles(pictures)
        self._sizes: set[tuple[int, int]] = set()
        counts_pixels = bool(task.task.cross_entropy or task.task.focal)
        self.unit = "pixels" if counts_pixels else "images"

    def rows(self, batch: Collated, samples: list[Any]) -> tuple[AnyRow, ...]:
        """Augmented as in the run, before normalization and padding."""
        return tuple(self._row(index, *sample) for index, sample in zip(batch.indices, samples, strict=True))

    def _row(self, index: int, image_chw: torch.Tensor, mask_hw: torch.Tensor) -> PictureRow:
        rules = self._task.rules
        seen_chw = image_chw if rules.normalization is None else rules.normalization.undo(image_chw)
        self._sizes.add((image_chw.shape[1], image_chw.shape[2]))
        return picture_row(
            str(self._train.source(index)), seen_chw, mask_hw, ignored=rules.mask.ignored, files=self._files
        )

    def padding_ratio(self, batch: Collated, rows: tuple[AnyRow, ...]) -> float | None:
        """Pixels that pictures were filled up with."""
        count, _, height, width = batch.batch["images"].shape
        filled = sum(row.shape[1] * row.shape[2] for row in rows if isinstance(row, PictureRow))
        return float(1 - filled / (count * height * width))

    def figures(self) -> dict[str, Any]:
        """Pictures that the tiles are cut from, and their size where it is one."""
        return {
            "records": len(self._task.pairs),
            "height_width": next(iter(self._sizes)) if len(self._sizes) == 1 else None,
        }


def picture_row(
    source: str,
    image_chw: torch.Tensor,
    mask_hw: torch.Tensor | None = None,
    *,
    ignored: int = -1,
    files: PictureFiles,
    label: str = "",
) -> PictureRow:
    """One row from values between 0 and 1 and, where there is one, a mask."""
    shown, mask = files.write(image_chw, mask_hw, ignored)
    return PictureRow(
        source=source,
        shape=tuple(image_chw.shape),
        mean=tuple(image_chw.double().mean((1, 2)).tolist()),
        highest=tuple(image_chw.double().amax((1, 2)).tolist()),
        mask_shares={} if mask_hw is None else _shares(mask_hw, ignored),
        label=label,
        picture=shown,
        mask=mask,
    )


def _shares(mask_hw: torch.Tensor, ignored: int) -> dict[str, float]:
    values, counts = torch.unique(mask_hw, return_counts=True)
    return {
        "ignored" if value == ignored else str(value): count / mask_hw.numel()
        for value, count in zip(values.tolist(), counts.tolist(), strict=True)
    }


class LabelledRows:
    """Rows of the kind "image-classification"."""

    unit = "images"

    def __init__(self, config: RunConfig, task: Any, datasets: Datasets, pictures: Path | None) -> None:  # noqa: ANN401
        del config
        self._task, self._train = task, datasets.train
        self._files = PictureFiles(pictures)

    def rows(self, batch: Collated, samples: list[Any]) -> tuple[AnyRow, ...]:
        """Cropped, mirrored and mixed as in the run, before normalization."""
        del samples
        normalize: Normalization = self._train.normalization
        return tuple(
            picture_row(
                str(self._train.source(index)),
                normalize.undo(image_chw),
                files=self._files,
                label=self._label(target_k),
            )
            for index, image_chw, target_k in zip(
                batch.indices, batch.batch["images"], batch.batch["targets"], strict=True
            )
        )

    def _label(self, target_k: torch.Tensor) -> str:
        """The class; of a mixture each with its share."""
        shares = [
            (share, name)
            for share, name in zip(target_k.tolist(), self._task.classes, strict=True)
            if share >= LEAST_SHARE
        ]
        if len(shares) == 1:
            return str(shares[0][1])
        return ", ".join(f"{name} {share:.0%}" for share, name in sorted(shares, reverse=True))

    def padding_ratio(self, batch: Collated, rows: tuple[AnyRow, ...]) -> float | None:
        """Pictures are cut to one size."""
        del batch, rows
        return 0.0

    def figures(self) -> dict[str, Any]:
        """Every picture is a sample of weight 1."""
        side = self._task.task.image_size
        count = len(self._train)
        return {"records": count, "weight": float(count), "height_width": (side, side)}


# ------------------------------------------------------------------------------------ shares


def mask_shares(
    survey: MaskSurvey, rules: MaskRules, undecided: Iterable[int] = (), duration_s: float = 0.0
) -> ClassShares:
    """What all masks hold, value by value."""
    asked = frozenset(undecided)
    values = sorted({*survey.pixels, *range(min(rules.classes, MOST_CLASSES))})
    entries = tuple(
        ValueShare(
            value=value,
            share=survey.share(value),
            files=survey.files[value],
            meaning="undecided" if value in asked else "ignored" if value == rules.ignored else "class",
        )
        for value in values[: 2 * MOST_CLASSES]
    )
    touched = {value for value in survey.beside_border if 0 <= value < rules.classes}
    return ClassShares(
        what="pixels",
        files=len(survey.values_of),
        classes=rules.classes,
        entries=entries,
        forms_borders=asked == {BORDER_VALUE}
        and len(touched) >= 2
        and survey.share(BORDER_VALUE) < BORDER_SHARE,
        duration_s=duration_s,
    )


def label_shares(labels: list[int], names: list[str]) -> ClassShares:
    """How many training pictures each class has."""
    counts = Counter(labels)
    entries = tuple(
        ValueShare(value=number, share=counts[number] / max(1, len(labels)), files=counts[number], name=name)
        for number, name in enumerate(names[: 2 * MOST_CLASSES])
    )
    return ClassShares(what="samples", files=len(labels), classes=len(names), entries=entries)


def undecided_window(
    config: RunConfig,
    task: Any,  # noqa: ANN401 - a Segmentation
    error: MaskDecisionError,
    pictures: Path | None,
) -> FirstWindow:
    """Pictures whose masks need a decision, as the files are: none can be collated before it is made."""
    wanted = set(error.undecided)
    pairs = [pair for pair in task.pairs if error.survey.values_of.get(pair[1], frozenset()) & wanted]
    pairs = pairs or [pair for pair in task.pairs if pair[1] in error.survey.values_of]
    order = epoch_order(len(pairs), seed=config.run.seed, epoch=0, shuffle=True).tolist()
    files = PictureFiles(pictures)
    rows: list[AnyRow] = []
    for number in order[: min(SHOWN_UNDECIDED, config.effective_batch)]:
        image, mask = pairs[number]
        values_hw = torch.from_numpy(mask_values(mask, task.rules.mask))
        seen_chw = picture(image, task.rules.picture).values_chw
        rows.append(
            picture_row(str(image), seen_chw, values_hw, ignored=task.rules.mask.ignored, files=files)
        )
    size = config.accumulation.micro_batch_size
    return FirstWindow(
        whole=True,
        micro_batches=tuple(
            MicroBatchSeen(rows=tuple(rows[at : at + size]), samples=len(rows[at : at + size]))
            for at in range(0, len(rows), size)
        ),
        micro_batch_size=size,
        steps=config.accumulation_steps,
        records=len(error.survey.values_of),
        unit="pixels",
    )
