"""A byte-level GPT, trained from scratch on text."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from trainer_backend.kinds.fields import HeldOut, LoaderWorkers, Shuffle
from trainer_backend.section import Section


class LanguageModelTask(Section, frozen=True, kw_only=True):
    """A byte-level GPT trained from scratch on text."""

    kind: Literal["language-model"] = "language-model"
    context_length: Annotated[
        int,
        Meta(
            title="Context length", description="Bytes per sample.", ge=2, le=65_536, extra={"unit": "bytes"}
        ),
    ] = 128
    layers: Annotated[
        int, Meta(title="Layers", description="Number of transformer blocks.", ge=1, le=1000)
    ] = 4
    width: Annotated[int, Meta(title="Width", description="A multiple of the heads.", ge=1, le=65_536)] = 128
    heads: Annotated[int, Meta(title="Heads", description="Attention heads.", ge=1, le=1024)] = 4
    dropout: Annotated[
        float, Meta(title="Dropout", description="Share of activations set to 0.", ge=0, lt=1)
    ] = 0.0
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
        "*.py, *.txt, *.md, *.rst, *.tex, *.html, *.csv, *.json, *.jsonl, *.c, *.h, *.cpp, *.js, *.ts, *.rs"
    )
    validation_fraction: Annotated[
        HeldOut, Meta(title="Held out", description="Share of the text, by file; 0: none.")
    ] = 0.05
    shuffle: Shuffle = True
    num_workers: LoaderWorkers = 0
