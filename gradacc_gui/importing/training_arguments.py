"""TrainingArguments of the transformers library, alone or inside another trainer's file."""

from __future__ import annotations

from typing import Any, Final

from gradacc_gui.importing.account import Account, Imported

ADAMW: Final = {"adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw", "adamw_apex_fused"}
SCHEDULES: Final[dict[str, tuple[str, float]]] = {
    "linear": ("linear", 0.0),
    "cosine": ("cosine", 0.0),
    "constant": ("constant", 1.0),
    "constant_with_warmup": ("constant", 1.0),
    "cosine_with_min_lr": ("cosine", 0.1),
}
"""Their schedules by ours: kind and final ratio."""
WHERE_RUNS_LIE: Final = ("output_dir", "logging_dir", "overwrite_output_dir", "report_to", "logging_steps")


def from_training_arguments(account: Account) -> Imported:
    """The recipe of TrainingArguments; the model and the data are for the user to add."""
    account.put("task.kind", "causal-lm")
    training_arguments(account)
    return account.finish("transformers TrainingArguments")


def training_arguments(account: Account, *, batch_key: str = "per_device_train_batch_size") -> None:
    """Every key that the library's own trainer knows."""
    # 8 and 1 are the library's own defaults.
    account.take_whole(batch_key, "accumulation.micro_batch_size", 8)
    account.take_whole("gradient_accumulation_steps", "accumulation.gradient_accumulation_steps", 1)
    _length(account)
    optimizer(account)
    _schedule(account)
    precision(account)
    _rhythm(account)
    account.take("seed", "run.seed")
    account.take("run_name", "run.name")
    account.take("torch_compile", "run.compile")
    account.take("full_determinism", "run.deterministic")
    account.take("dataloader_num_workers", "data.num_workers")
    account.take("gradient_checkpointing", "task.activation_checkpointing")
    account.settled("average_tokens_across_devices", "always so here: each valid token weighs the same")
    account.settled("gradient_checkpointing_kwargs", "always non-reentrant here")
    account.settled(
        "dataloader_drop_last", "see accumulation.tail: short micro-batches count by their weight"
    )
    for key in WHERE_RUNS_LIE:
        account.leave(key, "Runs lie in GRADACC_HOME and are shown in the window.")
    account.leave("label_smoothing_factor", "The fine-tuning kind has no label smoothing.")


def effective_batch(account: Account) -> int:
    """micro-batch x N, for keys that count optimizer steps."""
    micro: int = account.value("accumulation.micro_batch_size", 8)
    steps: int = account.value("accumulation.gradient_accumulation_steps", 1)
    return micro * steps


def _length(account: Account) -> None:
    steps, epochs = account.whole("max_steps"), account.number("num_train_epochs")
    if steps is not None and steps > 0:
        account.translate("max_steps", "run.max_optimizer_steps", steps)
        account.leave("num_train_epochs", "max_steps goes before it.")
        return
    account.leave("max_steps", "It is off.")
    if epochs is None:
        account.put("run.epochs", 3)  # the library's default
    elif epochs.is_integer() and epochs >= 1:
        account.translate("num_train_epochs", "run.epochs", int(epochs))
    else:
        account.put("run.epochs", max(1, round(epochs)))
        account.leave("num_train_epochs", "Parts of an epoch: give run.max_samples instead; rounded for now.")


def optimizer(account: Account, key: str = "optim") -> None:
    """Take the optimizer's name, learning rate, decay, betas and clipping."""
    name = str(account.get(key, "adamw_torch"))
    if name in ADAMW or name == "sgd":
        if account.get(key) is not None:
            account.translate(key, "optimizer.name", "sgd" if name == "sgd" else "adamw")
    else:
        account.put("optimizer.name", "adamw")
        account.leave(key, "Not offered here; AdamW is set.")
    account.put("optimizer.learning_rate", 5e-5)  # the library's default
    account.take_number("learning_rate", "optimizer.learning_rate")
    account.take_number("weight_decay", "optimizer.weight_decay")
    account.put("optimizer.betas", [account.number("adam_beta1", 0.9), account.number("adam_beta2", 0.999)])
    for number in (1, 2):
        account.settled(f"adam_beta{number}", "in optimizer.betas")
    account.take_number("adam_epsilon", "optimizer.eps")
    clip = account.number("max_grad_norm", 1.0)  # the library's default
    if not clip:
        account.leave("max_grad_norm", "0 is no clipping, as here without the key.")
    elif account.get("max_grad_norm") is None:
        account.put("optimizer.max_grad_norm", 1.0)
    else:
        account.translate("max_grad_norm", "optimizer.max_grad_norm", clip)


def _schedule(account: Account, key: str = "lr_scheduler_type") -> None:
    schedule(account, key, default="linear")


def schedule(account: Account, key: str, *, default: str) -> None:
    """Kind and warm-up; steps become samples, since the clock here is samples."""
    name = str(account.get(key, default))
    if name in SCHEDULES:
        kind, final = SCHEDULES[name]
        account.put("schedule.final_ratio", final)
        if account.get(key) is None:
            account.put("schedule.kind", kind)
        else:
            account.translate(key, "schedule.kind", kind)
    else:
        account.put("schedule.kind", "cosine")
        account.leave(key, "Not offered here; cosine is set.")
    _warm_up(account)


def _warm_up(account: Account) -> None:
    one = effective_batch(account)
    steps, ratio = account.number("warmup_steps", 0), account.number("warmup_ratio", 0.0)
    if steps and 0 < steps < 1:
        steps, ratio = 0, steps  # newer versions take a ratio under this name
    note = f"x effective batch {one}: the clock here is samples"
    if steps:
        account.translate("warmup_steps", "schedule.warmup_samples", int(steps) * one, note)
        account.leave("warmup_ratio", "warmup_steps goes before it.")
        return
    total = account.value("run.max_optimizer_steps")
    key = "warmup_ratio" if account.get("warmup_ratio") else "warmup_steps"
    if ratio and total:
        account.translate(key, "schedule.warmup_samples", round(ratio * total) * one, note)
    elif ratio:
        account.leave(key, "The length in samples is not known here: set schedule.warmup_samples.")


def precision(account: Account) -> None:
    """Take the precision from the switches bf16 and fp16."""
    on = (True, "true", "auto")
    if account.get("bf16") in on or account._given.get("bf16") == "auto":  # noqa: SLF001 - "auto" is a value here
        account.translate("bf16", "run.precision", "auto" if account.get("bf16") is None else "bf16")
        account.leave("fp16", "bf16 goes before it.")
    elif account.get("fp16") in on:
        account.translate("fp16", "run.precision", "fp16")
        account.leave("bf16", "It is off.")
    else:
        for key in ("bf16", "fp16"):
            account.leave(key, "It is off; run.precision = auto decides by the device.")


def _rhythm(account: Account) -> None:
    one = effective_batch(account)
    note = f"x effective batch {one}: the clock here is samples"
    _every(account, "save", "checkpoint.every_samples", one, note)
    _every(account, "eval", "evaluation.every_samples", one, note)
    account.take_whole("save_total_limit", "checkpoint.keep")


def _every(account: Account, what: str, recipe_key: str, one: int, note: str) -> None:
    steps: Any = account.get(f"{what}_steps")
    strategy = account.get(f"{what}_strategy", account.get("evaluation_strategy") if what == "eval" else None)
    if strategy in (None, "steps") and isinstance(steps, int) and steps >= 1:
        account.translate(f"{what}_steps", recipe_key, steps * one, note)
        account.settled(f"{what}_strategy", "by samples")
        if what == "eval":
            account.settled("evaluation_strategy", "by samples")
    else:
        account.leave(f"{what}_steps", f"{what}_strategy is {strategy}; set {recipe_key} in samples.")
        account.leave(f"{what}_strategy", f"Set {recipe_key} in samples.")
