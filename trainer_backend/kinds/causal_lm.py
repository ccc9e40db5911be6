"""A causal language model of the transformers library, fine-tuned whole or through LoRA."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from trainer_backend.kinds.fields import HeldOut, LoaderWorkers, Shuffle
from trainer_backend.section import Section


class CausalLMTask(Section, frozen=True, kw_only=True):
    """A model directory or hub id, and how it is fine-tuned."""

    kind: Literal["causal-lm"] = "causal-lm"
    model: Annotated[
        str,
        Meta(
            title="Model",
            description="A model directory, or a hub id such as organisation/name.",
            min_length=1,
            extra={"path": "folder", "instead": "a hub id such as organisation/name"},
        ),
    ]
    offline: Annotated[
        bool,
        Meta(title="Offline", description="Never ask the hub: only directories and what is cached."),
    ] = False
    trust_remote_code: Annotated[
        bool,
        Meta(
            title="Run the model's own code",
            description="Some models bring Python files that transformers would run. Read them first.",
            extra={"advanced": True},
        ),
    ] = False
    method: Annotated[
        Literal["full", "lora", "qlora"],
        Meta(
            title="Method",
            description="full trains every weight; lora adds small adapters; qlora does so on a 4-bit base.",
        ),
    ] = "lora"
    lora_rank: Annotated[
        int, Meta(title="LoRA rank", description="Width of the adapters.", ge=1, le=4096)
    ] = 16
    lora_alpha: Annotated[
        int, Meta(title="LoRA alpha", description="Adapters are scaled by alpha / rank.", ge=1, le=1_000_000)
    ] = 32
    lora_dropout: Annotated[
        float, Meta(title="LoRA dropout", description="Dropout on the adapters' input.", ge=0, lt=1)
    ] = 0.0
    lora_targets: Annotated[
        tuple[str, ...],
        Meta(
            title="LoRA targets",
            description="Ends of module names that get adapters, or regular expressions for whole names; "
            "empty: every linear layer but the head.",
            extra={"advanced": True},
        ),
    ] = ()
    modules_to_save: Annotated[
        tuple[str, ...],
        Meta(
            title="Trained whole",
            description="Ends of module names that are trained and saved whole beside the adapters, such as "
            "embed_tokens and lm_head.",
            extra={"advanced": True},
        ),
    ] = ()
    weights_dtype: Annotated[
        Literal["auto", "fp32", "bf16"],
        Meta(
            title="Weights in",
            description="auto: as the model was saved. Trained weights in bf16 get fp32 master copies.",
            extra={"advanced": True},
        ),
    ] = "auto"
    attention: Annotated[
        Literal["sdpa", "eager", "flash_attention_2"],
        Meta(
            title="Attention",
            description="Which attention kernels are used. A model without sdpa takes eager, and the run"
            " says so.",
            extra={"advanced": True},
        ),
    ] = "sdpa"
    max_length: Annotated[
        int,
        Meta(
            title="Longest sequence",
            description="Longer samples are treated as set below, and counted.",
            ge=2,
            le=4_194_304,
            extra={"unit": "tokens"},
        ),
    ] = 1024
    long: Annotated[
        Literal["split", "cut", "drop"],
        Meta(
            title="Longer samples",
            description="split: text in consecutive blocks; conversations lose their beginning. "
            "cut: the end of a text is left out. drop: longer samples are left out.",
        ),
    ] = "split"
    layout: Annotated[
        Literal["padding", "packing"],
        Meta(
            title="Layout",
            description="padding: one sample per row, short rows are filled up. packing: several samples"
            " fill a row, kept apart by their positions.",
        ),
    ] = "padding"
    token_budget: Annotated[
        Annotated[int, Meta(ge=2, le=10**9)] | None,
        Meta(
            title="Token budget",
            description="Only with padding: rows are grouped, each group with at most this many tokens.",
            extra={"unit": "tokens", "advanced": True},
        ),
    ] = None
    train_on: Annotated[
        Literal["answers", "last", "everything"],
        Meta(
            title="Train on",
            description="answers: on all answers, not on prompts. last: only on the last answer of each"
            " conversation.",
        ),
    ] = "answers"
    chat_template: Annotated[
        str,
        Meta(
            title="Chat template",
            description="A .jinja file that replaces the tokenizer's own. Empty: the tokenizer's.",
            extra={"path": "file", "advanced": True},
        ),
    ] = ""
    added_tokens: Annotated[
        tuple[str, ...],
        Meta(
            title="Added tokens",
            description="New tokens for the tokenizer; the embedding gets rows for them, which are trained.",
            extra={"advanced": True},
        ),
    ] = ()
    resize_embedding: Annotated[
        bool,
        Meta(
            title="Resize embedding",
            description="Where the tokenizer has more tokens than the model's embedding has rows, add rows.",
            extra={"advanced": True},
        ),
    ] = False
    loss: Annotated[
        Literal["auto", "chunked", "full"],
        Meta(
            title="Loss",
            description="chunked never holds the logits of all tokens at once: the same sum in less memory. "
            "auto: chunked for vocabularies above 16,384, where the model's output layer allows it.",
            extra={"advanced": True},
        ),
    ] = "auto"
    label_smoothing: Annotated[
        float,
        Meta(
            title="Label smoothing",
            description="Share of each target that is spread over the whole vocabulary.",
            ge=0,
            lt=1,
            extra={"advanced": True},
        ),
    ] = 0.0
    activation_checkpointing: Annotated[
        bool,
        Meta(
            title="Activation checkpointing",
            description="Recompute activations in the backward (non-reentrant): less memory, more time.",
        ),
    ] = False
    generate: Annotated[
        tuple[str, ...],
        Meta(
            title="Sample prompts",
            description="Answered at every evaluation, so that you can read what it learned. Posed as chat"
            " messages where the data are conversations, unless a prompt holds special tokens itself.",
            extra={"advanced": True},
        ),
    ] = ()
    generate_tokens: Annotated[
        int,
        Meta(
            title="Sample length",
            description="Tokens added to each sample prompt.",
            ge=1,
            le=65_536,
            extra={"unit": "tokens", "advanced": True},
        ),
    ] = 64
    export_merged: Annotated[
        bool,
        Meta(
            title="Merged export",
            description="At the end, also save the model with its adapters merged in.",
            extra={"advanced": True},
        ),
    ] = False


FieldRole: TypeAlias = Literal[
    "messages", "role", "content", "prompt", "completion", "system", "tools", "text"
]
"""What a field can mean."""


class MixedData(Section, frozen=True, kw_only=True):
    """One of several data sets."""

    path: Annotated[str, Meta(title="Data", min_length=1)]
    weight: Annotated[float, Meta(title="Weight", gt=0, le=1_000_000)]


class CausalLMData(Section, frozen=True, kw_only=True):
    """Conversations, instructions, prompts with answers, or plain text, in the forms that people have."""

    path: Annotated[
        str,
        Meta(
            title="Training data",
            description="A file (JSON, JSONL, CSV, Parquet, Arrow, text; also .gz), a folder or pattern of "
            "them, or a hub id.",
            min_length=1,
            extra={"path": "any"},
        ),
    ]
    validation_path: Annotated[
        str,
        Meta(title="Validation data", description="Empty: a share is held out.", extra={"path": "any"}),
    ] = ""
    validation_fraction: Annotated[
        HeldOut,
        Meta(title="Held out", description="Share of the samples, when no file is given; 0: no validation."),
    ] = 0.05
    validation_group: Annotated[
        str,
        Meta(
            title="Held out together",
            description="A field, such as author: its records are held out together. folder: by folder. "
            "Empty: each record by itself.",
            extra={"advanced": True},
        ),
    ] = ""
    fields: Annotated[
        dict[FieldRole, str],
        Meta(
            title="Fields",
            description='What your fields are called, such as { prompt = "ask", completion = "reply" }. '
            "Empty: found in the data.",
            extra={"advanced": True},
        ),
    ] = {}
    preference: Annotated[
        Literal["refuse", "chosen"],
        Meta(
            title="Preference pairs",
            description="refuse: they are not supervised data. chosen: train on the chosen answers.",
            extra={"advanced": True},
        ),
    ] = "refuse"
    mix: Annotated[
        tuple[MixedData, ...],
        Meta(
            title="Mixed with",
            description="Further data sets, each with a path and a weight (how often an epoch draws from"
            " it). The training data has weight 1, unless it is in this list.",
            extra={"advanced": True},
        ),
    ] = ()
    broken: Annotated[
        Literal["stop", "skip"],
        Meta(
            title="Broken lines",
            description="stop names the first by file and line; skip leaves them out and says how many.",
        ),
    ] = "stop"
    shuffle: Shuffle = True
    num_workers: LoaderWorkers = 0
