"""Fields that several kinds have, with the same words in the form."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

Shuffle: TypeAlias = Annotated[bool, Meta(title="Shuffle", description="A new order each epoch.")]
LoaderWorkers: TypeAlias = Annotated[
    int,
    Meta(
        title="Loader workers",
        description="Processes that prepare samples; 0 is the trainer itself.",
        ge=0,
        le=256,
    ),
]
BatchNorm: TypeAlias = Annotated[
    Literal["keep", "adjust-momentum", "freeze", "group-norm"],
    Meta(
        title="BatchNorm",
        description="BatchNorm sees one micro-batch at a time. adjust-momentum: statistics follow N;"
        " freeze: no statistics of this data; group-norm: replaced, exact.",
    ),
]
HeldOut: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
"""The share that is kept for validation."""
BrokenImages: TypeAlias = Annotated[
    Literal["stop", "skip"],
    Meta(
        title="Broken images",
        description="stop names the first; skip leaves them out and says how many.",
    ),
]
Channels: TypeAlias = Annotated[
    int,
    Meta(
        title="Channels",
        description="Channels of each picture: 1 is gray, 3 is color, more are bands.",
        ge=1,
        le=256,
    ),
]
ChannelValues: TypeAlias = Annotated[
    tuple[float, ...],
    Meta(
        description="One for each channel. Empty: what a pretrained network was trained with.",
        extra={"advanced": True},
    ),
]
ValueRange: TypeAlias = Annotated[
    tuple[float, float] | None,
    Meta(
        title="Value range",
        description="The values that become 0 and 1 in all pictures. Empty: 0 to 255, or 0 to 65,535.",
        extra={"advanced": True},
    ),
]
Page: TypeAlias = Annotated[
    Annotated[int, Meta(ge=1, le=1_000_000)] | None,
    Meta(
        title="Page",
        description="Which page of files with several; 1 is the first.",
        extra={"advanced": True},
    ),
]
NoData: TypeAlias = Annotated[
    float | None,
    Meta(
        title="No data",
        description="The value of pixels that were not measured; nan is allowed.",
        extra={"advanced": True},
    ),
]
MaxMegapixels: TypeAlias = Annotated[
    float,
    Meta(
        title="Largest picture",
        description="Larger ones are refused: a damaged header can ask for all memory.",
        gt=0,
        le=1e6,
        extra={"unit": "megapixels", "advanced": True},
    ),
]
