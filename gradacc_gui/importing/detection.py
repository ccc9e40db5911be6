"""Which trainer a file belongs to, and its import."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from gradacc_gui.importing.account import Account, Imported
from gradacc_gui.importing.fine_tuners import from_axolotl, from_llama_factory
from gradacc_gui.importing.launchers import from_accelerate, from_deepspeed
from gradacc_gui.importing.training_arguments import from_training_arguments
from trainer_backend.errors import UsageError

LARGEST_BYTES: Final = 1024 * 1024

Format = tuple[str, frozenset[str], Callable[[Account], Imported]]
FORMATS: Final[tuple[Format, ...]] = (
    (
        "DeepSpeed",
        frozenset({"train_micro_batch_size_per_gpu", "zero_optimization", "train_batch_size"}),
        from_deepspeed,
    ),
    ("accelerate", frozenset({"compute_environment", "distributed_type", "machine_rank"}), from_accelerate),
    ("Axolotl", frozenset({"base_model", "sequence_len", "val_set_size"}), from_axolotl),
    (
        "LLaMA-Factory",
        frozenset({"finetuning_type", "cutoff_len", "dataset_dir", "preprocessing_num_workers"}),
        from_llama_factory,
    ),
    (
        "transformers TrainingArguments",
        frozenset({"per_device_train_batch_size", "num_train_epochs", "output_dir", "warmup_ratio"}),
        from_training_arguments,
    ),
)
"""Name, keys of which one is enough to know it by, and what reads it; the first that fits is taken."""


def import_config(path: Path) -> Imported:
    """A recipe from a JSON or YAML file of another trainer. Raises UsageError."""
    given = _read(path)
    for _, signs, convert in FORMATS:
        if signs & given.keys():
            return convert(Account(given))
    names = ", ".join(name for name, _, _ in FORMATS)
    has = ", ".join(list(given)[:5]) or "no keys"
    has = ", ".join(list(given)[:5]) or "no keys"
    message = f"{path} is none of the formats known here ({names}). It has {has}."
    raise UsageError(message)


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            message = f"{path} is larger than 1 MiB; that is no configuration."
            raise UsageError(message)
        text = path.read_text("utf-8-sig")
        given = json.loads(text) if path.suffix.lower() == ".json" else yaml.safe_load(text)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}. Check the path."
        raise UsageError(message) from error
    except (UnicodeDecodeError, ValueError, yaml.YAMLError, RecursionError) as error:
        message = f"{path} is neither JSON nor YAML: {' '.join(str(error).split())}."
        raise UsageError(message) from error
    if not isinstance(given, dict):
        message = f"{path} holds no keys and values. Choose the configuration file itself."
        raise UsageError(message)
    return {str(key): value for key, value in given.items()}
