"""LLaMA-Factory's first layout: its own arguments and TrainingArguments beside them."""

from __future__ import annotations

from typing import Final

from gradacc_gui.importing.key_reading import KeyReading, Program, RefusedError
from gradacc_gui.importing.key_rows import SUPERVISED_ONLY
from gradacc_gui.importing.llama_factory_keys import FACTORY_PROGRAM_ROWS, FACTORY_ROWS
from gradacc_gui.importing.model_keys import (
    leave_remote_code,
    put_attention,
    put_model,
    put_scale,
    put_targets,
    refuse_method,
    refuse_pictures,
)
from gradacc_gui.importing.sft_import import PACKED_ROWS
from gradacc_gui.importing.trainer_import import (
    put_updates,
    read_named_optimizers,
    read_order,
    read_precision,
    read_rhythm,
    read_run,
    read_steps,
)
from trainer_backend.config_check import show

FOUR_BIT: Final = 4


def refuse_stages(reading: KeyReading) -> None:
    """Raise RefusedError for every stage but supervised fine-tuning and pre-training."""
    stage = str(reading.value("stage")).lower()
    if stage not in ("sft", "pt"):
        refuse_method("stage", stage)
    for key in ("reward_model", "reward_funcs"):
        if reading.is_used(key):
            message = f"{key} = {show(reading.value(key))} belongs to training by reward. {SUPERVISED_ONLY}"
            raise RefusedError(message)
    if (template := reading.text("template")) is not None:
        refuse_pictures("template", template)


def _is_pretraining(reading: KeyReading) -> bool:
    return str(reading.value("stage")).lower() == "pt"


def _read_updates(reading: KeyReading) -> None:
    if reading.flag("use_muon"):
        put_updates(reading, "use_muon", "muon")
        reading.settle("optim", "use_muon counts instead.")
    else:
        put_updates(reading, "optim", str(reading.value("optim")))


def _read_precision(reading: KeyReading) -> None:
    if not reading.flag("pure_bf16"):
        read_precision(reading)
        return
    reading.put("run.precision", "bf16", "pure_bf16")
    reading.put("task.weights_dtype", "bf16", "pure_bf16")
    for key in ("bf16", "fp16"):
        reading.settle(key, "pure_bf16 counts instead.")
    reading.say("pure_bf16 updates weights in bf16. Here the optimizer keeps fp32 copies of them.")


def _read_model(reading: KeyReading) -> None:
    if (name := reading.text("model_name_or_path")) is not None:
        put_model(reading, "model_name_or_path", name)
    leave_remote_code(reading)
    if str(reading.given.get("flash_attn", "auto")) == "auto":
        reading.settle("flash_attn", "The kernels are chosen here too.")
    else:
        put_attention(reading, "flash_attn")
    if not any(reading.has(key) for key in ("activation_checkpointing", "gradient_checkpointing")):
        is_on = not reading.flag("disable_gradient_checkpointing")
        reading.put("task.activation_checkpointing", is_on, "disable_gradient_checkpointing")
    _read_tokens(reading)
    _read_method(reading)


def _read_tokens(reading: KeyReading) -> None:
    if reading.has("resize_vocab"):
        reading.put("task.resize_embedding", reading.flag("resize_vocab"), "resize_vocab")
    added = [*(reading.texts("add_tokens") or []), *(reading.texts("add_special_tokens") or [])]
    if added:
        reading.put("task.added_tokens", added, "add_tokens", "add_special_tokens")


def _read_method(reading: KeyReading) -> None:
    kind = str(reading.value("finetuning_type")).lower()
    bits = reading.whole("quantization_bit")
    if kind not in ("lora", "full"):
        method = "lora" if kind == "oft" else "full"
        other = {
            "freeze": "They train the last layers only. Here all weights train.",
            "oft": "They train rotations of the weights (OFT). Here it is LoRA.",
        }
        reading.put("task.method", method)
        words = other.get(kind, f"gradacc has no method {kind}. Here it is {method}.")
        reading.leave("finetuning_type", words, to="task.method")
        if method == "full":
            return
    elif kind == "full":
        reading.put("task.method", "full", "finetuning_type")
        return
    else:
        is_4bit = bits == FOUR_BIT
        reading.put("task.method", "qlora" if is_4bit else "lora", "finetuning_type")
        if is_4bit:
            reading.hold("quantization_bit", "task.method", "qlora loads the weights in 4 bits.")
    if bits not in (None, FOUR_BIT):
        words = f"They load the weights in {bits} bits. Here they are loaded as they were saved."
        reading.leave("quantization_bit", words)
    _read_quantization(reading)
    _read_adapters(reading)


def _read_quantization(reading: KeyReading) -> None:
    for key, ours in (("quantization_type", {"nf4"}), ("quantization_method", {"bnb", "bitsandbytes"})):
        name = str(reading.value(key)).lower()
        if reading.has("quantization_bit") and name not in ours:
            reading.leave(key, f"They quantize by {name}. Here it is nf4 by bitsandbytes.")


def _read_adapters(reading: KeyReading) -> None:
    rank = reading.whole("lora_rank") or 0
    if reading.number("lora_alpha"):
        put_scale(reading, "lora_rank", "lora_alpha", rank_stabilized="use_rslora")
    else:
        reading.put("task.lora_rank", rank, "lora_rank")
        reading.put("task.lora_alpha", 2 * rank, "lora_alpha", note="2 x rank")
        if reading.flag("use_rslora"):
            words = "Their scale is alpha / sqrt(rank). Here it is alpha / rank: give lora_alpha."
            reading.leave("use_rslora", words, to="task.lora_alpha")
    reading.put("task.lora_dropout", reading.number("lora_dropout"), "lora_dropout")
    put_targets(reading, "lora_target", reading.texts("lora_target"))
    if modules := reading.texts("additional_target"):
        reading.put("task.modules_to_save", modules, "additional_target")


def _read_rows(reading: KeyReading) -> None:
    reading.put("task.max_length", reading.whole("cutoff_len"), "cutoff_len")
    is_pt = _is_pretraining(reading)
    is_neat = bool(reading.flag("neat_packing"))
    is_packed = is_neat or bool(reading.flag("packing") if reading.has("packing") else is_pt)
    keys = ("neat_packing",) if is_neat and not reading.has("packing") else ("packing", "neat_packing")
    reading.put("task.layout", "packing" if is_packed else "padding", *keys)
    if is_packed:
        reading.say(PACKED_ROWS)
        if not is_neat:
            reading.say(
                "Without neat_packing, samples of a row see each other in their program. Here they do not."
            )
    reading.put("task.long", "split" if is_pt else "cut")
    if is_pt or reading.flag("train_on_prompt"):
        reading.put("task.train_on", "everything", *(("stage",) if is_pt else ("train_on_prompt",)))
    elif reading.flag("mask_history"):
        reading.put("task.train_on", "last", "mask_history")
    else:
        reading.put("task.train_on", "answers", "train_on_prompt")
    reading.settle("train_on_prompt", "Another key decides.")
    reading.hold("stage", "task.train_on", "Supervised fine-tuning is what this kind of task does.")
    if (template := reading.text("template")) is not None:
        reading.leave(
            "template",
            f"Their chat template {template} is built into their program. Here the tokenizer's own is used;"
            " set task.chat_template if they differ.",
        )
    if reading.flag("disable_shuffling"):
        reading.put("data.shuffle", False, "disable_shuffling")


def _read_purpose(reading: KeyReading) -> None:
    """Say where a file is not for training at all: their defaults would fill a whole recipe."""
    others = [key for key in ("export_dir", "infer_backend", "do_predict") if reading.is_used(key)]
    if others and not reading.flag("do_train") and not reading.is_used("num_train_epochs"):
        reading.say(
            f"{', '.join(others)}: this file is for using a model, not for training one. What it does not say"
            " about training is LLaMA-Factory's default."
        )


def _read_sets(reading: KeyReading) -> None:
    happen = read_rhythm(reading)
    names = reading.texts("dataset") or []
    key = "tokenized_path" if reading.text("tokenized_path") and not names else "dataset"
    if key == "tokenized_path":
        why = (
            f"tokenized_path = {show(reading.value(key))} holds tokens. Choose the text they were made from."
        )
        reading.ask("data.path", why, key, stand_in="path/to/data.jsonl")
    elif names:
        listed = ", ".join(names)
        why = f"dataset: {listed} is a name in their dataset_info.json. Choose the file behind it."
        if len(names) > 1:
            why = f"dataset: {listed} are names in their dataset_info.json. Choose the files (data.mix)."
        reading.ask("data.path", why, "dataset", stand_in="path/to/data.jsonl")
    if str(reading.value("mix_strategy")) != "concat" and len(names) > 1:
        reading.leave(
            "mix_strategy", "They take turns between the data sets. Here data.mix draws by weights."
        )
    _read_validation(reading, happen=happen)


def _read_validation(reading: KeyReading, *, happen: bool) -> None:
    size = reading.number("val_size") or 0.0
    others = reading.texts("eval_dataset") or []
    if others:
        reading.put("data.validation_fraction", 0.0)
        listed = ", ".join(others)
        why = f"eval_dataset: {listed} is a name in their dataset_info.json. Choose the file behind it."
        reading.ask("data.validation_path", why, "eval_dataset")
    elif size >= 1:
        why = (
            f"They hold out {size:g} samples. Here it is a share: {size:g} divided by the number of samples."
        )
        reading.ask("data.validation_fraction", why, "val_size", stand_in=0.05)
    else:
        reading.put("data.validation_fraction", size, "val_size")
        if happen and not size:
            reading.ask("data.validation_path", "They evaluate, but the file names no validation data.")


LLAMA_FACTORY: Final = Program(
    name="LLaMA-Factory",
    rows=FACTORY_PROGRAM_ROWS,
    readers=(
        refuse_stages,
        read_steps,
        _read_updates,
        _read_precision,
        read_run,
        read_order,
        _read_model,
        _read_rows,
        _read_sets,
        _read_purpose,
        read_named_optimizers,
    ),
    signs=frozenset(FACTORY_ROWS)
    - {
        "temperature",
        "top_p",
        "top_k",
        "do_sample",
        "num_beams",
        "max_new_tokens",
        "max_length",
        "streaming",
    },
)
