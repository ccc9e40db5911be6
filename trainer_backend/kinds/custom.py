"""The user's own code."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from trainer_backend.kinds.fields import LoaderWorkers, Shuffle
from trainer_backend.section import Section


class CustomTask(Section, frozen=True, kw_only=True):
    """Your own code: an object with model, datasets and loss (see "Bring your own" in HOW-IT-WORKS.md)."""

    kind: Literal["custom"] = "custom"
    entry: Annotated[
        str,
        Meta(
            title="Entry",
            description="module:object, found beside the recipe.",
            pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
            examples=["my_task:Task"],
        ),
    ]
    options: Annotated[
        dict[str, Any],
        Meta(title="Options", description="Keyword arguments of the entry, as TOML."),
    ] = {}
    activation_checkpointing: Annotated[
        tuple[str, ...],
        Meta(
            title="Checkpointed modules",
            description="Names of modules whose activations are recomputed, such as layers.0.",
            extra={"advanced": True},
        ),
    ] = ()


class CustomData(Section, frozen=True, kw_only=True):
    """How the task's own datasets are read."""

    shuffle: Shuffle = True
    num_workers: LoaderWorkers = 0
