"""TRL's supervised fine-tuning, and recipes in the style of alignment-handbook, which are built on it."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final

from gradacc_gui.importing.key_reading import KeyReading, Program, RefusedError
from gradacc_gui.importing.key_rows import SUPERVISED_ONLY
from gradacc_gui.importing.model_keys import (
    leave_remote_code,
    put_attention,
    put_model,
    put_scale,
    put_targets,
)
from gradacc_gui.importing.sft_keys import (
    DATA_ROWS,
    HANDBOOK_ROWS,
    MODEL_ROWS,
    REFUSED_ROWS,
    SFT_PROGRAM_ROWS,
    SFT_ROWS,
)
from gradacc_gui.importing.trainer_import import (
    LONGEST,
    read_named_optimizers,
    read_order,
    read_precision,
    read_rhythm,
    read_run,
    read_steps,
    read_updates,
)
from trainer_backend.config_check import show

DTYPES: Final[dict[str, str]] = {"float32": "fp32", "bfloat16": "bf16", "auto": "auto"}
PEFT_TARGETS: Final = ("q_proj", "v_proj")
"""What peft takes for most models where no targets are given."""


def read_model(reading: KeyReading) -> None:
    """Model, its weights' type, adapters."""
    if (name := reading.text("model_name_or_path")) is not None:
        put_model(reading, "model_name_or_path", name)
    leave_remote_code(reading)
    key = "torch_dtype" if reading.has("torch_dtype") and not reading.has("dtype") else "dtype"
    # "auto" is a value of theirs here: as the model was saved.
    theirs = str(reading.given.get(key) or reading.rows[key].default)
    if theirs in DTYPES:
        reading.put("task.weights_dtype", DTYPES[theirs], key)
    else:
        reading.leave(key, f"They load the weights as {theirs}. Here they are loaded as they were saved.")
    if reading.flag("use_flash_attention_2"):
        reading.put("task.attention", "flash_attention_2", "use_flash_attention_2")
    elif reading.has("attn_implementation"):
        put_attention(reading, "attn_implementation")
    _read_adapters(reading)


def _read_adapters(reading: KeyReading) -> None:
    if not reading.flag("use_peft"):
        reading.put("task.method", "full", "use_peft")
        if reading.flag("load_in_4bit"):
            reading.leave(
                "load_in_4bit", "They load the weights in 4 bits. Here that needs adapters (qlora)."
            )
        return
    is_4bit = bool(reading.flag("load_in_4bit"))
    reading.put("task.method", "qlora" if is_4bit else "lora", "use_peft", "load_in_4bit")
    put_scale(reading, "lora_r", "lora_alpha", rank_stabilized="use_rslora")
    reading.put("task.lora_dropout", reading.number("lora_dropout"), "lora_dropout")
    names = reading.texts("lora_target_modules")
    if names:
        put_targets(reading, "lora_target_modules", names)
    else:
        reading.put("task.lora_targets", list(PEFT_TARGETS), "lora_target_modules")
        reading.say(
            "Without lora_target_modules, peft chooses by the model: q_proj and v_proj for most. Check"
            " task.lora_targets."
        )
    if modules := reading.texts("lora_modules_to_save"):
        reading.put("task.modules_to_save", modules, "lora_modules_to_save")


def read_rows(reading: KeyReading) -> None:
    """How long a row is, what it holds and what of it is learnt."""
    key = "max_seq_length" if reading.has("max_seq_length") else "max_length"
    length = reading.whole(key) if reading.given.get(key, 0) is not None else None
    if length is None:
        reading.put("task.max_length", LONGEST, key, note="they do not cut; this is a length hardly reached")
    else:
        reading.put("task.max_length", length, key)
    mode = str(reading.value("truncation_mode"))
    if mode == "keep_start":
        reading.put("task.long", "cut", "truncation_mode")
    else:
        words = (
            "They keep the end of what is too long. Here a text keeps its beginning, a conversation its end."
        )
        reading.put("task.long", "cut")
        reading.leave("truncation_mode", words, to="task.long")
    _read_packing(reading)
    _read_loss(reading)
    _read_template(reading)
    field = reading.text("dataset_text_field")
    if field and field != reading.rows["dataset_text_field"].default:
        reading.put("data.fields", {"text": field}, "dataset_text_field")


def _read_packing(reading: KeyReading) -> None:
    is_packed = bool(reading.flag("packing"))
    if reading.has("packing"):
        reading.put("task.layout", "packing" if is_packed else "padding", "packing")
    if not is_packed:
        return
    strategy = str(reading.value("packing_strategy"))
    if strategy == "wrapped":
        words = "They cut samples wherever a row is full. Here a row holds whole samples."
        reading.leave("packing_strategy", words)
    else:
        reading.settle("packing_strategy", "Best fit, as here.")
    reading.say(PACKED_ROWS)


PACKED_ROWS: Final = (
    "With packing, a row of task.max_length tokens holds several samples: micro-batch, warm-up and intervals"
    " count rows. Here samples of a row never see each other."
)


def _read_loss(reading: KeyReading) -> None:
    kind = reading.value("loss_type")
    kinds = [str(one) for one in kind] if isinstance(kind, list) else [str(kind)]
    if set(kinds) <= {"nll", "chunked_nll"}:
        reading.settle("loss_type", "The same cross-entropy.")
    elif kinds == ["dft"]:
        words = "They weigh each token's loss by its probability (DFT). Here tokens weigh the same."
        reading.leave("loss_type", words)
    else:
        message = f"loss_type = {show(kind)} is a loss on preference pairs. {SUPERVISED_ONLY}"
        raise RefusedError(message)
    keys = ("assistant_only_loss", "completion_only_loss")
    if any(reading.flag(key) for key in keys):
        reading.put("task.train_on", "answers", *keys)
        return
    reading.put("task.train_on", "everything", *reversed(keys))
    if not reading.has("completion_only_loss"):
        reading.say(
            "TRL trains on whole conversations and texts, and on completions only where the data has prompt"
            ' and completion. For such data set task.train_on = "answers".'
        )


def _read_template(reading: KeyReading) -> None:
    path = reading.text("chat_template_path")
    if path is not None and PurePath(path).suffix in (".jinja", ".jinja2"):
        reading.put("task.chat_template", path, "chat_template_path")
    elif path is not None:
        words = "They take the chat template of this tokenizer. Here it is the model's own, or a .jinja file."
        reading.leave("chat_template_path", words)
    if reading.text("chat_template") is not None:
        words = (
            "They use this chat template. Here the tokenizer's own is used: if theirs differs, save it as a"
            " .jinja file and set task.chat_template."
        )
        reading.leave("chat_template", words)


def read_sets(reading: KeyReading) -> None:
    """Data sets, by name, by weights or as a list, and what is held out."""
    happen = read_rhythm(reading)
    name = reading.text("dataset_name")
    for key in ("dataset_mixer", "dataset_mixture", "datasets"):
        if reading.is_used(key):
            _read_mixture(reading, key)
    if name is not None and "data.path" not in reading.values:
        subset = reading.text("dataset_config")
        whole = f"{name}:{subset}" if subset else name
        split = str(reading.value("dataset_train_split"))
        keys = [key for key in ("dataset_name", "dataset_config", "dataset_train_split") if reading.has(key)]
        reading.put("data.path", whole if split == "train" else f"{whole}#{split}", *keys)
        if happen:
            test = f"{whole}#{reading.value('dataset_test_split')}"
            reading.put("data.validation_path", test, "dataset_test_split")
    share = reading.number("test_split_size")
    if share is not None and 0 < share < 1:
        reading.put("data.validation_fraction", share, "test_split_size")
        return
    reading.put(
        "data.validation_fraction", 0.0, "eval_strategy", note="what they evaluate on is a split of its own"
    )
    if happen and "data.validation_path" not in reading.values:
        why = (
            "They evaluate on a split of its own: choose it, or hold out a share (data.validation_fraction)."
        )
        reading.ask("data.validation_path", why)


def _read_mixture(reading: KeyReading, key: str) -> None:
    """`{name: share}`, or a list of tables with id or path, and weight."""
    parts = _parts_of(reading, key)
    if not parts:
        reading.leave(key, "It names no data set that could be read here.")
        return
    splits = [str(split) for split in reading.texts("dataset_splits") or []]
    train = next((split for split in splits if split.startswith("train")), "train")
    if any("pref" in split for split in splits):
        message = f"dataset_splits = {show(splits)} are preference pairs. {SUPERVISED_ONLY}"
        raise RefusedError(message)
    paths = [
        (path if train == "train" or "#" in path else f"{path}#{train}", weight) for path, weight in parts
    ]
    reading.put("data.path", paths[0][0], key)
    if len(paths) > 1:
        mixed = [{"path": path, "weight": weight} for path, weight in paths]
        reading.put("data.mix", mixed)
        words = (
            f"They take a share of each of {len(paths)} data sets. Here an epoch draws from them by these"
            " weights, whatever their sizes."
        )
        reading.leave(key, words, to="data.mix")
    elif paths[0][1] != 1:
        words = f"They use {paths[0][1]:g} of this data set. Here the whole is used; shorten the file."
        reading.leave(key, words, to="data.path")
    test = next((split for split in splits if split.startswith(("test", "validation"))), None)
    if splits:
        reading.hold("dataset_splits", "data.path", "name#split")
    if test is not None and len(paths) == 1 and "evaluation.every_samples" in reading.values:
        reading.put("data.validation_path", f"{parts[0][0]}#{test}")


def _parts_of(reading: KeyReading, key: str) -> list[tuple[str, float]]:
    value: Any = reading.value(key)
    if isinstance(value, dict) and "datasets" in value:
        value = value["datasets"]
    if isinstance(value, dict):
        subsets = reading.texts("dataset_configs") or []
        names = [f"{name}:{subset}" for name, subset in zip(value, subsets, strict=False)]
        names += list(value)[len(names) :]
        if subsets:
            reading.hold("dataset_configs", "data.path", "name:subset")
        shares = [reading.as_number(f"{key}.{name}", share) or 1.0 for name, share in value.items()]
        return list(zip(names, shares, strict=True))
    parts: list[tuple[str, float]] = []
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, str):
            parts.append((entry, 1.0))
        elif isinstance(entry, dict) and isinstance(entry.get("id") or entry.get("path"), str):
            path = str(entry.get("id") or entry["path"])
            subset, split = entry.get("config") or entry.get("name"), entry.get("split")
            path += f":{subset}" if subset else ""
            path += f"#{split}" if split and split != "train" else ""
            parts.append((path, reading.as_number(f"{key}.weight", entry.get("weight", 1.0)) or 1.0))
    return parts


def read_tables(reading: KeyReading) -> None:
    """Arguments inside tables."""
    inner = reading.table("model_init_kwargs")
    left = set(inner) - {"torch_dtype", "dtype", "attn_implementation", "use_cache", "device_map", "revision"}
    if left:
        reading.leave(
            "model_init_kwargs", f"They load the model with {', '.join(sorted(left))}. Here without."
        )
    elif inner:
        reading.settle("model_init_kwargs", "Concerns memory and kernels.")


def _refuse_splits(reading: KeyReading) -> None:
    name = str(reading.value("dataset_train_split") or "")
    if "pref" in name:
        message = f"dataset_train_split = {show(name)} are preference pairs. {SUPERVISED_ONLY}"
        raise RefusedError(message)


def _read_precision(reading: KeyReading) -> None:
    if not reading.has("bf16") and not reading.flag("fp16"):
        reading.put("run.precision", "bf16", "bf16", note="where fp16 is off")
        reading.settle("fp16", "It is off.")
    else:
        read_precision(reading)


SFT: Final = Program(
    name="TRL (SFT)",
    rows=SFT_PROGRAM_ROWS,
    readers=(
        _refuse_splits,
        read_steps,
        read_updates,
        _read_precision,
        read_run,
        read_order,
        read_model,
        read_rows,
        read_sets,
        read_tables,
        read_named_optimizers,
    ),
    signs=frozenset(SFT_ROWS | MODEL_ROWS | DATA_ROWS | HANDBOOK_ROWS | REFUSED_ROWS)
    - {"streaming", "datasets", "dtype", "max_length", "delta", "epsilon"},
)
