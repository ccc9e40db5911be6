"""DeepSpeed's JSON and accelerate's YAML."""

from __future__ import annotations

from typing import Any

from gradacc_gui.importing.account import Account, Imported
from trainer_backend.errors import UsageError


def from_deepspeed(account: Account) -> Imported:
    """train_batch_size = micro-batch x N x world must hold. Raises UsageError when it does not."""
    account.put("task.kind", "causal-lm")
    micro = account.get("train_micro_batch_size_per_gpu")
    steps = account.get("gradient_accumulation_steps")
    total = account.get("train_batch_size")
    micro, steps, world = batch_equation(total, micro, steps)
    account.put("accumulation.micro_batch_size", micro)
    account.settled("train_micro_batch_size_per_gpu", "accumulation.micro_batch_size")
    key = "gradient_accumulation_steps"
    if world > 1:
        note = f"x {world} devices, so that the effective batch of {micro * steps * world} stays on one"
        account.translate(key, f"accumulation.{key}", steps * world, note)
    else:
        account.translate(key, f"accumulation.{key}", steps)
    account.settled("train_batch_size", f"{micro} x {steps} x {world} = {micro * steps * world}, checked")
    _optimizer(account, account.section("optimizer"))
    _scheduler(account, account.section("scheduler"), micro * steps * world)
    if account.number("gradient_clipping"):
        account.take_number("gradient_clipping", "optimizer.max_grad_norm")
    for key in ("bf16", "fp16"):
        if isinstance(account.get(key), dict) and account.section(key).get("enabled") is True:
            account.translate(key, "run.precision", key)
    account.leave("zero_optimization", "One device holds all of the state here.")
    account.leave("steps_per_print", "The window shows every micro-batch.")
    return account.finish("DeepSpeed")


def batch_equation(total: Any, micro: Any, steps: Any) -> tuple[int, int, int]:  # noqa: ANN401 - JSON
    """(micro-batch, N, world) from what is given of total = micro x N x world. Raises UsageError."""
    given = {"train_batch_size": total, "micro-batch": micro, "N": steps}
    for name, value in given.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            message = f"{name} = {value!r} is not a whole number from 1. Mend it in the file."
            raise UsageError(message)
    if total is None:
        return micro or 1, steps or 1, 1
    if micro is None and steps is None:
        return total, 1, 1
    if micro is None or steps is None:
        known = micro or steps
        if total % known:
            message = f"train_batch_size = {total} is not a multiple of {known}. Mend the file."
            raise UsageError(message)
        rest = total // known
        return (known, rest, 1) if steps is None else (rest, known, 1)
    if total % (micro * steps):
        message = (
            f"train_batch_size = {total} is not micro-batch {micro} x N {steps} x a number of devices."
            " One of the three is wrong: mend the file."
        )
        raise UsageError(message)
    return micro, steps, total // (micro * steps)


def _params(section: dict[str, Any]) -> dict[str, Any]:
    params = section.get("params")
    return params if isinstance(params, dict) else {}


def _optimizer(account: Account, section: dict[str, Any]) -> None:
    if not section:
        return
    name = str(section.get("type", "AdamW")).lower()
    known = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd"}
    account.put("optimizer.name", known.get(name, "adamw"))
    params = _params(section)
    for theirs, ours in (("lr", "learning_rate"), ("eps", "eps"), ("weight_decay", "weight_decay")):
        if isinstance(params.get(theirs), (int, float)):
            account.put(f"optimizer.{ours}", float(params[theirs]))
    if isinstance(params.get("betas"), list):
        account.put("optimizer.betas", params["betas"])
    note = "name, lr, betas, eps, weight_decay" if name in known else f"{name} is not offered; AdamW is set"
    account.settled("optimizer", note)


def _scheduler(account: Account, section: dict[str, Any], effective_batch: int) -> None:
    if not section:
        return
    params = _params(section)
    kinds = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
    kind = kinds.get(str(section.get("type")))
    if kind is None:
        account.leave("scheduler", "Not offered here; set schedule.kind.")
        return
    account.put("schedule.kind", kind)
    account.put("schedule.final_ratio", params.get("cos_min_ratio", 0.0001) if kind == "cosine" else 0.0)
    for theirs, ours in (
        ("warmup_num_steps", "schedule.warmup_samples"),
        ("total_num_steps", "schedule.samples"),
    ):
        if isinstance(params.get(theirs), int):
            account.put(ours, params[theirs] * effective_batch)
    if isinstance(params.get("total_num_steps"), int):
        account.put("run.max_optimizer_steps", params["total_num_steps"])
    if isinstance(params.get("warmup_max_lr"), (int, float)):
        account.put("optimizer.learning_rate", float(params["warmup_max_lr"]))
    account.settled("scheduler", f"steps x effective batch {effective_batch}: the clock here is samples")


def from_accelerate(account: Account) -> Imported:
    """Precision, N and the number of processes; the rest says how processes are launched."""
    account.put("task.kind", "causal-lm")
    inner = account.section("deepspeed_config")
    key = "gradient_accumulation_steps"
    asked = account.whole(key) or inner.get(key) or 1
    _, steps, _ = batch_equation(None, None, asked if asked != "auto" else 1)
    world = account.whole("num_processes", 1) or 1
    if world < 1:
        message = f"num_processes = {world} is not a whole number from 1. Mend it in the file."
        raise UsageError(message)
    account.put(f"accumulation.{key}", steps * world)
    account.settled(key, f"accumulation.{key}")
    note = "" if world == 1 else f": N x {world}, so that the effective batch stays on one device"
    account.settled("num_processes", f"one process here{note}")
    mixed = account.get("mixed_precision")
    if mixed in ("bf16", "fp16"):
        account.translate("mixed_precision", "run.precision", mixed)
    elif mixed in ("no", False):
        account.translate("mixed_precision", "run.precision", "fp32")
    clip = account.get("gradient_clipping") or inner.get("gradient_clipping")
    if isinstance(clip, (int, float)) and clip:
        account.put("optimizer.max_grad_norm", float(clip))
    account.settled("deepspeed_config", "N and clipping; ZeRO is left out, one device holds all")
    account.leave("deepspeed_config_file", "Import that file too.")
    return account.finish("accelerate")
