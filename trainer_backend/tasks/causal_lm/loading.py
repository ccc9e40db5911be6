"""The model and tokenizer that a recipe names, or a sentence that says why not."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from trainer_backend.errors import UsageError
from trainer_backend.kinds import KINDS
from trainer_backend.kinds.causal_lm import CausalLMTask
from trainer_backend.tasks.built_in import ReportWarning, place
from trainer_backend.tasks.causal_lm.adapters import with_adapters

LOADING_ERRORS: Final = (OSError, ValueError, ImportError, KeyError, RuntimeError, pickle.UnpicklingError)
"""What the library raises where a directory, a name or a file is wrong."""
_NO_SDPA: Final = "scaled_dot_product_attention"


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
    """The tokenizer of the recipe's model, with the tokens that the recipe adds. Raises UsageError."""
    transformers = _transformers()
    refuse_folder(task, folder)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            model_source(task, folder),
            local_files_only=is_offline(task),
            trust_remote_code=task.trust_remote_code,
        )
    except LOADING_ERRORS as error:
        raise UsageError(_cannot_load("tokenizer", task, folder, error)) from error
    tokenizer.add_tokens(list(task.added_tokens))
    return tokenizer


def load_model(task: CausalLMTask, folder: Path, warn: ReportWarning) -> torch.nn.Module:
    """The model, on the CPU, in the dtype and with the attention of the recipe. Raises UsageError."""
    transformers = _transformers()
    refuse_folder(task, folder)
    options: dict[str, Any] = {
        "dtype": {"auto": "auto", "fp32": torch.float32, "bf16": torch.bfloat16}[task.weights_dtype],
        "local_files_only": is_offline(task),
        "trust_remote_code": task.trust_remote_code,
        "output_loading_info": True,
    }
    if task.method == "qlora":
        options |= _four_bit(transformers)
    load = transformers.AutoModelForCausalLM.from_pretrained
    source = model_source(task, folder)
    try:
        try:
            model, found = load(source, attn_implementation=task.attention, **options)
        except ValueError as error:
            if task.attention != "sdpa" or _NO_SDPA not in str(error):
                raise
            warn("attention-eager", {"model": task.model})
            model, found = load(source, attn_implementation="eager", **options)
    except LOADING_ERRORS as error:
        raise UsageError(_cannot_load("model", task, folder, error)) from error
    if found["missing_keys"]:
        missing = sorted(found["missing_keys"])
        warn("weights-missing", {"model": task.model, "count": len(missing), "first": missing[0]})
    model.config.use_cache = False
    whole: torch.nn.Module = model
    return whole


def embedding_rows(task: CausalLMTask, folder: Path) -> int:
    """Tokens that the model's configuration counts; 0 where it does not say. Raises UsageError."""
    transformers = _transformers()
    try:
        config = transformers.AutoConfig.from_pretrained(
            model_source(task, folder),
            local_files_only=is_offline(task),
            trust_remote_code=task.trust_remote_code,
        )
    except LOADING_ERRORS as error:
        raise UsageError(_cannot_load("configuration", task, folder, error)) from error
    return int(getattr(config.get_text_config(), "vocab_size", 0) or 0)


def prepare_model(
    model: Any,  # noqa: ANN401 - a PreTrainedModel
    task: CausalLMTask,
    *,
    rows: int = 0,
    new_tokens: Sequence[int] = (),
) -> torch.nn.Module:
    """Embedding, checkpointing and adapters in place, as the recipe asks. Raises UsageError.

    `rows`: at least so many in the embedding. `new_tokens`: whose rows are trained beside adapters.
    """
    if rows > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(rows)
    if task.activation_checkpointing:
        _checkpoint_activations(model)
    if task.method == "full":
        whole: torch.nn.Module = model
        return whole
    if task.activation_checkpointing:
        # Frozen embeddings give a first block whose input needs no gradient: nothing would be recomputed.
        model.enable_input_require_grads()
    return with_adapters(model, task, new_tokens)


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


def refuse_folder(task: CausalLMTask, folder: Path) -> None:
    """Raises UsageError for a directory that is no model, and for code that would run without being asked."""
    source = Path(model_source(task, folder))
    if not source.is_dir():
        return
    path = source / "config.json"
    if not path.is_file():
        adapter = (source / "adapter_config.json").is_file()
        message = f"task.model = {source} has no config.json, so it is not a model directory." + (
            " It holds an adapter; give the model that the adapter was trained on, or merge it first."
            if adapter
            else " Give the directory that save_pretrained wrote."
        )
        raise UsageError(message)
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        message = f"{path} cannot be read: {error}. Take the file from the model's source again."
        raise UsageError(message) from error
    if not isinstance(config, dict):
        message = f"{path} holds no table. Take the file from the model's source again."
        raise UsageError(message)
    own = config.get("auto_map") or {}
    known = config.get("model_type") in _transformers().models.auto.configuration_auto.CONFIG_MAPPING
    if own and not known and not task.trust_remote_code:
        files = sorted(
            {str(name).partition(".")[0] + ".py" for name in own.values() if isinstance(name, str)}
        )
        message = (
            f"task.model = {source} brings code of its own ({', '.join(files)}), which is not run unasked."
            " Read it, then set task.trust_remote_code = true; or choose a model that transformers knows."
        )
        raise UsageError(message)


def _cannot_load(what: str, task: CausalLMTask, folder: Path, error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".:")
    source = model_source(task, folder)
    reason, remedy = _why(what, task, str(error))
    if reason:
        return f"The {what} of task.model = {task.model} cannot be loaded: {reason}. {remedy}"
    if Path(source).is_dir():
        return f"The {what} in {source} cannot be loaded: {first}. Is the directory complete?"
    if is_offline(task):
        return (
            f"task.model = {task.model} is not a directory, and the hub may not be asked (offline),"
            " nor is it cached. Give a model directory, or turn offline off."
        )
    return (
        f"task.model = {task.model} is not a directory, and the {what} did not come from the hub: {first}."
        " Check the name and the connection, or give a model directory."
    )


def _why(what: str, task: CausalLMTask, said: str) -> tuple[str, str]:
    """What the library's longer messages mean, and the remedy; empty where its first line does."""
    version = _transformers().__version__
    if "does not recognize this architecture" in said or "not support your architecture" in said:
        kind = next(iter(re.findall(r"model type `([^`]+)`", said)), "its own")
        remedy = "Install a newer transformers, or choose another model."
        return f"transformers {version} does not know the architecture {kind}", remedy
    if "Unrecognized configuration class" in said and what == "model":
        kind = next(iter(re.findall(r"class '[\w.]*\.(\w+)Config'", said)), "This")
        return f"{kind} is not a causal language model", "Choose a model that continues text."
    if "trust_remote_code" in said or "execute the" in said:
        return (
            "it brings code of its own, which is not run unasked",
            "Read it, then set task.trust_remote_code = true; or choose a model that transformers knows.",
        )
    if "flash" in said.lower() and task.attention == "flash_attention_2":
        reason = "flash attention is not installed here, or the model has none of it"
        return reason, 'Set task.attention = "sdpa".'
    if "Weights only load failed" in said or "weights_only" in said:
        reason = "its weights are a pickle that holds more than weights, which is not opened"
        return reason, "Save the model as safetensors (save_pretrained) where you trust it."
    return "", ""


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
