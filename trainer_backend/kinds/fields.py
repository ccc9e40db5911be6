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
        description="It sees one micro-batch at a time. adjust-momentum: statistics follow N; "
        "freeze: no statistics of this data; group-norm: replaced, exact.",
    ),
]
BrokenImages: TypeAlias = Annotated[
    Literal["stop", "skip"],
    Meta(
        title="Broken images",
        description="stop names the first; skip leaves them out and says how many.",
    ),
]
