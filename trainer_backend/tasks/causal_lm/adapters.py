"""LoRA adapters on a causal model: which of its layers get one, and what is trained whole beside them."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Sequence
from typing import Any, Final

import torch

from trainer_backend.errors import UsageError
from trainer_backend.kinds.causal_lm import CausalLMTask

_PATTERN: Final = re.compile(r"[*+?()\[\]{}|^$\\]")
"""What no module's name holds: a target with one of them is a regular expression."""


def with_adapters(
    model: Any,  # noqa: ANN401 - a PreTrainedModel
    task: CausalLMTask,
    new_tokens: Sequence[int],
) -> torch.nn.Module:
    """The model with frozen weights and adapters in place. Raises UsageError.

    Rows of `new_tokens` are trained too, unless the whole embedding is: nobody has taught them anything.
    """
    try:
        peft: Any = importlib.import_module("peft")  # an optional, heavy library
    except ImportError as error:
        message = f'task.method = "{task.method}" needs peft. Run: pip install peft'
        raise UsageError(message) from error
    if task.method == "qlora":
        model = peft.prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=task.activation_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False},
        )
    targets = [name for target in task.lora_targets for name in _targeted(model, target, task)]
    for name in task.modules_to_save:
        if not _matches(model, name):
            raise UsageError(_unmatched("task.modules_to_save", name, model, task, is_linear=False))
    embedding = next(name for name, module in model.named_modules() if module is model.get_input_embeddings())
    is_whole = any(embedding == name or embedding.endswith(f".{name}") for name in task.modules_to_save)
    config = peft.LoraConfig(
        r=task.lora_rank,
        lora_alpha=task.lora_alpha,
        lora_dropout=task.lora_dropout,
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
        target_modules=targets or "all-linear",
        modules_to_save=list(task.modules_to_save) or None,
        # A head that shares its weight with the embedding stays one with it when either is trained whole.
        ensure_weight_tying=bool(task.modules_to_save) and _ties(model),
        trainable_token_indices={embedding: list(new_tokens)} if new_tokens and not is_whole else None,
        task_type="CAUSAL_LM",
    )
    adapted: torch.nn.Module = peft.get_peft_model(model, config)
    return adapted


def _targeted(model: torch.nn.Module, target: str, task: CausalLMTask) -> list[str]:
    """What a target means to peft: ends of names as they stand, or all names that a pattern matches whole."""
    if not _PATTERN.search(target):
        if _matches(model, target):
            return [target]
        raise UsageError(_unmatched("task.lora_targets", target, model, task, is_linear=True))
    try:
        pattern = re.compile(target)
    except re.error as error:
        message = f"task.lora_targets: {target!r} is not a regular expression ({error}). Correct it."
        raise UsageError(message) from error
    found = [
        name for name, module in model.named_modules() if takes_adapter(module) and pattern.fullmatch(name)
    ]
    if not found:
        raise UsageError(_unmatched("task.lora_targets", target, model, task, is_linear=True))
    return found


def _unmatched(key: str, target: str, model: torch.nn.Module, task: CausalLMTask, *, is_linear: bool) -> str:
    names = [name for name, module in model.named_modules() if name and (_linear(module) or not is_linear)]
    ends = sorted({name.rpartition(".")[2] for name in names} - {str(number) for number in range(1000)})
    near = difflib.get_close_matches(target, ends, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    whose = "Its linear layers end in" if is_linear else "Its modules end in"
    return f"{key}: {target!r} matches no module of {task.model}. {hint}{whose} {', '.join(ends)}."


def _matches(model: torch.nn.Module, target: str) -> bool:
    return any(name == target or name.endswith(f".{target}") for name, _ in model.named_modules())


def _ties(model: Any) -> bool:  # noqa: ANN401 - a PreTrainedModel
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return head is not None and getattr(head, "weight", None) is getattr(embedding, "weight", 0)


def takes_adapter(module: torch.nn.Module) -> bool:
    """Whether a pattern may mean it: linear layers and embeddings."""
    return _linear(module) or isinstance(module, torch.nn.Embedding)


def _linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
