"""The model and tokenizer that a recipe names, or a sentence that says why not."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import torch

from trainer_backend.errors import UsageError
from trainer_backend.kinds import KINDS
from trainer_backend.kinds.causal_lm import CausalLMTask
from trainer_backend.tasks.built_in import place


def model_source(task: CausalLMTask, folder: Path) -> str:
    """The model's directory when there is one, else the hub id as it stands."""
    local = place(folder, task.model)
    return str(local) if local.is_dir() else task.model


def is_offline(task: CausalLMTask) -> bool:
    """Whether the hub may not be asked: by the recipe, or by the variables of its own libraries."""
    words = {"1", "true", "yes", "on"}
    return task.offline or any(
        os.environ.get(name, "").lower() in words for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def load_tokenizer(task: CausalLMTask, folder: Path) -> Any:  # noqa: ANN401 - any tokenizer class
    """The tokenizer of the recipe's model. Raises UsageError."""
    transformers = _transformers()
    try:
        return transformers.AutoTokenizer.from_pretrained(
            model_source(task, folder), local_files_only=is_offline(task)
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise UsageError(_cannot_load("tokenizer", task, folder, error)) from error


def load_model(task: CausalLMTask, folder: Path) -> torch.nn.Module:
    """The model, on the CPU, adapters in place. Raises UsageError."""
    transformers = _transformers()
    options: dict[str, Any] = {
        "dtype": {"auto": "auto", "fp32": torch.float32, "bf16": torch.bfloat16}[task.weights_dtype],
        "attn_implementation": task.attention,
        "local_files_only": is_offline(task),
    }
    if task.method == "qlora":
        options |= _four_bit(transformers)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(model_source(task, folder), **options)
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        raise UsageError(_cannot_load("model", task, folder, error)) from error
    model.config.use_cache = False
    if task.activation_checkpointing:
        _checkpoint_activations(model)
    if task.method == "full":
        whole: torch.nn.Module = model
        return whole
    if task.activation_checkpointing:
        # Frozen embeddings give a first block whose input needs no gradient: nothing would be recomputed.
        model.enable_input_require_grads()
    return _with_adapters(model, task)


def _checkpoint_activations(model: Any) -> None:  # noqa: ANN401 - a PreTrainedModel
    # Renamed in transformers 5; the old name warns there.
    newer = getattr(model, "activation_checkpointing_enable", None)
    if newer is not None:
        newer({"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})


def _transformers() -> Any:  # noqa: ANN401 - a module
    try:
        transformers: Any = importlib.import_module("transformers")  # an optional, heavy library
    except ImportError as error:
        message = f'kind = "causal-lm" needs transformers and peft. Run: {KINDS["causal-lm"].install}'
        raise UsageError(message) from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _cannot_load(what: str, task: CausalLMTask, folder: Path, error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), type(error).__name__)
    source = model_source(task, folder)
    if Path(source).is_dir():
        return f"The {what} in {source} cannot be loaded: {first}. Is the directory complete?"
    if is_offline(task):
        return (
            f"task.model = {task.model} is no directory, and the hub may not be asked (offline),"
            " nor is it cached. Give a model directory, or turn offline off."
        )
    return (
        f"task.model = {task.model} is no directory, and the {what} did not come from the hub: {first}."
        " Check the name and the connection, or give a model directory."
    )


def _four_bit(transformers: Any) -> dict[str, Any]:  # noqa: ANN401 - a module
    if importlib.util.find_spec("bitsandbytes") is None:
        message = 'task.method = "qlora" needs bitsandbytes. Run: pip install bitsandbytes, or use "lora".'
        raise UsageError(message)
    if not torch.cuda.is_available():
        message = 'task.method = "qlora" needs an NVIDIA GPU that torch sees, and there is none. Use "lora".'
        raise UsageError(message)
    compute = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )
    return {"quantization_config": config, "device_map": {"": torch.cuda.current_device()}}


def _with_adapters(model: Any, task: CausalLMTask) -> torch.nn.Module:  # noqa: ANN401 - a PreTrainedModel
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
    config = peft.LoraConfig(
        r=task.lora_rank,
        lora_alpha=task.lora_alpha,
        lora_dropout=task.lora_dropout,
        target_modules=list(task.lora_targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
    missing = [target for target in task.lora_targets if not _matches(model, target)]
    if missing:
        ends = sorted({name.rpartition(".")[2] for name, module in model.named_modules() if _linear(module)})
        near = difflib.get_close_matches(missing[0], ends, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        message = (
            f"task.lora_targets: {missing[0]!r} matches no module of {task.model}."
            f" {hint}Its linear layers end in {', '.join(ends)}."
        )
        raise UsageError(message)
    adapted: torch.nn.Module = peft.get_peft_model(model, config)
    return adapted


def _matches(model: torch.nn.Module, target: str) -> bool:
    return any(name == target or name.endswith(f".{target}") for name, _ in model.named_modules())


def _linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
