"""Programs that are not installed here: what their source says, by repository, commit, file and line."""

from __future__ import annotations

import functools
from typing import Any, Final

from tests.support.imports.pairs import ABSENT, Meaning, Pair

FACTORY: Final = "hiyouga/LLaMA-Factory@ff6d4d12 src/llamafactory/"
AXOLOTL: Final = "axolotl-ai-cloud/axolotl@067b021c src/axolotl/"
DEEPSPEED: Final = "deepspeedai/DeepSpeed@edaa7221 deepspeed/"


def _pair(
    program: str, name: str, source: str, given: dict[str, Any], recipe: dict[str, Any], **more: Any
) -> Pair:
    meaning = functools.partial(Meaning, recipe=recipe, **more)
    return Pair(name=f"{program}: {name}", program=program, given=given, meaning=meaning, source=source)


SUPERVISED: Final = {"stage": "sft", "model_name_or_path": "org/m", "dataset": "d", "template": "default"}


def factory_pairs() -> list[Pair]:
    """LLaMA-Factory's first layout."""

    def pair(name: str, source: str, given: dict[str, Any], recipe: dict[str, Any], **more: Any) -> Pair:
        return _pair("LLaMA-Factory", name, FACTORY + source, SUPERVISED | given, recipe, **more)

    return [
        pair(
            "adapters as they come",
            "hparams/finetuning_args.py:69,73,77,81,464,587; data_args.py:46,100",
            {},
            {
                "task.method": "lora", "task.lora_rank": 8, "task.lora_alpha": 16, "task.lora_dropout": 0.0,
                "task.lora_targets": ABSENT, "task.max_length": 2048, "data.validation_fraction": 0.0,
            },
            open=("data.path",),
        ),
        pair(
            "alpha is twice the rank",
            "hparams/finetuning_args.py:587",
            {"lora_rank": 32, "lora_target": "q_proj,v_proj", "lora_dropout": 0.05},
            {"task.lora_alpha": 64, "task.lora_targets": ["q_proj", "v_proj"], "task.lora_dropout": 0.05},
        ),
        pair(
            "their own default of checkpointing",
            "hparams/model_args.py:145; finetuning_args.py:464",
            {"finetuning_type": "full"},
            {"task.method": "full", "task.activation_checkpointing": True, "task.lora_rank": ABSENT},
        ),
        pair(
            "4-bit weights",
            "hparams/model_args.py:279,283",
            {"quantization_bit": 4, "bf16": True},
            {"task.method": "qlora", "run.precision": "bf16"},
        ),
        pair(
            "only answers, or all",
            "hparams/data_args.py:50",
            {"train_on_prompt": True, "val_size": 0.1},
            {"task.train_on": "everything", "data.validation_fraction": 0.1},
        ),
        pair(
            "only the last answer",
            "hparams/data_args.py:54",
            {"mask_history": True},
            {"task.train_on": "last"},
        ),
        pair(
            "neat packing packs",
            "hparams/data_args.py:108,112",
            {"neat_packing": True, "cutoff_len": 8192},
            {"task.layout": "packing", "task.max_length": 8192},
        ),
        pair(
            "a stage of pairs",
            "hparams/finetuning_args.py:460",
            {"stage": "kto"},
            {},
            refused=("stage", "kto", "preference"),
        ),
    ]  # fmt: skip


TASK: Final = {"model": "org/m", "model_class": "llm", "train_dataset": "d.yaml"}


def factory_v1_pairs() -> list[Pair]:
    """LLaMA-Factory's second layout."""

    def pair(name: str, source: str, given: dict[str, Any], recipe: dict[str, Any], **more: Any) -> Pair:
        return _pair("LLaMA-Factory (v1)", name, FACTORY + "v1/" + source, TASK | given, recipe, **more)

    return [
        pair(
            "nothing but model and data",
            "config/training_args.py:33,41,45,49,57,61,73,113; core/base_trainer.py:209,218",
            {},
            {
                "accumulation.micro_batch_size": 1, "accumulation.gradient_accumulation_steps": 1,
                "task.max_length": 2048, "optimizer.learning_rate": 1e-4, "run.epochs": 3,
                "optimizer.max_grad_norm": 1.0, "run.precision": "bf16", "run.seed": 42,
                "task.activation_checkpointing": True, "schedule.kind": "constant",
                "optimizer.name": "adamw", "optimizer.weight_decay": 0.01, "optimizer.betas": [0.9, 0.999],
                "task.method": "full",
            },
            open=("data.path",),
        ),
        pair(
            "N from the whole batch",
            "core/utils/batching.py:186-194; config/training_args.py:53",
            {"micro_batch_size": 2, "global_batch_size": 16, "max_steps": 100},
            {
                "accumulation.micro_batch_size": 2, "accumulation.gradient_accumulation_steps": 8,
                "run.max_optimizer_steps": 100, "run.epochs": ABSENT,
            },
        ),
        pair(
            "the plug-in's own defaults",
            "plugins/model_plugins/peft.py:40,42,44",
            {"peft_config": {"name": "lora", "r": 16}},
            {
                "task.method": "lora", "task.lora_rank": 16, "task.lora_alpha": 16,
                "task.lora_dropout": 0.05, "task.lora_targets": ABSENT,
            },
        ),
    ]  # fmt: skip


MODEL: Final = {"base_model": "org/m", "datasets": [{"path": "d.jsonl"}], "learning_rate": 2e-4}


def axolotl_pairs() -> list[Pair]:
    """Axolotl."""

    def pair(name: str, source: str, given: dict[str, Any], recipe: dict[str, Any], **more: Any) -> Pair:
        return _pair("Axolotl", name, AXOLOTL + source, MODEL | given, recipe, **more)

    return [
        pair(
            "model, data and a rate",
            "utils/schemas/training.py:71,77,103,119,122,144,267; config.py:559,665,671,1084;"
            " validation.py:33; core/builders/base.py:248,508,511",
            {},
            {
                "accumulation.micro_batch_size": 1, "accumulation.gradient_accumulation_steps": 1,
                "run.epochs": 1, "run.seed": 42, "run.precision": "bf16", "optimizer.name": "adamw",
                "optimizer.weight_decay": 0.0, "optimizer.betas": [0.9, 0.999],
                "optimizer.max_grad_norm": 1.0, "schedule.kind": "cosine", "schedule.final_ratio": 0.0,
                "schedule.warmup_ratio": 0.03, "task.max_length": 512, "task.method": "full",
                "task.train_on": "answers", "task.long": "drop", "data.path": "d.jsonl",
                "data.validation_fraction": 0.0, "checkpoint.keep": 4, "checkpoint.every_samples": ABSENT,
            },
            changes=(),
        ),
        pair(
            "their warm-up has at most 100 steps",
            "core/builders/base.py:248",
            {"max_steps": 5000, "micro_batch_size": 2},
            {"schedule.warmup_samples": 200, "run.max_optimizer_steps": 5000},
        ),
        pair(
            "and is a share of a short run",
            "core/builders/base.py:248",
            {"max_steps": 300, "gradient_accumulation_steps": 4},
            {"schedule.warmup_samples": 36},
        ),
        pair(
            "one step of warm-up becomes two",
            "core/builders/base.py:256-257",
            {"max_steps": 50, "warmup_steps": 1},
            {"schedule.warmup_samples": 2},
        ),
        pair(
            "steps below 1 are a share",
            "utils/schemas/config.py:1184; core/builders/base.py:241,268",
            {"warmup_steps": 0.05},
            {"schedule.warmup_ratio": 0.05},
        ),
        pair(
            "4-bit adapters, packed, over all text",
            "utils/schemas/peft.py:37,41,53,58,80; training.py:103; config.py:688",
            {
                "adapter": "qlora", "load_in_4bit": True, "lora_r": 32, "lora_alpha": 16,
                "lora_target_linear": True, "sample_packing": True, "train_on_inputs": True,
                "val_set_size": 0.05, "excess_length_strategy": "truncate",
            },
            {
                "task.method": "qlora", "task.lora_rank": 32, "task.lora_alpha": 16,
                "task.lora_dropout": 0.0, "task.lora_targets": ABSENT, "task.layout": "packing",
                "task.train_on": "everything", "task.long": "cut", "data.validation_fraction": 0.05,
            },
            changes=(),
        ),
        pair(
            "a least rate and fp16",
            "utils/schemas/training.py:152; core/builders/base.py:271",
            {"cosine_min_lr_ratio": 0.1, "bf16": False, "fp16": True, "seed": 7},
            {"schedule.final_ratio": 0.1, "run.precision": "fp16", "run.seed": 7},
        ),
        pair(
            "rewards",
            "utils/schemas/config.py:262",
            {"rl": "grpo"},
            {},
            refused=("rl", "grpo", "reward"),
        ),
    ]  # fmt: skip


def deepspeed_pairs() -> list[Pair]:
    """DeepSpeed's JSON; "auto" is the installed Trainer's default, by the integration's own documentation."""

    def pair(name: str, source: str, given: dict[str, Any], recipe: dict[str, Any], **more: Any) -> Pair:
        return _pair("DeepSpeed", name, DEEPSPEED + source, given, recipe, **more)

    return [
        pair(
            "batch over four devices",
            "runtime/config.py:937; runtime/constants.py:261",
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8},
            {
                "accumulation.micro_batch_size": 2, "accumulation.gradient_accumulation_steps": 32,
                "optimizer.max_grad_norm": 1.0, "schedule.kind": "constant",
            },
        ),
        pair(
            "optimizer and a falling rate",
            "runtime/lr_schedules.py:793,807-815; ops/adam/fused_adam.py:78; runtime/engine.py:2100",
            {
                "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0, "bf16": {"enabled": True},
                "optimizer": {"type": "Adam", "params": {"weight_decay": 0.01, "betas": [0.9, 0.95]}},
                "scheduler": {
                    "type": "WarmupDecayLR",
                    "params": {"total_num_steps": 100, "warmup_num_steps": 10, "warmup_type": "linear"},
                },
            },
            {
                "optimizer.name": "adamw", "optimizer.learning_rate": 1e-3, "optimizer.weight_decay": 0.01,
                "optimizer.betas": [0.9, 0.95], "optimizer.eps": 1e-8, "optimizer.max_grad_norm": ABSENT,
                "schedule.kind": "linear", "schedule.final_ratio": 0.0, "schedule.warmup_samples": 40,
                "run.max_optimizer_steps": 100, "run.precision": "bf16",
            },
            rates=tuple(1e-3 * (step / 10 if step < 10 else (100 - step) / 90) for step in range(100)),
            changes=(),
        ),
        pair(
            "all is auto",
            "runtime/config.py:942-968; transformers.TrainingArguments",
            {
                "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
                "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
                "optimizer": {
                    "type": "AdamW",
                    "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
                },
                "zero_optimization": {"stage": 2},
            },
            {
                "accumulation.micro_batch_size": 8, "accumulation.gradient_accumulation_steps": 1,
                "optimizer.max_grad_norm": 1.0, "optimizer.learning_rate": 5e-5,
                "optimizer.weight_decay": 0.0, "optimizer.betas": [0.9, 0.999], "optimizer.eps": 1e-8,
            },
            changes=(),
        ),
    ]  # fmt: skip
