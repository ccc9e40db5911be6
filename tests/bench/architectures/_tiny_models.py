"""Tiny configurations of whatever architecture, by the names of their sizes."""

from __future__ import annotations

from typing import Any, Final

LENGTH: Final = 128
SIZES: Final[dict[str, int]] = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "embedding_size": 32, "word_embed_proj_dim": 32,
    "attention_hidden_size": 32, "lru_width": 32, "dim_model_base": 32, "dim": 32,
    "intermediate_size": 64, "ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_ffn_dim": 64, "n_inner": 64,
    "ffn_hidden_size": 64, "dff": 64, "dim_ff": 64, "intermediate_size_mlp": 64,
    "shared_intermediate_size": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "expert_ffn_hidden_size": 32, "moe_shared_expert_intermediate_size": 32, "dense_intermediate_size": 64,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "decoder_layers": 2,
    "encoder_layers": 2, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "decoder_attention_heads": 4,
    "encoder_attention_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2,
    "head_dim": 8, "attention_head_dim": 8, "query_pre_attn_scalar": 8, "rotary_dim": 8, "kv_channels": 8,
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "qk_head_dim": 16, "index_head_dim": 16, "index_n_heads": 2, "o_lora_rank": 16,
    "n_routed_experts": 4, "num_experts": 4, "num_local_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_topk": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_value_heads": 4,
    "linear_num_key_heads": 2, "linear_head_dim": 8, "linear_num_heads": 4,
    "state_size": 4, "mamba_d_state": 8, "ssm_state_size": 8, "mamba_n_heads": 8, "mamba_d_head": 8,
    "mamba_num_heads": 8, "mamba_head_dim": 8, "mamba_d_ssm": 64, "mamba_chunk_size": 16, "chunk_size": 16,
    "time_step_rank": 4, "mamba_dt_rank": 4, "mamba_expand": 2, "hidden_size_per_layer_input": 8,
    "max_position_embeddings": 256, "n_positions": 256, "n_ctx": 256, "max_seq_len": 256,
    "max_sequence_length": 256, "original_max_position_embeddings": 256, "sliding_window": 128,
    "num_nextn_predict_layers": 0, "num_kv_shared_layers": 0, "window_size": 128,
}  # fmt: skip
"""By the name of a configuration's attribute."""
LISTS: Final = ("layer_types", "mlp_layer_types", "layers_block_type", "attention_types", "mlp_only_layers")
"""One entry a layer, as the class makes them of the number of layers."""
MOST_PARAMETERS: Final = 20_000_000


def tiny_configuration(kind: str, tokens: int) -> Any:
    """A small configuration of a causal language model's type; raises whatever the library raises."""
    import transformers

    return shrunk(transformers.CONFIG_MAPPING[kind], tokens)


def shrunk(owner: Any, tokens: int) -> Any:
    """An instance of a configuration's class with small sizes, its parts likewise."""
    names = set(owner().to_dict())
    given: dict[str, Any] = {name: size for name, size in SIZES.items() if name in names}
    for name in names:
        if name.endswith(("vocab_size", "vocab_size_per_layer_input")):
            given[name] = tokens
        elif name.endswith(("_token_id", "_token_index")):
            given[name] = 0
        elif "drop" in name and isinstance(getattr(owner(), name, None), float):
            given[name] = 0.0
        elif part := getattr(owner, "sub_configs", {}).get(name):
            given |= {name: shrunk(part, tokens)} if hasattr(part, "model_type") else {}
    return _made(owner, given)


def _made(owner: Any, given: dict[str, Any]) -> Any:
    """Without the sizes that the class refuses; a class that refuses more raises."""
    try:
        return owner(**given)
    except (TypeError, ValueError):
        doubtful = ("head_dim", "num_key_value_heads", "rotary_dim", "window_size", "sliding_window")
        return owner(**{name: value for name, value in given.items() if name not in doubtful})


def tiny_model(kind: str, tokens: int) -> Any:
    """A causal language model with random weights. Raises whatever the library raises."""
    import torch
    import transformers

    configuration = tiny_configuration(kind, tokens)
    with torch.device("meta"):
        counted = transformers.AutoModelForCausalLM.from_config(configuration)
    many = sum(parameter.numel() for parameter in counted.parameters())
    if many > MOST_PARAMETERS:
        message = f"{many:,} parameters after all sizes that are known were made small"
        raise ValueError(message)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(configuration).float()
