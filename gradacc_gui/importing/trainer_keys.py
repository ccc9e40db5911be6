"""Every field of transformers' TrainingArguments, now and in versions 4, and what becomes of it."""

from __future__ import annotations

from typing import Final

from gradacc_gui.importing.key_rows import KeyRows, changes, harmless, read

_READ: Final[KeyRows] = read(
    per_device_train_batch_size=8,
    gradient_accumulation_steps=1,
    num_train_epochs=3.0,
    max_steps=-1,
    learning_rate=5e-5,
    lr_scheduler_type="linear",
    lr_scheduler_kwargs=None,
    warmup_steps=0,
    optim="adamw_torch_fused",
    optim_args=None,
    weight_decay=0.0,
    adam_beta1=0.9,
    adam_beta2=0.999,
    adam_epsilon=1e-8,
    max_grad_norm=1.0,
    label_smoothing_factor=0.0,
    bf16=False,
    fp16=False,
    activation_checkpointing=None,
    gradient_checkpointing=None,
    torch_compile=False,
    run_name=None,
    eval_strategy="no",
    eval_steps=None,
    save_strategy="steps",
    save_steps=500,
    save_total_limit=None,
    full_determinism=False,
    seed=42,
    use_cpu=False,
    dataloader_num_workers=0,
    train_sampling_strategy="random",
)
_FORMER_READ: Final[KeyRows] = read(
    per_gpu_train_batch_size=None,
    warmup_ratio=0.0,
    evaluation_strategy=None,
    no_cuda=False,
    adafactor=False,
    group_by_length=False,
)
"""Fields of transformers 4 that 5 has no more."""

_CHANGES: Final[KeyRows] = (
    changes("They add noise to the embeddings during training. Here none is added.", neftune_noise_alpha=None)
    | changes(
        "They use another update for these layers. Here all layers have the same.", optim_target_modules=None
    )
    | changes(
        "When memory runs out they start again with half the micro-batch. Here the effective batch stays.",
        auto_find_batch_size=False,
    )
    | changes(
        "They give back the checkpoint with the best evaluation. Here the last weights are the result.",
        load_best_model_at_end=False,
    )
    | changes(
        "They leave out an epoch's last micro-batch when it is short. Here it counts by its weight.",
        dataloader_drop_last=False,
    )
    | changes(
        "They continue from this checkpoint. Here the run starts from the model.", resume_from_checkpoint=None
    )
)
_OUTPUT: Final[KeyRows] = harmless(
    "Runs are stored and shown by gradacc.",
    output_dir=None,
    logging_strategy="steps",
    logging_steps=500,
    logging_first_step=False,
    log_on_each_node=True,
    logging_nan_inf_filter=True,
    include_num_input_tokens_seen="no",
    log_level="passive",
    log_level_replica="warning",
    disable_tqdm=None,
    report_to="none",
    project="huggingface",
    trackio_space_id=None,
    trackio_bucket_id=None,
    trackio_static_space_id=None,
    push_to_hub=False,
    hub_token=None,
    hub_private_repo=None,
    hub_model_id=None,
    hub_strategy="every_save",
    hub_always_push=False,
    hub_revision=None,
    save_only_model=False,
    save_on_each_node=False,
    enable_jit_checkpoint=False,
    debug="",
    skip_memory_metrics=True,
    do_train=False,
    do_predict=False,
)
_EVALUATION: Final[KeyRows] = harmless(
    "Concerns evaluations only.",
    do_eval=False,
    eval_delay=0,
    per_device_eval_batch_size=8,
    prediction_loss_only=False,
    eval_on_start=False,
    eval_do_concat_batches=True,
    eval_use_gather_object=False,
    eval_accumulation_steps=None,
    include_for_metrics=[],
    batch_eval_metrics=False,
    bf16_full_eval=False,
    fp16_full_eval=False,
    metric_for_best_model=None,
    greater_is_better=None,
)
_MACHINE: Final[KeyRows] = harmless(
    "Concerns speed and memory; the result is the same but for rounding.",
    average_tokens_across_devices=True,
    tf32=None,
    activation_checkpointing_kwargs=None,
    gradient_checkpointing_kwargs=None,
    torch_compile_backend=None,
    torch_compile_mode=None,
    use_liger_kernel=False,
    liger_kernel_config=None,
    use_cache=False,
    torch_empty_cache_steps=None,
    accelerator_config=None,
    parallelism_config=None,
    dataloader_pin_memory=True,
    dataloader_persistent_workers=False,
    dataloader_prefetch_factor=None,
    dataloader_multiprocessing_context=None,
    dataloader_in_order=True,
    ddp_find_unused_parameters=None,
    ddp_bucket_cap_mb=None,
    ddp_broadcast_buffers=None,
    ddp_static_graph=None,
    ddp_backend=None,
    ddp_timeout=1800,
    fsdp=None,
    fsdp_config=None,
    deepspeed=None,
    local_rank=-1,
)
_DATA: Final[KeyRows] = harmless(
    "gradacc reads the data itself, in an order of its own.",
    data_seed=None,
    ignore_data_skip=False,
    restore_callback_states_from_checkpoint=False,
    remove_unused_columns=True,
    label_names=None,
    length_column_name="length",
)
_FORMER: Final[KeyRows] = harmless(
    "Runs are stored and shown by gradacc.",
    overwrite_output_dir=False,
    logging_dir=None,
    save_safetensors=True,
    include_inputs_for_metrics=False,
    include_tokens_per_second=False,
    push_to_hub_model_id=None,
    push_to_hub_organization=None,
    push_to_hub_token=None,
    past_index=-1,
    evaluate_during_training=False,
    per_gpu_eval_batch_size=None,
) | harmless(
    "Concerns speed and memory; the result is the same but for rounding.",
    use_mps_device=False,
    xpu_backend=None,
    half_precision_backend="auto",
    fp16_backend="auto",
    fp16_opt_level="O1",
    jit_mode_eval=False,
    use_ipex=False,
    tpu_num_cores=None,
    tpu_metrics_debug=False,
    sharded_ddp="",
    fsdp_min_num_params=0,
    fsdp_transformer_layer_cls_to_wrap=None,
    dispatch_batches=None,
    split_batches=None,
    torchdynamo=None,
    ray_scope="last",
    mp_parameters="",
    use_legacy_prediction_loop=False,
)
SEQUENCE_ROWS: Final[KeyRows] = harmless(
    "Concerns evaluations only.",
    predict_with_generate=False,
    generation_max_length=None,
    generation_num_beams=None,
    generation_config=None,
) | changes("They put samples of like length together. Here the order is random.", sortish_sampler=False)
"""What Seq2SeqTrainingArguments has beside."""

FIELD_ROWS: Final[KeyRows] = _READ | _CHANGES | _OUTPUT | _EVALUATION | _MACHINE | _DATA
"""The fields of TrainingArguments in transformers 5."""
TRAINER_ROWS: Final[KeyRows] = FIELD_ROWS | _FORMER_READ | _FORMER

SCRIPT_ROWS: Final[KeyRows] = (
    read(
        model_name_or_path=None,
        dataset_name=None,
        dataset_config_name=None,
        train_file=None,
        validation_file=None,
        validation_split_percentage=5,
        block_size=None,
        trust_remote_code=False,
    )
    | changes(
        "They use the first of these many samples. Here all are used; shorten the file.",
        max_train_samples=None,
    )
    | changes("They load this version of the model. Here it is the newest.", model_revision="main")
    | changes(
        "They start from new weights of this shape. Here training starts from the model.", model_type=None
    )
    | changes(
        "They change the model's configuration so. Here it stays as it was saved.", config_overrides=None
    )
    | changes("They load another tokenizer. Here it is the model's own.", tokenizer_name=None)
    | harmless(
        "Concerns their program, not the result.",
        config_name=None,
        cache_dir=None,
        use_fast_tokenizer=True,
        token=None,
        use_auth_token=None,
        dtype=None,
        torch_dtype=None,
        low_cpu_mem_usage=False,
        max_eval_samples=None,
        streaming=False,
        overwrite_cache=False,
        preprocessing_num_workers=None,
        keep_linebreaks=True,
    )
)
"""What the library's example scripts for language models take beside TrainingArguments."""
