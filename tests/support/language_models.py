"""Real model directories, made on the spot: tiny Llama-, Mixtral- and GPT-2-shaped models and a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

Shape = Literal["llama", "mixtral", "gpt2", "gemma2", "cohere", "granite", "mamba"]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tokenizer(folder: Path, texts: list[str], *, pad: bool = True, chat: bool = True) -> int:
    """Train a byte-level BPE tokenizer and save it as the transformers library does; gives its size."""
    import tokenizers
    import tqdm
    import transformers

    tqdm.tqdm.monitor_interval = 0  # its thread outlives a test
    special = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>", *(["<|pad|>"] if pad else [])]
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|end|>", pad_token="<|pad|>" if pad else None
    )
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def write_model(
    folder: Path, shape: Shape = "llama", texts: list[str] | None = None, **tokenizer: bool
) -> Path:
    """A directory that `from_pretrained` loads: random weights, a trained tokenizer."""
    import torch
    import transformers

    vocabulary = write_tokenizer(folder, texts or ["hello world, this is a text"] * 8, **tokenizer)
    torch.manual_seed(0)
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    if shape == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    elif shape == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=vocabulary,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=256,
            bos_token_id=0,
            eos_token_id=0,
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        model = _other_model(shape, sizes)
    model.save_pretrained(folder)
    return folder


def _other_model(shape: Shape, sizes: dict[str, Any]) -> Any:
    """Shapes that differ in the head, in the experts, or in what mixes tokens."""
    import transformers

    if shape == "mixtral":
        config: Any = transformers.MixtralConfig(
            **sizes, num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.02
        )
        return transformers.MixtralForCausalLM(config)
    if shape == "mamba":  # a recurrence: what is packed into one row is one text to it
        config = transformers.MambaConfig(
            vocab_size=sizes["vocab_size"], hidden_size=32, state_size=4, num_hidden_layers=2
        )
        return transformers.MambaForCausalLM(config)
    sizes |= {"tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    if shape == "gemma2":  # soft-capped
        config = transformers.Gemma2Config(
            **sizes, head_dim=8, final_logit_softcapping=0.5, sliding_window=128, query_pre_attn_scalar=8
        )
        return transformers.Gemma2ForCausalLM(config)
    if shape == "cohere":  # logits times a scale
        return transformers.CohereForCausalLM(transformers.CohereConfig(**sizes, logit_scale=0.25))
    # logits over a scale
    return transformers.GraniteForCausalLM(transformers.GraniteConfig(**sizes, logits_scaling=4.0))


def write_json_lines(path: Path, records: Sequence[object]) -> Path:
    """One JSON value a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
