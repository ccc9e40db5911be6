"""LLaMA-Factory's second layout (v1): arguments of its own, and tables that name a plug-in."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from gradacc_gui.importing.key_reading import KeyReading, Program, RefusedError
from gradacc_gui.importing.key_rows import SUPERVISED_ONLY, KeyRows, changes, harmless, read
from gradacc_gui.importing.length_keys import MICRO, STEPS, put_every, put_length
from gradacc_gui.importing.model_keys import (
    EVERY_LINEAR,
    leave_remote_code,
    put_alpha,
    put_attention,
    put_model,
)
from gradacc_gui.importing.optimizer_keys import put_clipping, put_optimizer
from gradacc_gui.importing.sft_import import PACKED_ROWS
from trainer_backend.config_check import show

V1_ROWS: Final[KeyRows] = (
    read(
        model="Qwen/Qwen3-4B-Instruct-2507",
        model_class="llm",
        trust_remote_code=False,
        flash_attn="sdpa",
        peft_config=None,
        quant_config=None,
        init_config=None,
        custom_chat_template=None,
        train_dataset=None,
        eval_dataset=None,
        micro_batch_size=1,
        global_batch_size=None,
        cutoff_len=2048,
        learning_rate=1e-4,
        num_train_epochs=3,
        max_steps=None,
        max_grad_norm=1.0,
        bf16=True,
        batching_strategy="normal",
        enable_activation_checkpointing=True,
        optim_config=None,
        lr_scheduler_config=None,
        seed=42,
        full_determinism=False,
        save_steps=None,
        save_epochs=None,
        save_total_limit=None,
        pref_loss=None,
    )
    | changes(
        "They continue from this checkpoint. Here the run starts from the model.", resume_from_checkpoint=None
    )
    | harmless(
        "Concerns speed, devices or what is logged; the result is the same but for rounding.",
        output_dir=None,
        kernel_config=None,
        batching_workers=16,
        dist_config=None,
        dp_size=None,
        cp_size=1,
        cp_mode="ulysses",
        mp_replicate_size=1,
        mp_shard_size=None,
        dist_timeout=18000,
        save_ckpt_as_hf=False,
        logging_steps=1,
        sample_backend="hf",
        max_new_tokens=128,
    )
    | harmless(
        "Belongs to preference tuning, which this file does not ask for.",
        pref_beta=0.1,
        pref_ftx=0.0,
        simpo_gamma=0.5,
        dpo_label_smoothing=0.0,
        ld_alpha=None,
    )
)
ADAPTER: Final[dict[str, Any]] = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": "all"}
"""What their plug-in `lora` takes where its table does not say."""


PAIRS: Final = ("dpo", "orpo", "simpo", "kto", "preference", "pairwise")
OTHER_DATA: Final = re.compile(
    rf"(?:^|[^a-z])({'|'.join(PAIRS)}|multimodal|vision|images?)(?![a-z])", re.IGNORECASE
)
"""This layout does not name what is trained: only the name of its data may."""


def plug_in(reading: KeyReading, key: str) -> dict[str, Any]:
    """A table that names a plug-in, also as JSON in a text. Raises UsageError."""
    value = reading.value(key)
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            reading.wrong(key, value, "keys and values")
    if not value:
        return {}
    return value if isinstance(value, dict) else reading.wrong(key, value, "keys and values")


def _refuse(reading: KeyReading) -> None:
    if reading.has("pref_loss"):
        message = (
            f"pref_loss = {show(reading.value('pref_loss'))} is a loss on preference pairs. {SUPERVISED_ONLY}"
        )
        raise RefusedError(message)
    kind = str(reading.value("model_class")).lower()
    if kind != "llm":
        message = f"model_class = {show(kind)} is no language model. {SUPERVISED_ONLY}"
        raise RefusedError(message)
    reading.settle("model_class", "A language model, as here.")
    if (name := reading.text("train_dataset")) is not None and (found := OTHER_DATA.search(name)):
        what = "preference pairs" if found[1].lower() in PAIRS else "pictures (images) beside text"
        message = f"train_dataset = {show(name)} is, by its name, data of {what}. {SUPERVISED_ONLY}"
        raise RefusedError(message)
    reading.say(
        "This layout does not name the kind of training: it is read as supervised fine-tuning, not DPO."
    )


def _read_batch(reading: KeyReading) -> None:
    micro = reading.whole("micro_batch_size") or 1
    reading.put(MICRO, micro, "micro_batch_size")
    whole = reading.whole("global_batch_size")
    if whole is None:
        reading.put(STEPS, 1, "global_batch_size", note="one micro-batch a step")
    elif whole > 0 and micro > 0 and whole % micro == 0:
        reading.put(STEPS, whole // micro, "global_batch_size", note=f"{whole} / {micro}, on one device")
    else:
        reading.wrong("global_batch_size", whole, f"a multiple of micro_batch_size = {micro}")
    put_length(reading, "num_train_epochs")


def _read_updates(reading: KeyReading) -> None:
    given = plug_in(reading, "optim_config")
    reading.put("optimizer.learning_rate", reading.number("learning_rate"), "learning_rate")
    if not given:
        # torch's AdamW as it comes.
        reading.put("optimizer.name", "adamw", "optim_config")
        reading.put("optimizer.weight_decay", 0.01, "optim_config", note="torch's default for AdamW")
        reading.put("optimizer.betas", [0.9, 0.999], "optim_config")
        reading.put("optimizer.eps", 1e-8, "optim_config")
    else:
        put_optimizer(reading, "optim_config", str(given.get("name")))
        decay = reading.as_number("optim_config.wd", given.get("wd", 0.1))
        reading.put("optimizer.weight_decay", decay, "optim_config")
        reading.put("optimizer.betas", given.get("adamw_betas", [0.9, 0.95]), "optim_config")
        reading.put(
            "optimizer.eps", reading.as_number("optim_config.adamw_eps", given.get("adamw_eps", 1e-8))
        )
    put_clipping(reading)
    if plug_in(reading, "lr_scheduler_config"):
        reading.leave("lr_scheduler_config", "They use a schedule of a plug-in. Here the rate is constant.")
    reading.put("schedule.kind", "constant", "lr_scheduler_config")


def _read_run(reading: KeyReading) -> None:
    reading.put("run.precision", "bf16" if reading.flag("bf16") else "fp32", "bf16")
    reading.put("run.seed", reading.whole("seed"), "seed")
    if reading.has("full_determinism"):
        reading.put("run.deterministic", reading.flag("full_determinism"), "full_determinism")
    key = "enable_activation_checkpointing"
    reading.put("task.activation_checkpointing", reading.flag(key), key)
    every = reading.number("save_steps")
    if every:
        put_every(reading, "checkpoint.every_samples", every, "save_steps")
    reading.settle("save_steps", "gradacc saves every 10 minutes, at a stop and at the end.")
    reading.settle("save_epochs", "gradacc saves every 10 minutes, at a stop and at the end.")
    if reading.has("save_total_limit"):
        reading.put("checkpoint.keep", reading.whole("save_total_limit"), "save_total_limit")


def _read_model(reading: KeyReading) -> None:
    put_model(reading, "model", reading.text("model") or "")
    leave_remote_code(reading)
    put_attention(reading, "flash_attn")
    if (template := reading.text("custom_chat_template")) is not None:
        words = "They use this chat template. Here save it as a .jinja file and set task.chat_template."
        reading.leave("custom_chat_template", words if template else "")
    init = plug_in(reading, "init_config").get("name", "init_on_default")
    if init in ("init_on_default", "init_on_meta", "init_on_rank0"):
        reading.settle("init_config", "Where the weights are loaded first.")
    else:
        reading.leave("init_config", f"They load the model by {init}. Here it is loaded as it was saved.")
    _read_adapters(reading)


def _read_adapters(reading: KeyReading) -> None:
    given = plug_in(reading, "peft_config")
    quantized = plug_in(reading, "quant_config")
    name = given.get("name", "full")
    if name not in ("lora", "full"):
        reading.put("task.method", "full")
        reading.leave(
            "peft_config", f"They train some layers only ({name}). Here all weights train.", to="task.method"
        )
        return
    bits = reading.as_number(
        "quant_config.quantization_bit", quantized.get("quantization_bit", 4 if quantized else None)
    )
    method = "full" if name == "full" else "qlora" if bits == 4 else "lora"
    reading.put("task.method", method, "peft_config")
    if method == "qlora":
        reading.hold("quant_config", "task.method", "qlora loads the weights in 4 bits.")
    elif quantized:
        reading.leave("quant_config", "They quantize the weights. Here they are loaded as they were saved.")
    if method != "full":
        _read_adapter_numbers(reading, ADAPTER | given)


def _read_adapter_numbers(reading: KeyReading, table: dict[str, Any]) -> None:
    key = "peft_config"
    rank = reading.as_number(f"{key}.r", table["r"])
    reading.put("task.lora_rank", int(rank) if rank else rank, key)
    put_alpha(reading, key, reading.as_number(f"{key}.lora_alpha", table["lora_alpha"]) or 0.0)
    reading.put("task.lora_dropout", reading.as_number(f"{key}.lora_dropout", table["lora_dropout"]), key)
    targets = reading.as_texts(f"{key}.target_modules", table["target_modules"]) or []
    if targets and not set(targets) & EVERY_LINEAR:
        reading.put("task.lora_targets", targets, key)
    if modules := reading.as_texts(f"{key}.modules_to_save", table.get("modules_to_save")):
        reading.put("task.modules_to_save", modules, key)
    others = {"use_rslora": "scale adapters by sqrt(rank)", "use_dora": "use DoRA"}
    others |= {"adapter_name_or_path": "continue with given adapters"}
    used = [words for name, words in others.items() if table.get(name)]
    if used:
        reading.leave(
            key, f"They {' and '.join(used)}. Here new adapters of plain LoRA train.", to="task.method"
        )


def _read_data(reading: KeyReading) -> None:
    reading.put("task.max_length", reading.whole("cutoff_len"), "cutoff_len")
    reading.put("task.long", "cut")
    reading.put("task.train_on", "answers")
    strategy = str(reading.value("batching_strategy"))
    is_packed = "padding_free" in strategy
    reading.put("task.layout", "packing" if is_packed else "padding", "batching_strategy")
    if is_packed:
        reading.say(PACKED_ROWS)
    if "dynamic" in strategy:
        words = "They fill micro-batches by tokens. Here they count samples, unless task.token_budget is set."
        reading.leave("batching_strategy", words, to="task.layout")
    name = reading.text("train_dataset")
    if name is not None and name.lower().endswith((".yaml", ".yml")):
        why = f"train_dataset: {name} lists their data sets. Choose the file that is named there."
        reading.ask("data.path", why, "train_dataset", stand_in="path/to/data.jsonl")
    elif name is not None:
        reading.put("data.path", name, "train_dataset")
    reading.put("data.validation_fraction", 0.0, "eval_dataset")
    if (other := reading.text("eval_dataset")) is not None:
        reading.ask(
            "data.validation_path",
            f"eval_dataset: {other} lists their data sets. Choose the file.",
            "eval_dataset",
        )


LLAMA_FACTORY_V1: Final = Program(
    name="LLaMA-Factory (v1)",
    rows=V1_ROWS,
    readers=(_refuse, _read_batch, _read_updates, _read_run, _read_model, _read_data),
    signs=frozenset(
        {"model_class", "peft_config", "train_dataset", "sample_backend", "dist_config", "batching_strategy"}
    ),
)
