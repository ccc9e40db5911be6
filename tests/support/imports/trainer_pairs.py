"""transformers' TrainingArguments: what the installed class, optimizers and schedules make of it."""

from __future__ import annotations

import functools
import math
import tempfile
from typing import Any, Final

from tests.support.imports.pairs import ABSENT, STEPS, Meaning, Pair

SHORT: Final = {"max_steps": STEPS}
FILES: Final[dict[str, dict[str, Any]]] = {
    "only a rate": {"learning_rate": 2e-5},
    "nothing but a folder": {"save_steps": 500},
    "cosine and a share of warm-up": {
        "learning_rate": 1e-5, "lr_scheduler_type": "cosine", "warmup_steps": 0.1, **SHORT,
    },
    "warm-up in steps": {"warmup_steps": 7, "lr_scheduler_type": "cosine", **SHORT},
    "linear to 0": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, **SHORT},
    "least rate as a share": {
        "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        "warmup_steps": 10, **SHORT,
    },
    "least rate as a rate": {
        "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6},
        "learning_rate": 1e-4, "warmup_steps": 4, **SHORT,
    },
    "restarts": {
        "lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 3},
        "warmup_steps": 4, **SHORT,
    },
    "polynomial": {
        "lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0, "lr_end": 1e-6}, **SHORT,
    },
    "polynomial as it comes": {"lr_scheduler_type": "polynomial", "learning_rate": 3e-4, **SHORT},
    "inverse square root": {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 5, **SHORT},
    "constant": {"lr_scheduler_type": "constant", "warmup_steps": 5, **SHORT},
    "constant with warm-up": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5, **SHORT},
    "warm-up, stable, decay": {
        "lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 5, **SHORT,
        "lr_scheduler_kwargs": {"num_decay_steps": 10, "min_lr_ratio": 0.05},
    },
    "bf16 and clipping off": {"bf16": True, "max_grad_norm": 0, **SHORT},
    "fp16, seed, betas": {
        "fp16": True, "seed": 7, "adam_beta1": 0.85, "adam_beta2": 0.95, "adam_epsilon": 1e-6,
        "weight_decay": 0.1, **SHORT,
    },
    "8-bit AdamW": {"optim": "adamw_bnb_8bit", "num_train_epochs": 2},
    "paged 8-bit AdamW": {"optim": "paged_adamw_8bit", "num_train_epochs": 2},
    "SGD": {"optim": "sgd", "optim_args": "momentum=0.9", "num_train_epochs": 1},
    "Lion": {"optim": "lion_32bit", "adam_beta2": 0.99, "num_train_epochs": 1},
    "evaluations and checkpoints in steps": {
        "eval_strategy": "steps", "eval_steps": 50, "save_steps": 100, "save_total_limit": 3,
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 16,
    },
    "evaluations as a share of the run": {
        "eval_strategy": "steps", "eval_steps": 0.25, "save_strategy": "no", **SHORT,
    },
}  # fmt: skip


def trainer_pairs() -> list[Pair]:
    """A pair for each file."""
    return [
        Pair(
            name=f"transformers: {name}",
            program="transformers TrainingArguments",
            given=given,
            meaning=functools.partial(_meaning, given),
            source="transformers.TrainingArguments",
        )
        for name, given in FILES.items()
    ]


def arguments_of(given: dict[str, Any]) -> Any:
    """Their own class, made as their scripts make it from a file; nothing runs, so any device will do."""
    import transformers

    (made,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_dict(
        {"use_cpu": True} | given
    )
    return made


def _meaning(given: dict[str, Any]) -> Meaning:
    with tempfile.TemporaryDirectory() as folder:
        made = arguments_of({"output_dir": folder, "report_to": "none"} | given)
        recipe = recipe_of(made) | {"data.validation_fraction": 0.0, "task.method": "full"}
        return Meaning(recipe=recipe, rates=rates_of(made) if made.max_steps > 0 else (), changes=())


def recipe_of(made: Any) -> dict[str, Any]:
    """What a recipe must say for the same run."""
    import transformers

    batch = made.per_device_train_batch_size * made.gradient_accumulation_steps
    kind, keywords = transformers.Trainer.get_optimizer_cls_and_kwargs(made)
    short = made.max_steps > 0
    total = made.max_steps if short else None
    found: dict[str, Any] = {
        "accumulation.micro_batch_size": made.per_device_train_batch_size,
        "accumulation.gradient_accumulation_steps": made.gradient_accumulation_steps,
        "run.max_optimizer_steps": made.max_steps if short else ABSENT,
        "run.epochs": ABSENT if short else made.num_train_epochs,
        "run.seed": made.seed,
        "run.precision": "bf16" if made.bf16 else "fp16" if made.fp16 else "fp32",
        "optimizer.name": OURS[kind.__name__, keywords.get("optim_bits", 32), bool(keywords.get("is_paged"))],
        "optimizer.learning_rate": made.learning_rate,
        "optimizer.weight_decay": made.weight_decay,
        "optimizer.max_grad_norm": made.max_grad_norm or ABSENT,
    }
    if "betas" in keywords:
        found["optimizer.betas"] = list(keywords["betas"])
    if "momentum" in keywords:
        found["optimizer.momentum"] = float(keywords["momentum"])
    strategy = made.eval_strategy.value
    found["evaluation.every_samples"] = _samples(made.eval_steps, batch, total, strategy)
    found["checkpoint.every_samples"] = _samples(made.save_steps, batch, total, made.save_strategy.value)
    if made.save_total_limit is not None:
        found["checkpoint.keep"] = made.save_total_limit
    return found


OURS: Final = {
    ("AdamW", 32, False): "adamw",
    ("SGD", 32, False): "sgd",
    ("AdamW", 8, False): "adamw-8bit",
    ("AdamW", 8, True): "paged-adamw-8bit",
    ("Lion", 32, False): "lion",
}
"""By their class, the bits of its state, and whether it is paged."""


def _samples(every: float | None, batch: int, total: int | None, strategy: str) -> Any:
    """An interval as samples, as their default flow callback counts it."""
    if strategy != "steps" or every is None:
        return ABSENT
    steps = math.ceil(total * every) if every < 1 and total is not None else int(every)
    return steps * batch


def rates_of(made: Any) -> tuple[float, ...]:
    """The learning rate of each optimizer step, by their scheduler."""
    import torch
    import transformers

    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=made.learning_rate)
    total = made.max_steps
    scheduler = transformers.get_scheduler(
        made.lr_scheduler_type,
        optimizer=optimizer,
        num_warmup_steps=made.get_warmup_steps(total),
        num_training_steps=total,
        scheduler_specific_kwargs=made.lr_scheduler_kwargs or {},
    )
    found = []
    for _ in range(total):
        found.append(float(scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
    return tuple(found)
