"""Segmentation of (large) images: a class for every pixel."""

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


class SegmentationTask(Section, frozen=True, kw_only=True):
    """Which network, which losses, and how large images are cut."""

    kind: Literal["segmentation"] = "segmentation"
    architecture: Annotated[
        Literal[
            "unet",
            "unetplusplus",
            "fpn",
            "deeplabv3plus",
            "segformer",
            "torchvision-deeplabv3",
            "torchvision-fcn",
        ],
        Meta(title="Network", description="A network of segmentation-models-pytorch or torchvision."),
    ] = "unet"
    encoder: Annotated[
        str,
        Meta(
            title="Encoder",
            description="Backbone of the network, such as resnet34 or mobilenet_v2.",
            min_length=1,
        ),
    ] = "resnet34"
    pretrained: Annotated[
        bool,
        Meta(
            title="Pretrained encoder", description="Start from ImageNet weights (from the hub or its cache)."
        ),
    ] = False
    classes: Annotated[
        int,
        Meta(
            title="Classes",
            description="Number of classes; mask values run from 0 to one less.",
            ge=2,
            le=65_535,
        ),
    ] = 2
    ignore_value: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            title="Ignored value",
            description="Mask value of pixels without a loss. Empty: 255, where it occurs only between"
            " classes.",
        ),
    ] = None
    channels: Channels = 3
    mean: Annotated[ChannelValues, Meta(title="Channel means")] = ()
    std: Annotated[ChannelValues, Meta(title="Channel deviations")] = ()
    cross_entropy: Annotated[
        float,
        Meta(title="Cross-entropy", description="Share of the loss; a mean over pixels.", ge=0, le=1e6),
    ] = 1.0
    focal: Annotated[
        float,
        Meta(
            title="Focal loss",
            description="Share of the loss; a mean over pixels in which easy ones count less.",
            ge=0,
            le=1e6,
        ),
    ] = 0.0
    focal_gamma: Annotated[
        float,
        Meta(
            title="Focal gamma",
            description="How much less easy pixels count. 0: cross-entropy.",
            ge=0,
            le=20,
            extra={"advanced": True},
        ),
    ] = 2.0
    class_weights: Annotated[
        tuple[Annotated[float, Meta(ge=0)], ...],
        Meta(
            title="Class weights",
            description="Weight of each class in cross-entropy and focal loss; their denominator is then"
            " the sum of the weights.",
            extra={"advanced": True},
        ),
    ] = ()
    dice: Annotated[
        float, Meta(title="Dice", description="Share of the loss; a mean over images.", ge=0, le=1e6)
    ] = 1.0
    dice_over: Annotated[
        Literal["image", "micro-batch"],
        Meta(
            title="Dice over",
            description="image adds up exactly; micro-batch depends on the micro-batch's size.",
            extra={"advanced": True},
        ),
    ] = "image"
    tile_size: Annotated[
        int,
        Meta(
            title="Tile",
            description="Images are cut into squares of this side; 0 takes whole images.",
            ge=0,
            le=65_536,
            multiple_of=32,
            extra={"unit": "pixels"},
        ),
    ] = 512
    foreground: Annotated[
        float,
        Meta(
            title="Foreground tiles",
            description="Share of tiles that are drawn from those with a class other than 0.",
            ge=0,
            le=1,
        ),
    ] = 0.0
    flip: Annotated[bool, Meta(title="Flips", description="Mirror images at random.")] = True
    jitter: Annotated[
        float,
        Meta(title="Colour jitter", description="Strength of random brightness and contrast.", ge=0, le=1),
    ] = 0.0
    batch_norm: BatchNorm = "adjust-momentum"
    overlays: Annotated[
        int, Meta(title="Overlays", description="Sample pictures made at each evaluation.", ge=0, le=64)
    ] = 4


class SegmentationData(Section, frozen=True, kw_only=True):
    """Two folders with files of the same names."""

    images: Annotated[
        str,
        Meta(
            title="Images", description="Folder of PNG, JPEG or TIFF.", min_length=1, extra={"path": "folder"}
        ),
    ]
    masks: Annotated[
        str,
        Meta(
            title="Masks",
            description="Folder of masks named as the images; a pixel's value or colour is its class.",
            min_length=1,
            extra={"path": "folder"},
        ),
    ]
    mask_pattern: Annotated[
        str,
        Meta(
            title="Mask names",
            description="Name of a mask without its ending; {name} is the image's, as in {name}_mask.",
            pattern=r"\{name\}",
        ),
    ] = "{name}"
    mask_values: Annotated[
        dict[str, Annotated[int, Meta(ge=0, le=65_535)]],
        Meta(title="Mask values", description="Which class a mask's value means: { 255 = 1 }."),
    ] = {}
    mask_colours: Annotated[
        dict[str, Annotated[int, Meta(ge=0, le=65_535)]],
        Meta(title="Mask colours", description='Which class a mask\'s colour means: { "#ff0000" = 2 }.'),
    ] = {}
    allow_missing_classes: Annotated[
        bool,
        Meta(
            title="Allow missing classes",
            description="Train even if a class is in no mask.",
            extra={"advanced": True},
        ),
    ] = False
    validation_images: Annotated[
        str,
        Meta(title="Validation images", description="Empty: a share is held out.", extra={"path": "folder"}),
    ] = ""
    validation_masks: Annotated[
        str,
        Meta(
            title="Validation masks", description="Needed with validation images.", extra={"path": "folder"}
        ),
    ] = ""
    validation_fraction: Annotated[
        HeldOut,
        Meta(title="Held out", description="Share of the images, when no folder is given; 0: none."),
    ] = 0.2
    value_range: ValueRange = None
    page: Page = None
    nodata: NoData = None
    max_megapixels: MaxMegapixels = 1000.0
    broken: BrokenImages = "stop"
    shuffle: Shuffle = True
    num_workers: LoaderWorkers = 0
