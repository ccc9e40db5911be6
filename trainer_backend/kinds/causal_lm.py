"""A causal language model of the transformers library, fine-tuned whole or through LoRA."""

from __future__ import annotations

from typing import Annotated, Literal

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
        float, Meta(title="LoRA dropout", description="On the adapters' input.", ge=0, lt=1)
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
            description="auto: as the model was saved. Trained weights in bf16 get fp32 masters.",
            extra={"advanced": True},
        ),
    ] = "auto"
    attention: Annotated[
        Literal["sdpa", "eager", "flash_attention_2"],
        Meta(
            title="Attention",
            description="Which kernels compute it. A model without sdpa takes eager, and the run says so.",
            extra={"advanced": True},
        ),
    ] = "sdpa"
    max_length: Annotated[
        int,
        Meta(
            title="Longest sequence",
            description="Longer samples are cut at their end, and counted.",
            ge=2,
            le=4_194_304,
            extra={"unit": "tokens"},
        ),
    ] = 1024
    layout: Annotated[
        Literal["padding", "packing"],
        Meta(
            title="Layout",
            description="padding: a sample a row, short rows filled up. packing: several samples fill a row, "
            "kept apart by their positions.",
        ),
    ] = "padding"
    token_budget: Annotated[
        Annotated[int, Meta(ge=2, le=10**9)] | None,
        Meta(
            title="Token budget",
            description="Padding only: rows are grouped so that one item is at most so many tokens.",
            extra={"unit": "tokens", "advanced": True},
        ),
    ] = None
    train_on: Annotated[
        Literal["answers", "everything"],
        Meta(title="Train on", description="answers: prompt tokens have no loss."),
    ] = "answers"
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
            description="Continued at every evaluation, so that you can read what it learned.",
            extra={"advanced": True},
        ),
    ] = ()
    generate_tokens: Annotated[
        int,
        Meta(
            title="Sample length",
            description="Of each continued prompt.",
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


class CausalLMData(Section, frozen=True, kw_only=True):
    """JSONL, Parquet or text: conversations, prompts with answers, or plain text."""

    path: Annotated[
        str,
        Meta(
            title="Training data",
            description="A .jsonl, .parquet or text file, or a folder of them.",
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
        Meta(title="Held out", description="Share of the samples, when no file is given; 0: none."),
    ] = 0.05
    messages_field: Annotated[
        str,
        Meta(title="Conversation", description="Field with a list of role and content.", min_length=1),
    ] = "messages"
    prompt_field: Annotated[str, Meta(title="Prompt", description="Field of the prompt.", min_length=1)] = (
        "prompt"
    )
    answer_field: Annotated[str, Meta(title="Answer", description="Field of the answer.", min_length=1)] = (
        "completion"
    )
    text_field: Annotated[str, Meta(title="Text", description="Field of plain text.", min_length=1)] = "text"
    broken: Annotated[
        Literal["stop", "skip"],
        Meta(
            title="Broken lines",
            description="stop names the first by file and line; skip leaves them out and says how many.",
        ),
    ] = "stop"
    shuffle: Shuffle = True
    num_workers: LoaderWorkers = 0
