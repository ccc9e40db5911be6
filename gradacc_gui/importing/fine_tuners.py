"""LLaMA-Factory's and Axolotl's YAML: language models, so the whole recipe comes over."""

from __future__ import annotations

from typing import Any, Final

from gradacc_gui.importing.account import Account, Imported
from gradacc_gui.importing.training_arguments import (
    effective_batch,
    optimizer,
    precision,
    schedule,
    training_arguments,
)

FOUR_BIT: Final = 4


def from_llama_factory(account: Account) -> Imported:
    """Their own keys, and TrainingArguments beside them."""
    account.put("task.kind", "causal-lm")
    account.take("model_name_or_path", "task.model")
    kind = account.get("finetuning_type", "lora")
    if kind in ("lora", "full"):
        four_bit = kind == "lora" and account.get("quantization_bit") == FOUR_BIT
        account.translate("finetuning_type", "task.method", "qlora" if four_bit else kind)
        if four_bit:
            account.settled("quantization_bit", 'task.method = "qlora"')
    else:
        account.leave("finetuning_type", 'Not offered here; choose task.method = "lora" or "full".')
    for theirs in ("lora_rank", "lora_alpha", "lora_dropout"):
        account.take(theirs, f"task.{theirs}")
    targets(account, "lora_target")
    account.take_whole("cutoff_len", "task.max_length")
    _packing(account, "packing")
    if account.get("train_on_prompt") is not None:
        everything = "everything" if account.get("train_on_prompt") else "answers"
        account.translate("train_on_prompt", "task.train_on", everything)
    _validation(account, "val_size")
    account.leave("dataset", "A name in their dataset_info.json: give data.path, the file itself.")
    account.leave("template", "The tokenizer's own chat template is used.")
    account.settled("do_train", "a run trains")
    if account.get("stage") == "sft":
        account.settled("stage", "supervised fine-tuning is what the kind does")
    training_arguments(account)
    return account.finish("LLaMA-Factory")


def from_axolotl(account: Account) -> Imported:
    """A recipe from Axolotl's YAML, with an account of every key."""
    account.put("task.kind", "causal-lm")
    account.take("base_model", "task.model")
    adapter = account.get("adapter")
    if adapter in ("lora", "qlora"):
        account.translate("adapter", "task.method", adapter)
    elif adapter is None:
        account.put("task.method", "full")
    else:
        account.leave("adapter", 'Not offered here; choose task.method = "lora" or "full".')
    account.settled("load_in_4bit", 'task.method = "qlora" loads in 4 bits')
    account.take("lora_r", "task.lora_rank")
    for theirs in ("lora_alpha", "lora_dropout"):
        account.take(theirs, f"task.{theirs}")
    targets(account, "lora_target_modules")
    account.settled("lora_target_linear", "without task.lora_targets every linear layer but the head")
    account.take_whole("sequence_len", "task.max_length")
    _packing(account, "sample_packing")
    if account.get("train_on_inputs") is not None:
        everything = "everything" if account.get("train_on_inputs") else "answers"
        account.translate("train_on_inputs", "task.train_on", everything)
    _validation(account, "val_set_size")
    _datasets(account)
    _axolotl_training(account)
    return account.finish("Axolotl")


def _axolotl_training(account: Account) -> None:
    account.take_whole("micro_batch_size", "accumulation.micro_batch_size")
    account.take_whole("gradient_accumulation_steps", "accumulation.gradient_accumulation_steps", 1)
    if account.whole("max_steps"):
        account.take_whole("max_steps", "run.max_optimizer_steps")
        account.leave("num_epochs", "max_steps goes before it.")
    else:
        account.put("run.epochs", max(1, round(account.number("num_epochs", 1) or 1)))
        account.settled("num_epochs", "run.epochs")
    optimizer(account, "optimizer")
    schedule(account, "lr_scheduler", default="cosine")
    precision(account)
    account.take("seed", "run.seed")
    if account.get("gradient_checkpointing"):
        account.translate("gradient_checkpointing", "task.activation_checkpointing", True)
    note = f"x effective batch {effective_batch(account)}: the clock here is samples"
    for theirs, ours in (
        ("save_steps", "checkpoint.every_samples"),
        ("eval_steps", "evaluation.every_samples"),
    ):
        if isinstance(account.get(theirs), int):
            account.translate(theirs, ours, account.get(theirs) * effective_batch(account), note)
    account.leave("evals_per_epoch", "Set evaluation.every_samples.")
    account.leave("saves_per_epoch", "Set checkpoint.every_samples.")


def _datasets(account: Account) -> None:
    datasets: Any = account.get("datasets")
    if isinstance(datasets, list) and datasets and isinstance(datasets[0], dict) and "path" in datasets[0]:
        rest = f"; {len(datasets) - 1} more left out" if len(datasets) > 1 else ""
        account.translate("datasets", "data.path", str(datasets[0]["path"]), f"give a local file{rest}")
    else:
        account.leave("datasets", "Give data.path, the file itself.")


def targets(account: Account, key: str) -> None:
    """LoRA targets as a list; "all" is our default."""
    given = account.get(key)
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",") if name.strip()]
    if not given or given in (["all"], ["all-linear"]):
        account.settled(key, "every linear layer but the head")
    else:
        account.translate(key, "task.lora_targets", [str(name) for name in given])


def _packing(account: Account, key: str) -> None:
    if account.get(key) is not None:
        account.translate(key, "task.layout", "packing" if account.get(key) else "padding")


def _validation(account: Account, key: str) -> None:
    share = account.get(key)
    if isinstance(share, float) and 0 < share < 1:
        account.translate(key, "data.validation_fraction", share)
    elif share is not None:
        account.leave(key, "Give data.validation_fraction as a share between 0 and 1.")
