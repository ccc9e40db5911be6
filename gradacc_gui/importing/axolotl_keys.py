"""Every key of Axolotl's configuration and of its plug-ins, and what becomes of it."""

from __future__ import annotations

from typing import Final

from gradacc_gui.importing.key_rows import SUPERVISED_ONLY, KeyRows, changes, harmless, read, refuses

_READ: Final[KeyRows] = read(
    rl=None,
    base_model=None,
    trust_remote_code=None,
    chat_template=None,
    chat_template_jinja=None,
    datasets=None,
    test_datasets=None,
    pretraining_dataset=None,
    val_set_size=0.0,
    sequence_len=512,
    excess_length_strategy="drop",
    sample_packing=False,
    pretrain_multipack_attn=True,
    pretraining_sample_concatenation=None,
    train_on_inputs=False,
    adapter=None,
    load_in_4bit=False,
    load_in_8bit=False,
    lora_r=None,
    lora_alpha=None,
    lora_dropout=0.0,
    lora_target_modules=None,
    lora_target_linear=None,
    lora_modules_to_save=None,
    peft_use_rslora=None,
    tokens=None,
    micro_batch_size=1,
    gradient_accumulation_steps=1,
    batch_size=None,
    num_epochs=1.0,
    max_steps=None,
    learning_rate=None,
    weight_decay=0.0,
    optimizer="adamw_torch_fused",
    optim_args=None,
    adam_beta1=0.9,
    adam_beta2=0.999,
    adam_epsilon=1e-8,
    max_grad_norm=1.0,
    lr_scheduler="cosine",
    lr_scheduler_kwargs=None,
    cosine_min_lr_ratio=None,
    cosine_constant_lr_ratio=None,
    warmup_steps=None,
    warmup_ratio=None,
    bf16="auto",
    fp16=None,
    bfloat16=None,
    float16=None,
    float32=None,
    gradient_checkpointing=False,
    activation_offloading=False,
    torch_compile=None,
    seed=42,
    dataloader_num_workers=None,
    eval_steps=None,
    eval_strategy=None,
    evaluation_strategy=None,
    evals_per_epoch=None,
    save_steps=None,
    save_strategy="epoch",
    saves_per_epoch=None,
    save_total_limit=4,
    wandb_name=None,
    attn_implementation=None,
    flash_attention=None,
    sdp_attention=None,
    eager_attention=None,
    xformers_attention=None,
    plugins=None,
    trl=None,
)
_REFUSES: Final[KeyRows] = (
    refuses(f"it trains a reward model. {SUPERVISED_ONLY}", reward_model=None, process_reward_model=None)
    | refuses(
        f"it belongs to preference tuning on preference pairs. {SUPERVISED_ONLY}",
        rl_beta=None,
        dpo_beta=None,
        beta=None,
    )
    | refuses(
        f"it belongs to training with reward functions. {SUPERVISED_ONLY}", reward_funcs=None, ebft=None
    )
    | refuses(
        "it prepares pictures (images) or sound beside text. gradacc fine-tunes language models on text only,"
        " so this file is not imported.",
        processor_type=None,
        is_multimodal=None,
        image_size=None,
    )
    | refuses(f"it distils from a teacher model. {SUPERVISED_ONLY}", kd_trainer=None)
    | refuses(f"it trains a model that fills in masked tokens (diffusion). {SUPERVISED_ONLY}", diffusion=None)
    | refuses(f"it trains a classifier of texts. {SUPERVISED_ONLY}", num_labels=None)
    | refuses(f"it trains on another machine, through a service. {SUPERVISED_ONLY}", hatchery=None)
    | refuses(f"it trains with reward functions in an environment. {SUPERVISED_ONLY}", nemo_gym_enabled=None)
)
_MODEL: Final[KeyRows] = (
    changes(
        "They load another configuration or tokenizer. Here the model's own.",
        base_model_config=None,
        tokenizer_config=None,
        cls_model_config=None,
        tokenizer_use_mistral_common=None,
    )
    | changes(
        "They change the model's configuration so. Here it stays as it was saved.",
        model_config=None,
        overrides_of_model_config=None,
        model_kwargs=None,
        overrides_of_model_kwargs=None,
    )
    | changes(
        "They load this version of the model. Here it is the newest.",
        model_revision=None,
        revision_of_model=None,
    )
    | changes(
        "They set or add these special tokens. Here the tokenizer's own are used.",
        special_tokens=None,
        added_tokens_overrides=None,
    )
    | changes(
        "They quantize the model so. Here it is loaded as it was saved.",
        gptq=None,
        model_quantization_config=None,
        model_quantization_config_kwargs=None,
        bnb_config_kwargs=None,
        quantize_moe_experts=False,
        nonexpert_quantization=None,
        use_onebitllms=None,
    )
    | changes("They start from new weights. Here training starts from the model.", reinit_weights=None)
    | changes(
        "They resize the embedding so. Here it grows only where tokens need it.",
        resize_token_embeddings_to_32x=None,
        shrink_embeddings=None,
        mean_resizing_embeddings=False,
    )
    | changes("They train in 8-bit floating point. Here it is run.precision.", fp8=None)
    | changes(
        "They train for a quantized model (QAT). Here the weights are not quantized while they train.",
        qat=None,
    )
    | changes(
        "They keep norms in fp32. Here they have the model's type.", fp32_norms=None, fp32_norm_classes=None
    )
    | changes(
        "They scale the attention's softmax. Here it is the model's.",
        scaling_softmax=None,
        scaling_softmax_factor=None,
        scaling_softmax_bias=None,
    )
    | changes(
        "They stretch positions (PoSE). Here the model's own are used.",
        use_pose=None,
        pose_split_on_token_ids=None,
        pose_max_context_len=None,
        pose_num_chunks=None,
        rope_scaling=None,
    )
    | changes("They attend within shifted groups. Here to all earlier tokens.", s2_attention=None)
    | changes(
        "They train the embedding of untrained tokens first. Here it is left.", fix_untrained_tokens=None
    )
    | harmless(
        "Concerns loading and kernels; the result is the same but for rounding.",
        """
        model_type type_of_model tokenizer_type tokenizer_use_fast tokenizer_legacy
        tokenizer_save_jinja_files processor_kwargs experimental_skip_move_to_device use_kernels
        embeddings_skip_upcast is_falcon_derived_model is_llama_derived_model is_mistral_derived_model
        is_qwen_derived_model flex_attention flex_attn_compile_kwargs flash_attn_cross_entropy
        flash_attn_fuse_mlp flash_attn_rms_norm flash_optimum sage_attention gemma4_hybrid_attn_impl
        large_head_attention flash_attn_d512 sdpa_varlen fused_attn_kernel experts_implementation
        lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel chunked_cross_entropy
        chunked_cross_entropy_num_chunks cut_cross_entropy tiled_mlp tiled_mlp_num_shards
        tiled_mlp_use_original_mlp llama4_linearized_experts expert_backend moe_grouped_backend
        moe_dequant_chunk_size moe_bnb_fast use_scattermoe use_sonicmoe use_dsv4_kernels use_glm_dsa_kernels
        dsv4_fp8_nonexpert_mode dsv4_fp8_lora_kernel dsv4_shared_mlp_lora_kernel dsv4_bf16_all
        dsv4_fp4_grouped_mode gemma4_fp8_nonexpert gemma4_nf4_nonexpert nvfp4_merge_aware
        nvfp4_merge_aware_start_step liger_rope liger_rms_norm liger_rms_norm_gated liger_layer_norm
        liger_swiglu liger_glu_activation liger_cross_entropy liger_fused_linear_cross_entropy
        liger_use_token_scaling tf32 torch_compile_backend torch_compile_mode torch_compile_options
        gradient_checkpointing_kwargs selective_checkpointing layer_offloading gptq_groupsize gptq_model_v1
        gptq_disable_exllama torchdistx_path max_memory gpu_memory_limit low_cpu_mem_usage
        fp8_enable_fsdp_float8_all_gather freeze_mm_modules
        """,
    )
)
_ADAPTERS: Final[KeyRows] = (
    changes("They continue with these adapters. Here new ones begin.", lora_model_dir=None)
    | changes(
        "They put adapters on these parameters too. Here only linear layers get them.",
        lora_target_parameters=None,
    )
    | changes(
        "They give some modules another rank or alpha. Here all have the same.",
        lora_rank_pattern=None,
        lora_alpha_pattern=None,
    )
    | changes(
        "They put adapters on some layers only. Here on all.",
        peft_layers_to_transform=None,
        peft_layers_pattern=None,
    )
    | changes(
        "They initialize adapters so. Here with LoRA's usual numbers.", peft=None, peft_init_lora_weights=None
    )
    | changes(
        "They train direction and size of each weight apart (DoRA). Here it is LoRA.", peft_use_dora=None
    )
    | changes("They repeat layers. Here the model stays as it is.", peft_layer_replication=None)
    | changes(
        "They train some rows of the embedding. Here none, or all through task.modules_to_save.",
        peft_trainable_token_indices=None,
        peft_ensure_weight_tying=None,
    )
    | changes(
        "They train half of each adapter at a higher rate. Here both halves use the same.",
        loraplus_lr_ratio=None,
    )
    | changes("They merge adapters and begin new ones on the way (ReLoRA). Here one set trains.", relora=None)
    | changes(
        "They train parts of the weights only. Here task.method decides.",
        unfrozen_parameters=None,
        spectrum_top_fraction=None,
        lisa_n_layers=None,
        lisa_step_interval=None,
    )
    | changes(
        "They let all experts learn from every token (DenseMixer). Here only the chosen ones do.",
        dense_mixer=None,
    )
    | changes("They adapt with other matrices (MoRA). Here it is LoRA.", mora=None)
    | harmless(
        "Belongs to a method that is off, or concerns memory.",
        """
        lora_fan_in_fan_out loraplus_lr_embedding qlora_sharded_model_loading lora_on_cpu merge_lora
        merge_method peft_autocast_adapter_dtype relora_prune_ratio relora_prune_method relora_cpu_offload
        lisa_layers_attribute spectrum_model_name
        """,
    )
)
_UPDATES: Final[KeyRows] = (
    changes(
        "They add noise to the embeddings during training. Here none is added.",
        neftune_noise_alpha=None,
        noisy_embedding_alpha=None,
    )
    | changes(
        "They train the embedding or some modules at another rate. Here all use the same.",
        embedding_lr=None,
        embedding_lr_scale=None,
        lr_groups=None,
    )
    | changes("They raise the rate along a parabola. Here along a line.", lr_quadratic_warmup=None)
    | changes("They restart the rate on the way. Here it runs once.", jagged_restart_steps=None)
    | changes(
        "Their one-cycle schedule starts at this fraction. Here the warm-up starts at 0.", lr_div_factor=None
    )
    | changes(
        "They use another update for these layers. Here all layers have the same.", optim_target_modules=None
    )
    | changes(
        "They filter gradients (Grokfast). Here they are used as they are.",
        grokfast_alpha=None,
        grokfast_lamb=None,
    )
    | changes(
        "They weigh each token's loss by its entropy (EAFT). Here tokens weigh the same.", use_eaft=None
    )
    | changes(
        "They stop when evaluations no longer improve. Here the run goes to its end.",
        early_stopping_patience=None,
    )
    | changes(
        "They give back the checkpoint with the best evaluation. Here the last weights are the result.",
        load_best_model_at_end=False,
    )
    | changes(
        "They stop when the loss stays above a limit. Here set a target instead.",
        loss_watchdog_threshold=None,
    )
    | changes(
        "When memory runs out they start again with half the micro-batch. Here the effective batch stays.",
        auto_find_batch_size=None,
    )
    | changes(
        "They continue from this checkpoint. Here the run starts from the model.",
        resume_from_checkpoint=None,
        auto_resume_from_checkpoints=None,
    )
    | changes("They train with a class of their own. Here it is gradacc's loop.", trainer_cls=None)
    | harmless(
        "Belongs to an option that is off.",
        """
        adam_epsilon2 adam_beta3 dion_lr dion_momentum dion_rank_fraction dion_rank_multiple_of qgalore_rank
        qgalore_update_proj_gap qgalore_scale qgalore_proj_type qgalore_proj_quant qgalore_proj_bits
        qgalore_proj_group_size qgalore_cos_threshold qgalore_gamma_proj qgalore_queue_size
        jagged_restart_warmup_steps jagged_restart_anneal_steps eaft_alpha eaft_k loss_watchdog_patience
        """,
    )
)
_DATA: Final[KeyRows] = (
    changes("They leave out samples shorter than this. Here they are kept.", min_sample_len=None)
    | changes("They put samples of like length together. Here the order is random.", group_by_length=None)
    | changes(
        "They keep the data's order. Here it is random; data.shuffle = false keeps it.",
        curriculum_sampling=None,
        sample_packing_sequentially=None,
    )
    | changes("They leave out repeated samples. Here they are kept.", dataset_exact_deduplication=None)
    | changes(
        "They use one part of the data. Here the whole is used.",
        dataset_shard_num=None,
        dataset_shard_idx=None,
    )
    | changes("They use tokens that were prepared before. Here texts are read.", skip_prepare_dataset=False)
    | changes(
        "They put this system turn before conversations. Here the data stays as it is.",
        default_system_message=None,
    )
    | changes("They give the chat template these arguments. Here it gets none.", chat_template_kwargs=None)
    | changes(
        "They end turns with these tokens and train on them. Here the chat template decides.", eot_tokens=None
    )
    | changes(
        "They leave out an epoch's last micro-batch when it is short. Here it counts by its weight.",
        dataloader_drop_last=None,
    )
    | harmless(
        "Concerns how their program prepares data, not what is in it.",
        """
        shuffle_merged_datasets shuffle_before_merging_datasets dataset_prepared_path
        num_dataset_shards_to_save dataset_processes dataset_num_proc dataset_keep_in_memory
        dataloader_pin_memory dataloader_prefetch_factor remove_unused_columns push_dataset_to_hub
        hf_use_auth_token eval_sequence_len max_prompt_len sample_packing_group_size sample_packing_bin_size
        sample_packing_mp_start_method sample_packing_eff_est sample_packing_seq_len_multiplier
        eval_sample_packing pad_to_sequence_len pad_to_multiple_of multipack_real_batches batch_flattening
        pretrain_multipack_buffer_size streaming streaming_multipack_buffer_size is_preprocess
        preprocess_iterable total_num_tokens total_supervised_tokens max_packed_sequence_len
        image_resize_algorithm role_boundaries base_model_ignore_patterns
        """,
    )
)
_REST: Final[KeyRows] = (
    harmless(
        "Runs are stored and shown by gradacc.",
        """
        output_dir hub_model_id hub_strategy hub_revision save_safetensors save_only_model save_first_step
        logging_steps use_tensorboard profiler_steps profiler_steps_start include_tokens_per_second
        include_tkps use_wandb wandb_run_id wandb_mode wandb_project wandb_entity wandb_watch
        wandb_log_model use_mlflow mlflow_tracking_uri mlflow_experiment_name mlflow_run_name
        hf_mlflow_log_artifacts use_comet comet_api_key comet_workspace comet_project_name
        comet_experiment_key comet_mode comet_online comet_experiment_config use_trackio
        trackio_project_name trackio_run_name trackio_space_id use_otel_metrics otel_metrics_host
        otel_metrics_port use_swanlab swanlab_project swanlab_experiment_name swanlab_description
        swanlab_mode swanlab_workspace swanlab_api_key swanlab_log_model swanlab_web_host swanlab_api_host
        swanlab_lark_webhook_url swanlab_lark_secret swanlab_log_completions swanlab_completion_log_interval
        swanlab_completion_max_buffer gradio_title gradio_share gradio_server_name gradio_server_port
        gradio_max_new_tokens gradio_temperature axolotl_config_path strict debug dynamic_checkpoint
        """,
    )
    | harmless(
        "Concerns evaluations, or what is done with the model later.",
        """
        eval_batch_size eval_table_size eval_max_new_tokens do_causal_lm_eval eval_causal_lm_metrics
        do_bench_eval bench_dataset bench_split metric_for_best_model greater_is_better generate_samples
        num_generation_samples generation_max_new_tokens generation_temperature generation_top_p
        generation_top_k generation_prompt_ratio generation_do_sample lm_eval_tasks lm_eval_batch_size
        lm_eval_post_train lm_eval_model quantization llmcompressor vllm
        """,
    )
    | harmless(
        "Concerns how the work is spread over devices.",
        """
        accelerator_config device device_map world_size local_rank ddp ddp_timeout ddp_bucket_cap_mb
        ddp_broadcast_buffers ddp_find_unused_parameters gc_steps gc_collect_steps torch_empty_cache_steps
        deepspeed deepcompile fsdp fsdp_config fsdp_version fsdp_final_state_dict_type dp_shard_size
        dp_replicate_size sequence_parallel_degree context_parallel_size heads_k_stride ring_attn_func
        tensor_parallel_size expert_parallel_size expert_parallel_backend expert_parallel_num_nvl_bytes
        expert_parallel_num_rdma_bytes expert_parallel_token_capacity
        expert_parallel_fallback_on_unsupported use_ray ray_run_name ray_num_workers resources_per_worker
        """,
    )
    | harmless(
        "Belongs to training by preference or reward, which this file does not ask for.",
        """
        orpo_alpha simpo_gamma cpo_alpha kto_desirable_weight kto_undesirable_weight
        center_rewards_coefficient dpo_use_weighting dpo_label_smoothing precompute_ref_log_probs
        dpo_use_liger_kernel dpo_padding_free dpo_loss_type dpo_loss_weights dpo_use_logits_to_keep
        dpo_generate_during_eval dpo_norm_loss rpo_alpha kd_ce_alpha kd_alpha kd_temperature kd_beta
        kd_normalize_topk kd_online_server_base_url kd_online_topk kd_online_server kd_online_timeout
        kd_temperature_min nemo_gym_dir nemo_gym_auto_clone nemo_gym_config_paths nemo_gym_head_port
        nemo_gym_server_timeout nemo_gym_verify_timeout nemo_gym_run_timeout nemo_gym_datasets
        nemo_gym_auto_start nemo_gym_model_name nemo_gym_multi_turn nemo_gym_max_turns
        """,
    )
)
AXOLOTL_ROWS: Final[KeyRows] = _READ | _REFUSES | _MODEL | _ADAPTERS | _UPDATES | _DATA | _REST
