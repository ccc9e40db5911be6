"""Every argument of LLaMA-Factory's first layout, beside TrainingArguments, and what becomes of it."""

from __future__ import annotations

from typing import Final

from gradacc_gui.importing.key_rows import KeyRows, changes, harmless, read
from gradacc_gui.importing.trainer_keys import SEQUENCE_ROWS, TRAINER_ROWS

_READ: Final[KeyRows] = read(
    stage="sft",
    model_name_or_path=None,
    finetuning_type="lora",
    lora_rank=8,
    lora_alpha=None,
    lora_dropout=0.0,
    lora_target="all",
    additional_target=None,
    use_rslora=False,
    quantization_bit=None,
    quantization_type="nf4",
    quantization_method="bnb",
    dataset=None,
    eval_dataset=None,
    template=None,
    cutoff_len=2048,
    train_on_prompt=False,
    mask_history=False,
    val_size=0.0,
    packing=None,
    neat_packing=False,
    mix_strategy="concat",
    tokenized_path=None,
    flash_attn="auto",
    disable_gradient_checkpointing=False,
    trust_remote_code=False,
    resize_vocab=False,
    add_tokens=None,
    add_special_tokens=None,
    pure_bf16=False,
    use_muon=False,
    disable_shuffling=False,
    reward_model=None,
    reward_funcs=None,
)
_TUNING: Final[KeyRows] = (
    changes(
        "They train half of each adapter at a higher rate. Here both halves use the same.",
        loraplus_lr_ratio=None,
    )
    | changes("They train direction and size of each weight apart (DoRA). Here it is LoRA.", use_dora=False)
    | changes(
        "They begin with adapters made from the weights (PiSSA). Here with LoRA's usual ones.",
        pissa_init=False,
    )
    | changes(
        "They continue with these adapters. Here new ones begin.",
        adapter_name_or_path=None,
        adapter_folder=None,
    )
    | changes("They project gradients to a low rank (GaLore). Here gradients stay whole.", use_galore=False)
    | changes(
        "They scale updates by a low-rank projection (APOLLO). Here updates are the optimizer's.",
        use_apollo=False,
    )
    | changes("They train one block of layers at a time (BAdam). Here all train.", use_badam=False)
    | changes("They use Adam-mini. Here it is AdamW.", use_adam_mini=False)
    | changes("They train added blocks only (LLaMA Pro). Here the model stays as it is.", use_llama_pro=False)
    | changes(
        "They weigh each token's loss by its probability (DFT). Here tokens weigh the same.",
        use_dft_loss=False,
    )
    | changes(
        "They add a loss that holds the model near its start (ASFT). Here there is none.", use_asft_loss=False
    )
    | changes(
        "They weigh each token's loss by its entropy (EAFT). Here tokens weigh the same.", use_eaft_loss=False
    )
    | changes(
        "They stop when evaluations no longer improve. Here the run goes to its end.",
        early_stopping_steps=None,
    )
    | harmless(
        "Belongs to a method that is off, or to another stage.",
        """
        loraplus_lr_embedding pissa_iter pissa_convert create_new_adapter module_dropout oft_rank
        oft_block_size oft_target freeze_trainable_layers freeze_trainable_modules freeze_extra_modules
        freeze_vision_tower freeze_multi_modal_projector freeze_language_model galore_target galore_rank
        galore_update_interval galore_scale galore_proj_type galore_layerwise apollo_target apollo_rank
        apollo_update_interval apollo_scale apollo_proj apollo_proj_type apollo_scale_type apollo_layerwise
        apollo_scale_front badam_mode badam_start_block badam_switch_mode badam_switch_interval
        badam_update_ratio badam_mask_mode badam_verbose asft_alpha eaft_alpha pref_beta pref_ftx
        pref_bco_weight pref_loss dpo_label_smoothing kto_chosen_weight kto_rejected_weight simpo_gamma
        ppo_buffer_size ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards ref_model ref_model_adapters
        ref_model_quantization_bit reward_model_adapters reward_model_quantization_bit reward_model_type
        ld_alpha
        """,
    )
    | harmless(
        "Concerns how the work is spread over devices, or what is logged.",
        """
        tensor_model_parallel_size pipeline_model_parallel_size expert_model_parallel_size
        context_parallel_size sequence_parallel virtual_pipeline_model_parallel_size
        use_distributed_optimizer overlap_param_gather overlap_grad_reduce recompute_granularity
        bias_activation_fusion apply_rope_fusion moe_grouped_gemm moe_token_dispatcher_type mixed_precision
        use_packed_sequences export_hf_on_finish megatron_bridge_args
        use_mca use_megatron_bridge use_hyper_parallel hyper_parallel_args hyper_parallel_cp_size
        compute_accuracy plot_loss include_effective_tokens_per_second use_swanlab swanlab_project
        swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir
        swanlab_lark_webhook_url swanlab_lark_secret
        """,
    )
)
_DATA: Final[KeyRows] = (
    changes(
        "They use the first of these many samples. Here the whole file is used; shorten it for the same.",
        max_samples=None,
    )
    | changes("They draw from the data sets by these weights. Here set data.mix.", interleave_probs=None)
    | changes("They write tools in this form. Here the chat template does.", tool_format=None)
    | changes(
        "They put this system turn before conversations without one. Here the data stays as it is.",
        default_system=None,
    )
    | changes(
        "They take thinking out of the answers. Here it is learnt where the data has it.",
        enable_thinking=True,
    )
    | changes(
        "They keep the thinking of earlier turns. Here the chat template decides.", preserve_thinking=False
    )
    | changes("They train on padding too. Here padding has no loss.", ignore_pad_token_for_loss=True)
    | harmless(
        "Concerns how their program prepares data, not what is in it.",
        """
        dataset_dir media_dir streaming buffer_size overwrite_cache preprocessing_batch_size
        preprocessing_num_workers data_shared_file_system eval_num_beams eval_on_each_dataset
        """,
    )
)
_MODEL: Final[KeyRows] = (
    changes("They load this version of the model. Here it is the newest.", model_revision="main")
    | changes("They stretch the positions (RoPE scaling). Here the model's own are used.", rope_scaling=None)
    | changes("They attend within shifted groups (LongLoRA). Here to all earlier tokens.", shift_attn=False)
    | changes("They turn the model into a mixture of depths. Here it stays as it is.", mixture_of_depths=None)
    | changes("They add a loss that balances the experts. Here there is none.", moe_aux_loss_coef=None)
    | changes(
        "They start from random weights. Here training starts from the model.", train_from_scratch=False
    )
    | changes(
        "They add the tokens of this file. Here list them in task.added_tokens.",
        new_special_tokens_config=None,
    )
    | changes("They split special tokens inside texts. Here they stay whole.", split_special_tokens=False)
    | changes("They train in 8-bit floating point. Here it is run.precision.", fp8=False)
    | harmless(
        "Concerns speed, memory or their program; the result is the same but for rounding.",
        """
        cache_dir use_fast_tokenizer init_special_tokens low_cpu_mem_usage use_unsloth use_unsloth_gc
        enable_liger_kernel use_reentrant_gc upcast_layernorm upcast_lmhead_output infer_backend
        offload_folder use_kv_cache use_v1_kernels infer_dtype hf_hub_token ms_hub_token om_hub_token
        print_param_status double_quantization quantization_device_map use_kt kt_config kt_cpu_activation
        kt_weight_path kt_non_expert_weight_path kt_expert_checkpoint_path kt_use_lora_experts
        kt_lora_expert_num kt_lora_expert_intermediate_size fp8_backend fp8_enable_fsdp_float8_all_gather
        """,
    )
    | harmless(
        "Concerns pictures, video and sound, which text does not have.",
        """
        image_max_pixels image_min_pixels image_do_pan_and_scan crop_to_patches video_max_pixels
        video_min_pixels video_fps video_maxlen use_audio_in_video audio_sampling_rate
        """,
    )
    | harmless(
        "Concerns what is done with the model later.",
        """
        export_dir export_size export_device export_quantization_bit export_quantization_dataset
        export_quantization_nsamples export_quantization_maxlen export_legacy_format export_hub_model_id
        vllm_maxlen vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank vllm_config sglang_maxlen
        sglang_mem_fraction sglang_tp_size sglang_config sglang_lora_backend do_sample temperature top_p
        top_k num_beams max_length max_new_tokens repetition_penalty length_penalty skip_special_tokens
        """,
    )
)
_TRAINING: Final[KeyRows] = SEQUENCE_ROWS | harmless(
    "Concerns launching and profiling.",
    """
        ray_num_workers ray_init_kwargs master_addr master_port ray_run_name ray_storage_path
        resources_per_worker placement_strategy enable_torch_profiler profiler_output_dir
        profiler_wait_steps profiler_warmup_steps profiler_active_steps profiler_repeat
        profiler_record_shapes profiler_profile_memory profiler_with_stack profile_modules
        """,
)
FACTORY_ROWS: Final[KeyRows] = _READ | _TUNING | _DATA | _MODEL | _TRAINING
"""Their own arguments."""
FACTORY_PROGRAM_ROWS: Final[KeyRows] = TRAINER_ROWS | FACTORY_ROWS
