"""Every key of TRL's fine-tuning script and of alignment-handbook's recipes, beside TrainingArguments."""

from __future__ import annotations

from typing import Final

from gradacc_gui.importing.key_rows import SUPERVISED_ONLY, KeyRows, changes, harmless, read, refuses
from gradacc_gui.importing.trainer_keys import FIELD_ROWS, TRAINER_ROWS

_DEFAULTS: Final[KeyRows] = (
    read(learning_rate=2e-5, bf16=None, gradient_checkpointing=True)
    | harmless(FIELD_ROWS["logging_steps"].words, logging_steps=10)
)  # fmt: skip
"""Fields of TrainingArguments whose default TRL changes."""

SFT_ROWS: Final[KeyRows] = (
    read(
        trust_remote_code=False,
        chat_template_path=None,
        dataset_text_field="text",
        max_length=1024,
        truncation_mode="keep_start",
        packing=False,
        packing_strategy="bfd",
        completion_only_loss=None,
        assistant_only_loss=False,
        loss_type="nll",
        model_init_kwargs=None,
    )
    | changes("They add a loss that balances the experts. Here there is none.", router_aux_loss_coef=None)
    | changes("They end answers with this token. Here it is the tokenizer's own.", eos_token=None)
    | changes(
        "They pad with this token, and add it where the tokenizer lacks it. Here it is the tokenizer's own.",
        pad_token=None,
    )
    | changes("They prepare the data with these options. Here it is read as it is.", dataset_kwargs=None)
    | harmless("The order is random here too.", shuffle_dataset=False)
    | harmless(
        "Concerns speed and memory; the result is the same but for rounding.",
        dataset_num_proc=None,
        padding_free=False,
        pad_to_multiple_of="auto",
        eval_packing=None,
        activation_offloading=False,
    )
)
"""What SFTConfig has beside TrainingArguments."""

MODEL_ROWS: Final[KeyRows] = (
    read(
        model_name_or_path=None,
        dtype="float32",
        attn_implementation=None,
        use_peft=False,
        lora_r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        lora_target_modules=None,
        lora_modules_to_save=None,
        use_rslora=False,
        load_in_4bit=False,
    )
    | changes("They load this version of the model. Here it is the newest.", model_revision="main")
    | changes(
        "They put adapters on these parameters too. Here only linear layers get them.",
        lora_target_parameters=None,
    )
    | changes("They train direction and size of each weight apart (DoRA). Here it is LoRA.", use_dora=False)
    | changes("They load the weights in 8 bits. Here they are loaded as they were saved.", load_in_8bit=False)
    | changes("They quantize to this type. Here it is nf4.", bnb_4bit_quant_type="nf4")
    | refuses(
        "these adapters are for another kind of model. gradacc fine-tunes causal language models only.",
        lora_task_type="CAUSAL_LM",
    )
    | harmless(
        "Concerns memory; the result is the same but for rounding.",
        use_bnb_nested_quant=False,
        bnb_4bit_quant_storage=None,
    )
)
"""TRL's ModelConfig."""

DATA_ROWS: Final[KeyRows] = (
    read(
        dataset_name=None,
        dataset_config=None,
        dataset_train_split="train",
        dataset_test_split="test",
        datasets=None,
        test_split_size=None,
    )
    | harmless("gradacc reads data as a stream where it can.", dataset_streaming=False, streaming=False)
    | harmless("Concerns how several devices agree.", ignore_bias_buffers=False)
)
"""TRL's ScriptArguments and DatasetMixtureConfig."""

HANDBOOK_ROWS: Final[KeyRows] = (
    read(
        max_seq_length=None,
        torch_dtype=None,
        chat_template=None,
        dataset_mixer=None,
        dataset_mixture=None,
        dataset_splits=None,
        dataset_configs=None,
        use_flash_attention_2=False,
    )
    | changes("They take the texts of this column. Here it is found in the data.", text_column="text")
    | changes("They load another tokenizer. Here it is the model's own.", tokenizer_name_or_path=None)
    | changes("They cut a sample at its beginning. Here at its end.", truncation_side=None)
    | changes(
        "They load this version. Here it is the newest.", base_model_revision=None, model_code_revision=None
    )
    | changes(
        "They put a system turn before each conversation. Here the data stays as it is.", system_prompt=None
    )
    | harmless(
        "Concerns their program, not the result.",
        preprocessing_num_workers=None,
        auto_insert_empty_system_msg=True,
        benchmarks=None,
        callbacks=None,
        hub_model_revision=None,
        overwrite_hub_revision=False,
        wandb_entity=None,
        wandb_project=None,
        wandb_run_group=None,
        dataset_batch_size=1000,
        num_of_sequences=None,
        decontaminate=None,
    )
)
"""What alignment-handbook and older versions of TRL have beside."""

_PAIRS: Final = f"it belongs to preference tuning (DPO and its kind, on preference pairs). {SUPERVISED_ONLY}"
_REWARDS: Final = (
    f"it belongs to reinforcement learning with reward functions (GRPO and its kind). {SUPERVISED_ONLY}"
)
_MODEL: Final = f"it belongs to training a reward model. {SUPERVISED_ONLY}"
_TEACHER: Final = f"it belongs to distillation from a teacher model. {SUPERVISED_ONLY}"

REFUSED_ROWS: Final[KeyRows] = (
    refuses(_MODEL, center_rewards_coefficient=None)
    | refuses(
        _REWARDS,
        reward_funcs=None,
        reward_weights=None,
        reward_model_path=None,
        reward_model_name_or_path=None,
        reward_model=None,
        reward_clip_range=None,
        scale_rewards=None,
        normalize_advantages=None,
        num_generations=None,
        max_completion_length=None,
        num_generations_eval=None,
        num_iterations=None,
        epsilon=None,
        epsilon_high=None,
        delta=None,
        importance_sampling_level=None,
        generation_batch_size=None,
        steps_per_generation=None,
        multi_objective_aggregation=None,
        mask_truncated_completions=None,
        top_entropy_quantile=None,
        entropy_coef=None,
        use_adaptive_entropy=None,
        entropy_coef_min=None,
        entropy_coef_max=None,
        entropy_coef_delta=None,
        entropy_target=None,
        sapo_temperature_neg=None,
        sapo_temperature_pos=None,
        vespo_k_pos=None,
        vespo_lambda_pos=None,
        vespo_k_neg=None,
        vespo_lambda_neg=None,
        off_policy_mask_threshold=None,
        use_bias_correction_kl=None,
        max_tool_calling_iterations=None,
        kl_coef=None,
        vf_coef=None,
        cliprange=None,
        init_kl_coef=None,
        sft_model_path=None,
        response_length=None,
        num_ppo_epochs=None,
    )
    | refuses(
        _TEACHER,
        teacher_model_name_or_path=None,
        teacher_model_revision=None,
        teacher_model_init_kwargs=None,
        lmbda=None,
        seq_kd=None,
    )
    | refuses(
        _PAIRS,
        beta=None,
        precompute_ref_log_probs=None,
        precompute_ref_batch_size=None,
        loss_weights=None,
        ld_alpha=None,
        f_divergence_type=None,
        f_alpha_divergence_coef=None,
        label_smoothing=None,
        use_weighting=None,
        discopop_tau=None,
        desirable_weight=None,
        undesirable_weight=None,
        max_prompt_length=None,
        sync_ref_model=None,
        ref_model_mixup_alpha=None,
        ref_model_sync_steps=None,
        ref_model=None,
        reference_free=None,
        rpo_alpha=None,
        simpo_gamma=None,
        cpo_alpha=None,
    )
)
"""Keys of TRL's other trainers that say what is trained."""

_SAMPLING: Final[KeyRows] = harmless(
    "Concerns texts that are written while their program trains; here none are.",
    **dict.fromkeys(
        (
            "disable_dropout",
            "cast_lm_head_to_fp32",
            "ds3_gather_for_generation",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "generation_kwargs",
            "chat_template_kwargs",
            "repetition_penalty",
            "cache_implementation",
            "use_vllm",
            "vllm_mode",
            "vllm_model_impl",
            "vllm_enable_sleep_mode",
            "vllm_structured_outputs_regex",
            "vllm_server_base_url",
            "vllm_server_host",
            "vllm_server_port",
            "vllm_server_timeout",
            "vllm_group_port",
            "vllm_gpu_memory_utilization",
            "vllm_max_model_length",
            "vllm_tensor_parallel_size",
            "vllm_importance_sampling_correction",
            "vllm_importance_sampling_mode",
            "vllm_importance_sampling_clip_max",
            "vllm_importance_sampling_clip_min",
            "vllm_importance_sampling_cap",
            "log_completions",
            "log_multimodal",
            "num_completions_to_print",
            "log_unique_prompts",
            "log_completions_hub_repo",
            "use_transformers_continuous_batching",
            "transformers_continuous_batching_config",
            "use_transformers_paged",
        )
    ),
)

SFT_PROGRAM_ROWS: Final[KeyRows] = (
    TRAINER_ROWS | _DEFAULTS | SFT_ROWS | MODEL_ROWS | DATA_ROWS | HANDBOOK_ROWS | REFUSED_ROWS | _SAMPLING
)
