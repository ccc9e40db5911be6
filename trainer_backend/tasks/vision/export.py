"""What a trained network leaves for other programs: its weights, its classes, what its pictures go through.

export/model/   model.safetensors   config.json, as timm's or segmentation-models' own loaders read it
                input.json          classes by number, size, channels, range and normalisation
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from trainer_backend.tasks.vision.normalization import Normalization
from trainer_backend.tasks.vision.pictures import PictureRules

FOLDER: Final = "model"
INPUT: Final = "input.json"
WEIGHTS: Final = "model.safetensors"


def save_timm(model: torch.nn.Module, folder: Path, classes: Sequence[str], normalize: Normalization) -> Path:
    """As `timm.create_model("local-dir:FOLDER")` loads it, class names in its configuration."""
    target = folder / FOLDER
    models: Any = importlib.import_module("timm.models")
    config = {"num_classes": len(classes), "label_names": list(classes)}
    data: dict[str, Any] = {}
    if normalize.scale == 1 and not normalize.reverse:  # what its configuration can say
        data = {"mean": list(normalize.mean), "std": list(normalize.std)}
    models.save_for_hf(
        model, str(target), model_config=config, data_config=data or None, safe_serialization=True
    )
    return target


def save_segmentation(model: torch.nn.Module, folder: Path, architecture: str, encoder: str) -> Path:
    """As `segmentation_models_pytorch.from_pretrained(FOLDER)` loads it; torchvision's as bare weights."""
    target = folder / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    save = getattr(model, "save_pretrained", None)
    if save is not None:
        save(target)
        return target
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, target / WEIGHTS)
    config = {"library": "torchvision", "architecture": architecture, "encoder": encoder}
    (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return target


def moved_up(target: Path, folder: Path) -> Path:
    """Put what lies in `target`, a folder of `folder`, into `folder` itself."""
    for path in list(target.iterdir()):
        path.rename(folder / path.name)
    target.rmdir()
    return folder


def describe_input(
    target: Path,
    *,
    classes: Sequence[str] | int,
    rules: PictureRules,
    normalize: Normalization | None,
    **more: object,
) -> None:
    """Write `input.json` beside the weights; classes without names are their numbers."""
    names = [str(number) for number in range(classes)] if isinstance(classes, int) else list(classes)
    said: dict[str, object] = {
        "classes": dict(enumerate(names)),
        "channels": rules.channels,
        "value_range": rules.value_range,
        "mean": normalize.mean if normalize else None,
        "std": normalize.std if normalize else None,
        "scale": normalize.scale if normalize else 1.0,
        "blue_first": normalize.reverse if normalize else False,
        **more,
    }
    (target / INPUT).write_text(json.dumps(said, indent=2), encoding="utf-8")
