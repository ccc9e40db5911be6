"""Classification of images: one class an image."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from trainer_backend.kinds.fields import (
    BatchNorm,
    BrokenImages,
    Channels,
    ChannelValues,
    HeldOut,
    LoaderWorkers,
    MaxMegapixels,
    NoData,
    Page,
    Shuffle,
    ValueRange,
)
from trainer_backend.section import Section


class ImageClassificationTask(Section, frozen=True, kw_only=True):
    """Which network, and how images are shown to it."""

    kind: Literal["image-classification"] = "image-classification"
    model: Annotated[
        str, Meta(title="Model", description="A model of the timm library, such as resnet18.", min_length=1)
    ] = "resnet18"
    pretrained: Annotated[
        bool,
        Meta(title="Pretrained", description="Start from published weights (from the hub or its cache)."),
    ] = False
    image_size: Annotated[
        int,
        Meta(
            title="Image size",
            description="Side of the scaled picture.",
            ge=8,
            le=8192,
            extra={"unit": "pixels"},
        ),
    ] = 224
    channels: Channels = 3
    mean: Annotated[ChannelValues, Meta(title="Channel means")] = ()
    std: Annotated[ChannelValues, Meta(title="Channel deviations")] = ()
    crop: Annotated[
        bool, Meta(title="Random crop", description="Show a random part of the image, scaled up.")
    ] = True
    flip: Annotated[bool, Meta(title="Flips", description="Mirror images at random.")] = True
    label_smoothing: Annotated[
        float,
        Meta(
            title="Label smoothing", description="Share of each target spread over all classes.", ge=0, lt=1
        ),
    ] = 0.0
    mixup: Annotated[
        float,
        Meta(
            title="Mixup",
            description="Strength (alpha). Mixes images within a micro-batch, never across micro-batches."
            " 0: off.",
            ge=0,
            le=100,
        ),
    ] = 0.0
    cutmix: Annotated[
        float,
        Meta(
            title="CutMix",
            description="Strength (alpha). Pastes within a micro-batch, never across micro-batches. 0: off.",
            ge=0,
            le=100,
        ),
    ] = 0.0
    dropout: Annotated[
        float, Meta(title="Dropout", description="Share of features set to 0 before the head.", ge=0, lt=1)
    ] = 0.0
    batch_norm: BatchNorm = "adjust-momentum"


class ImageClassificationData(Section, frozen=True, kw_only=True):
    """A folder with a folder a class, or a CSV of files and classes."""

    path: Annotated[
        str,
        Meta(
            title="Images",
            description="A folder with one folder per class, or a .csv with the columns path and label.",
            min_length=1,
            extra={"path": "any"},
        ),
    ]
    validation_path: Annotated[
        str,
        Meta(
            title="Validation images",
            description="Empty: a share of each class is held out.",
            extra={"path": "any"},
        ),
    ] = ""
    validation_fraction: Annotated[
        HeldOut,
        Meta(title="Held out", description="Share of each class, when nothing is given; 0: none."),
    ] = 0.2
    value_range: ValueRange = None
    page: Page = None
    nodata: NoData = None
    max_megapixels: MaxMegapixels = 1000.0
    broken: BrokenImages = "stop"
    shuffle: Shuffle = True
    num_workers: LoaderWorkers = 0
