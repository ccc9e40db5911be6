"""TRL's supervised fine-tuning: what its installed classes make of a file; and accelerate's, of its own."""

from __future__ import annotations

import functools
import math
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.support.imports.pairs import ABSENT, STEPS, Meaning, Pair
from tests.support.imports.trainer_pairs import rates_of, recipe_of

BASE: Final = {"model_name_or_path": "org/m", "dataset_name": "org/d"}
SHORT: Final = {"max_steps": STEPS}
FILES: Final[dict[str, dict[str, Any]]] = {
    "model and data": {**BASE},
    "adapters as they come": {**BASE, "use_peft": True},
    "adapters everywhere": {
        **BASE, "use_peft": True, "lora_r": 64, "lora_alpha": 128, "lora_dropout": 0.1,
        "lora_target_modules": "all-linear", "lora_modules_to_save": ["embed_tokens", "lm_head"],
    },
    "rank-stabilized adapters": {
        **BASE, "use_peft": True, "lora_r": 16, "lora_alpha": 32, "use_rslora": True,
        "lora_target_modules": ["q_proj", "k_proj", "v_proj"],
    },
    "4-bit weights": {**BASE, "use_peft": True, "load_in_4bit": True, "learning_rate": 2e-4},
    "packed rows": {**BASE, "packing": True, "max_length": 4096, "gradient_accumulation_steps": 8},
    "completions only": {**BASE, "completion_only_loss": True, "fp16": True},
    "assistants only": {**BASE, "assistant_only_loss": True, "dtype": "bfloat16"},
    "no cut": {**BASE, "max_length": None, "gradient_checkpointing": False},
    "a recipe in the style of alignment-handbook": {
        **BASE, **SHORT, "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "warmup_steps": 0.03,
        "attn_implementation": "flash_attention_2", "bf16": True, "seed": 1,
    },
    "a part of a data set": {
        **BASE, "dataset_config": "all", "dataset_train_split": "train_sft", "dataset_test_split": "test_sft",
        "eval_strategy": "steps", "eval_steps": 100,
    },
}  # fmt: skip
OTHER_TRAINERS: Final[dict[str, tuple[str, dict[str, Any], tuple[str, ...]]]] = {
    "pairs": ("DPOConfig", {"beta": 0.1}, ("beta", "preference")),
    "rewards": ("GRPOConfig", {"num_generations": 8}, ("num_generations", "reward")),
}
"""A key that only another trainer has, and words of the refusal."""


def trl_pairs() -> list[Pair]:
    """Files of the fine-tuning script, and of scripts that gradacc refuses."""
    found = [
        Pair(
            name=f"TRL: {name}",
            program="TRL (SFT)",
            given=given,
            meaning=functools.partial(_meaning, given),
            source="trl.SFTConfig, trl.ModelConfig, trl.ScriptArguments",
        )
        for name, given in FILES.items()
    ]
    return found + [
        Pair(
            name=f"TRL: {name}",
            program="TRL (SFT)",
            given={**BASE, **given},
            meaning=functools.partial(_refusal, owner, given, words),
            source=f"trl.{owner}",
        )
        for name, (owner, given, words) in OTHER_TRAINERS.items()
    ]


def _refusal(owner: str, given: dict[str, Any], words: tuple[str, ...]) -> Meaning:
    import dataclasses

    import trl

    theirs = {field.name for field in dataclasses.fields(getattr(trl, owner))}
    assert given.keys() <= theirs - {field.name for field in dataclasses.fields(trl.SFTConfig)}
    return Meaning(recipe={}, refused=words)


def _meaning(given: dict[str, Any]) -> Meaning:
    import transformers
    import trl

    parser = transformers.HfArgumentParser((trl.ScriptArguments, trl.SFTConfig, trl.ModelConfig))
    with tempfile.TemporaryDirectory() as folder:
        made = parser.parse_dict({"output_dir": folder, "report_to": "none", "use_cpu": True} | given)
    script, arguments, model = made
    recipe = (
        recipe_of(arguments)
        | _rows_of(arguments)
        | _adapters_of(model)
        | _data_of(script, happen=arguments.eval_strategy.value != "no")
        | {"task.model": model.model_name_or_path, "task.weights_dtype": DTYPES[model.dtype]}
    )
    if model.attn_implementation is not None:
        recipe["task.attention"] = model.attn_implementation
    return Meaning(recipe=recipe, rates=rates_of(arguments) if arguments.max_steps > 0 else (), changes=())


NAMES: Final = ("q_proj", "k_proj", "v_proj")
"""Of modules, in an order: their class keeps none."""
DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "auto": "auto"}


def _rows_of(arguments: Any) -> dict[str, Any]:
    learnt = arguments.completion_only_loss or arguments.assistant_only_loss
    found: dict[str, Any] = {
        "task.train_on": "answers" if learnt else "everything",
        "task.activation_checkpointing": arguments.gradient_checkpointing,
    }
    if arguments.packing:
        found["task.layout"] = "packing"
    if arguments.max_length is not None:
        found["task.max_length"] = arguments.max_length
    return found


def _adapters_of(model: Any) -> dict[str, Any]:
    import peft.utils.constants as known
    import trl

    made = trl.get_peft_config(model)
    if made is None:
        return {"task.method": "full", "task.lora_rank": ABSENT}
    usual = known.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING["llama"]
    targets = usual if made.target_modules is None else made.target_modules
    everywhere = targets == "all-linear"
    return {
        "task.method": "qlora" if model.load_in_4bit else "lora",
        "task.lora_rank": made.r,
        "task.lora_alpha": made.lora_alpha * (math.isqrt(made.r) if made.use_rslora else 1),
        "task.lora_dropout": made.lora_dropout,
        "task.lora_targets": ABSENT if everywhere else [name for name in NAMES if name in targets],
        "task.modules_to_save": made.modules_to_save or ABSENT,
    }


def _data_of(script: Any, *, happen: bool) -> dict[str, Any]:
    whole = ":".join(filter(None, (script.dataset_name, script.dataset_config)))
    train, test = script.dataset_train_split, script.dataset_test_split
    return {
        "data.path": whole if train == "train" else f"{whole}#{train}",
        "data.validation_path": f"{whole}#{test}" if happen else ABSENT,
        "data.validation_fraction": 0.0,
    }


LAUNCHES: Final[dict[str, dict[str, Any]]] = {
    "one process": {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "mixed_precision": "no",
        "num_processes": 1, "use_cpu": True,
    },
    "eight processes": {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "mixed_precision": "fp16",
        "num_processes": 8, "num_machines": 1, "machine_rank": 0,
    },
    "DeepSpeed": {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "mixed_precision": "bf16",
        "num_processes": 2, "use_cpu": False,
        "deepspeed_config": {"gradient_accumulation_steps": 4, "gradient_clipping": 0.5, "zero_stage": 2},
    },
}  # fmt: skip


def accelerate_pairs() -> list[Pair]:
    """Files of the launcher."""
    return [
        Pair(
            name=f"accelerate: {name}",
            program="accelerate",
            given=given,
            meaning=functools.partial(_launch, given),
            source="accelerate's ClusterConfig",
        )
        for name, given in LAUNCHES.items()
    ]


def _launch(given: dict[str, Any]) -> Meaning:
    import yaml
    from accelerate.commands.config.config_args import load_config_from_file

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "launch.yaml"
        path.write_text(yaml.safe_dump(given), encoding="utf-8")
        made = load_config_from_file(str(path))
    inner = made.deepspeed_config
    steps = inner.get("gradient_accumulation_steps", 1) * made.num_processes
    return Meaning(
        recipe={
            "run.precision": {"no": "fp32"}.get(str(made.mixed_precision), str(made.mixed_precision)),
            "run.device": "cpu" if made.use_cpu else ABSENT,
            "accumulation.gradient_accumulation_steps": steps,
            "optimizer.max_grad_norm": inner.get("gradient_clipping", ABSENT),
        },
        open=(
            "task.model", "data.path", "task.max_length", "accumulation.micro_batch_size", "run.epochs",
            "optimizer.learning_rate",
        ),
        changes=(),
    )  # fmt: skip
