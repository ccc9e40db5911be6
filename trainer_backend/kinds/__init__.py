"""The kinds of task: what their two tables, [task] and [data], hold, and who makes them. No torch here."""

from __future__ import annotations

from typing import Final

import msgspec

from trainer_backend.kinds.causal_lm import CausalLMData, CausalLMTask
from trainer_backend.kinds.custom import CustomData, CustomTask
from trainer_backend.kinds.image_classification import ImageClassificationData, ImageClassificationTask
from trainer_backend.kinds.language_model import LanguageModelData, LanguageModelTask
from trainer_backend.kinds.segmentation import SegmentationData, SegmentationTask
from trainer_backend.section import Section

__all__ = [
    "KINDS",
    "CausalLMData",
    "CausalLMTask",
    "CustomData",
    "CustomTask",
    "ImageClassificationData",
    "ImageClassificationTask",
    "Kind",
    "LanguageModelData",
    "LanguageModelTask",
    "SegmentationData",
    "SegmentationTask",
]


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of task: what its two tables hold, who makes it, and what it needs installed."""

    title: str
    task: type[Section]
    data: type[Section]
    maker: str
    """`module:name` of a function of the recipe and of who hears warnings; imported in the trainer only."""
    requires: tuple[str, ...] = ()
    """Modules that the chosen interpreter must have."""
    packages: tuple[str, ...] = ()
    """What pip installs them by, into any interpreter: gradacc itself need not be in it."""

    @property
    def install(self) -> str:
        """What comes behind `python -m` to install them."""
        return f"pip install {' '.join(self.packages)}"


HUGGING_FACE: Final = ("accelerate", "peft", "tokenizers", "transformers")
VISION: Final = ("imagecodecs", "pillow", "segmentation-models-pytorch", "tifffile", "timm", "torchvision")


KINDS: Final[dict[str, Kind]] = {
    "language-model": Kind(
        title="Language model, bytes",
        task=LanguageModelTask,
        data=LanguageModelData,
        maker="trainer_backend.tasks.language_model:LanguageModel.from_recipe",
    ),
    "causal-lm": Kind(
        title="Language model, fine-tuned",
        task=CausalLMTask,
        data=CausalLMData,
        maker="trainer_backend.tasks.causal_lm:CausalLM.from_recipe",
        requires=("transformers", "peft"),
        packages=HUGGING_FACE,
    ),
    "segmentation": Kind(
        title="Segmentation of images",
        task=SegmentationTask,
        data=SegmentationData,
        maker="trainer_backend.tasks.vision.segmentation:Segmentation.from_recipe",
        requires=("torchvision", "segmentation_models_pytorch"),
        packages=VISION,
    ),
    "image-classification": Kind(
        title="Classification of images",
        task=ImageClassificationTask,
        data=ImageClassificationData,
        maker="trainer_backend.tasks.vision.classification:ImageClassification.from_recipe",
        requires=("torchvision", "timm"),
        packages=VISION,
    ),
    "custom": Kind(
        title="Your own code",
        task=CustomTask,
        data=CustomData,
        maker="trainer_backend.tasks.custom:make",
    ),
}
