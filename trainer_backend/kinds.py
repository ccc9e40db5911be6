"""The kinds of task, and what their two tables, [task] and [data], hold. No torch here."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from trainer_backend.section import Section


class LanguageModelTask(Section, frozen=True, kw_only=True):
    """A byte-level GPT trained from scratch on text."""

    kind: Literal["language-model"] = "language-model"
    context_length: Annotated[
        int,
        Meta(title="Context length", description="Bytes a sample.", ge=2, le=65_536, extra={"unit": "bytes"}),
    ] = 128
    layers: Annotated[int, Meta(title="Layers", ge=1, le=1000)] = 4
    width: Annotated[int, Meta(title="Width", description="A multiple of the heads.", ge=1, le=65_536)] = 128
    heads: Annotated[int, Meta(title="Heads", ge=1, le=1024)] = 4
    dropout: Annotated[float, Meta(title="Dropout", ge=0, lt=1)] = 0.0
    activation_checkpointing: Annotated[
        bool,
        Meta(
            title="Activation checkpointing",
            description="Recompute activations in the backward: less memory, about a third more time.",
            extra={"advanced": True},
        ),
    ] = False


class LanguageModelData(Section, frozen=True, kw_only=True):
    """Text files, cut into samples of one context each, split by file."""

    path: Annotated[
        str,
        Meta(
            title="Text",
            description="A file or folder of text; empty is the Python standard library's own source.",
            extra={"path": "any"},
        ),
    ] = ""
    pattern: Annotated[str, Meta(title="Files", description="Which files of a folder.", min_length=1)] = (
        "*.py, *.txt, *.md, *.rst, *.jsonl, *.csv, *.tex, *.html, *.xml, *.json, *.c, *.h, *.cpp, *.js, *.ts, *.rs, *.go, *.java"
    )
    validation_fraction: Annotated[
        float, Meta(title="Held out", description="Share of the text, by file.", gt=0, lt=1)
    ] = 0.05
    shuffle: Annotated[bool, Meta(title="Shuffle", description="A new order each epoch.")] = True
    num_workers: Annotated[
        int,
        Meta(
            title="Loader workers",
            description="Processes that prepare samples; 0 is the trainer itself.",
            ge=0,
            le=256,
        ),
    ] = 0


class CustomTask(Section, frozen=True, kw_only=True):
    """Your own code: an object with model, datasets and loss (see "Bring your own" in the README)."""

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

    shuffle: Annotated[bool, Meta(title="Shuffle", description="A new order each epoch.")] = True
    num_workers: Annotated[
        int,
        Meta(
            title="Loader workers",
            description="Processes that prepare samples; 0 is the trainer itself.",
            ge=0,
            le=256,
        ),
    ] = 0


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of task: what its two tables hold, and what it needs installed."""

    title: str
    task: type[Section]
    data: type[Section]
    requires: tuple[str, ...] = ()
    """Modules that the chosen interpreter must have."""
    extra: str = ""
    """The extra that installs them: gradacc[extra]."""


KINDS: Final[dict[str, Kind]] = {
    "language-model": Kind(title="Language model, bytes", task=LanguageModelTask, data=LanguageModelData),
    "custom": Kind(title="Your own code", task=CustomTask, data=CustomData),
}
