"""Axolotl's YAML: the whole run of a language model."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final

from gradacc_gui.importing.axolotl_data import read_data
from gradacc_gui.importing.axolotl_keys import AXOLOTL_ROWS
from gradacc_gui.importing.key_reading import KeyReading, Program, RefusedError
from gradacc_gui.importing.key_rows import SUPERVISED_ONLY
from gradacc_gui.importing.length_keys import (
    EVALUATE,
    MICRO,
    STEPS,
    put_batch,
    put_every,
    put_length,
    put_saves,
)
from gradacc_gui.importing.model_keys import (
    leave_remote_code,
    put_attention,
    put_model,
    put_scale,
    refuse_method,
    refuse_pictures,
)
from gradacc_gui.importing.schedule_keys import TheirCurve, batch_of, put_warm_up
from gradacc_gui.importing.trainer_import import put_updates
from trainer_backend.config_check import show

SHARE: Final = 0.03
MOST_STEPS: Final = 100
"""Their warm-up where none is given: this share of the run, at most so many steps."""
LEAST_STEPS: Final = 2
"""What they make of a warm-up of one step."""


def _refuse(reading: KeyReading) -> None:
    if reading.is_used("rl"):
        refuse_method("rl", str(reading.value("rl")))
    inner = reading.table("trl")
    for key in ("reward_funcs", "beta"):
        if inner.get(key):
            what = "belongs to training by preference or reward"
            message = f"trl.{key} = {show(inner[key])} {what}. {SUPERVISED_ONLY}"
            raise RefusedError(message)
    reading.settle("trl", "Belongs to training by preference or reward, which is off.")
    if (template := reading.text("chat_template")) is not None:
        refuse_pictures("chat_template", template)


def _read_steps(reading: KeyReading) -> None:
    whole, micro = reading.whole("batch_size"), reading.whole("micro_batch_size")
    if whole and micro and not reading.has("gradient_accumulation_steps"):
        if not reading.put(MICRO, micro, "micro_batch_size"):
            reading.wrong("micro_batch_size", micro, "a whole number from 1")
        if not reading.put(STEPS, max(1, whole // micro), "batch_size", note=f"{whole} / {micro}"):
            reading.wrong("batch_size", whole, "a whole number from micro_batch_size")
    else:
        put_batch(reading, "micro_batch_size")
        reading.settle("batch_size", "The two other keys count.")
    put_length(reading, "num_epochs")


def _read_updates(reading: KeyReading) -> None:
    put_updates(reading, "optimizer", str(reading.value("optimizer")), scheduler="lr_scheduler")


def _read_rate(reading: KeyReading, curve: TheirCurve) -> None:
    least = reading.number("cosine_min_lr_ratio")
    if least is not None and curve.kind in ("cosine", "linear"):
        reading.put("schedule.final_ratio", least, "cosine_min_lr_ratio")
    reading.settle("cosine_min_lr_ratio", "Their schedule does not use it.")
    share, total = reading.number("cosine_constant_lr_ratio"), reading.values.get("run.max_optimizer_steps")
    if share and least is not None and total and 0 < share < 1:
        samples = round(total * share) * batch_of(reading)
        reading.put("schedule.samples", samples, "cosine_constant_lr_ratio", note="constant from here on")
    elif share and least is not None:
        why = f"Their rate reaches its end at {share:g} of the run: enter that many samples."
        reading.ask("schedule.samples", why, "cosine_constant_lr_ratio")


def _read_warm_up(reading: KeyReading, curve: TheirCurve) -> None:
    if reading.has("warmup_steps") or reading.has("warmup_ratio") or not curve.has_warm_up:
        put_warm_up(reading, curve)
        if curve.has_warm_up and reading.number("warmup_steps") == 1:
            samples = LEAST_STEPS * batch_of(reading)
            note = f"they make {LEAST_STEPS} steps of 1"
            reading.put("schedule.warmup_samples", samples, "warmup_steps", note=note)
        return
    total = reading.values.get("run.max_optimizer_steps")
    if total is None:
        reading.put("schedule.warmup_ratio", SHARE, "warmup_ratio")
        reading.say(
            f"The file gives no warm-up: theirs is {SHARE} of the run, at most {MOST_STEPS} steps. Here it is"
            f" schedule.warmup_ratio = {SHARE}; for more than {round(MOST_STEPS / SHARE):,} steps set"
            f" schedule.warmup_samples = {MOST_STEPS * batch_of(reading):,} instead."
        )
        return
    steps = min(int(SHARE * total), MOST_STEPS)
    steps = LEAST_STEPS if steps == 1 else steps
    reading.put(
        "schedule.warmup_samples",
        steps * batch_of(reading),
        "warmup_ratio",
        note=f"{steps} steps",
    )
    reading.say(
        f"The file gives no warm-up: theirs is {SHARE} of {total:,} steps, at most {MOST_STEPS}: {steps}."
    )


def _read_curve(reading: KeyReading) -> None:
    name = str(reading.value("lr_scheduler")).lower()
    curve = TheirCurve(
        reading.values["schedule.kind"], has_warm_up=name not in ("constant", "reduce_lr_on_plateau")
    )
    _read_rate(reading, curve)
    _read_warm_up(reading, curve)


def _read_precision(reading: KeyReading) -> None:
    asked: Any = reading.given.get("bf16", reading.rows["bf16"].default)
    half = bool(reading.flag("fp16") or reading.flag("float16"))
    others = ("bfloat16", "float16", "float32")
    if reading.flag("bfloat16") and not asked:
        reading.put("run.precision", "bf16", "bfloat16")
    elif asked == "auto" and not half:
        reading.put("run.precision", "bf16", "bf16", note="auto: bf16 where the device has it")
        reading.say(
            'bf16 is "auto" in their program: bf16 where the device has it, else fp16. Here run.precision ='
            ' "bf16"; set "fp16" for an older GPU.'
        )
    elif asked in (True, "full", "true"):
        reading.put("run.precision", "bf16", "bf16")
    elif half:
        reading.put("run.precision", "fp16", "fp16", "float16")
    else:
        reading.put("run.precision", "fp32", "bf16", "fp16", *others)
    for key in ("bf16", "fp16", *others):
        reading.settle(key, "It is off, or another key counts.")


def _read_run(reading: KeyReading) -> None:
    reading.put("run.seed", reading.whole("seed"), "seed")
    if (name := reading.text("wandb_name")) is not None:
        reading.put("run.name", name, "wandb_name")
    if reading.has("dataloader_num_workers"):
        reading.put("data.num_workers", reading.whole("dataloader_num_workers"), "dataloader_num_workers")
    if reading.has("torch_compile"):
        reading.put("run.compile", reading.flag("torch_compile"), "torch_compile")
    checkpointing = [
        key for key in ("gradient_checkpointing", "activation_offloading") if reading.is_used(key)
    ]
    reading.put(
        "task.activation_checkpointing", bool(checkpointing), *(checkpointing or ["gradient_checkpointing"])
    )


def _read_rhythm(reading: KeyReading) -> None:
    held = reading.number("val_set_size") or 0.0
    steps, key = reading.number("eval_steps"), "eval_steps"
    former = "evaluation_strategy" if reading.has("evaluation_strategy") else "eval_strategy"
    happen = bool(held or reading.is_used("test_datasets")) and str(reading.value(former)) != "no"
    times = reading.number("evals_per_epoch")
    if happen and times and not steps:
        why = f"They evaluate {times:g} times an epoch: enter the number of training samples / {times:g}."
        reading.ask(EVALUATE, why, "evals_per_epoch")
    elif happen and steps:
        put_every(reading, EVALUATE, steps, key, former)
    elif happen and str(reading.value(former)) == "epoch":
        reading.ask(
            EVALUATE, "They evaluate after every epoch: enter the number of training samples.", former
        )
    for name in ("eval_steps", "evals_per_epoch", "eval_strategy", "evaluation_strategy"):
        reading.settle(name, "No evaluations, or another key counts.")
    if not reading.has("save_steps") and reading.number("saves_per_epoch"):
        reading.settle("saves_per_epoch", "gradacc saves every 10 minutes, at a stop and at the end.")
    strategy = "steps" if reading.has("save_steps") else str(reading.value("save_strategy"))
    put_saves(reading, strategy=strategy, keep=4)


def _read_model(reading: KeyReading) -> None:
    if (name := reading.text("base_model")) is not None:
        put_model(reading, "base_model", name)
    leave_remote_code(reading)
    kernels = {
        "flash_attention": "flash_attention_2",
        "sdp_attention": "sdpa",
        "eager_attention": "eager",
    }
    chosen = next((key for key in kernels if reading.flag(key)), None)
    if reading.has("attn_implementation"):
        put_attention(reading, "attn_implementation")
    elif chosen is not None:
        reading.put("task.attention", kernels[chosen], chosen)
    if isinstance(reading.value("tokens"), dict):  # an older form of special_tokens
        reading.leave("tokens", "They set or add these special tokens. Here the tokenizer's own are used.")
    elif added := reading.texts("tokens"):
        reading.put("task.added_tokens", added, "tokens")
    _read_template(reading)
    _read_adapters(reading)


def _read_template(reading: KeyReading) -> None:
    name, path = reading.text("chat_template"), reading.text("chat_template_jinja")
    if path is not None and PurePath(path).suffix in (".jinja", ".jinja2"):
        reading.put("task.chat_template", path, "chat_template_jinja")
    elif path is not None:
        words = "They use this chat template. Here save it as a .jinja file and set task.chat_template."
        reading.leave("chat_template_jinja", words)
    if name is None or name == "jinja":
        return
    if name.startswith("tokenizer_default"):
        reading.hold("chat_template", "task.chat_template", "The tokenizer's own, as here.")
        return
    reading.leave(
        "chat_template",
        f"They write conversations by a template called {name}, which is built into their program. Here it is"
        " the tokenizer's own; set task.chat_template if they differ.",
    )


def _read_adapters(reading: KeyReading) -> None:
    kind = reading.text("adapter")
    if kind is None:
        reading.put("task.method", "full", "adapter")
        for key in ("load_in_4bit", "load_in_8bit"):
            if reading.flag(key):
                reading.leave(key, "They quantize the weights. Here that needs adapters (qlora).")
        return
    is_4bit = kind == "qlora" or bool(reading.flag("load_in_4bit"))
    if kind in ("lora", "qlora"):
        reading.put("task.method", "qlora" if is_4bit else "lora", "adapter", "load_in_4bit")
    else:
        reading.put("task.method", "lora")
        reading.leave("adapter", f"gradacc has no method {kind}. Here it is lora.", to="task.method")
    if reading.flag("load_in_8bit") and not is_4bit:
        words = "They load the weights in 8 bits. Here they are loaded as they were saved."
        reading.leave("load_in_8bit", words)
    _read_numbers(reading)
    _read_targets(reading)


def _read_numbers(reading: KeyReading) -> None:
    missing = [key for key in ("lora_r", "lora_alpha") if not reading.has(key)]
    if not missing:
        put_scale(reading, "lora_r", "lora_alpha", rank_stabilized="peft_use_rslora")
    for key in missing:
        to = "task.lora_rank" if key == "lora_r" else "task.lora_alpha"
        reading.ask(to, f"The file gives no {key}.", stand_in=16)
    for key, to in (("lora_r", "task.lora_rank"), ("lora_alpha", "task.lora_alpha")):
        if missing and key not in missing:
            reading.put(to, reading.whole(key), key)
    reading.put("task.lora_dropout", reading.number("lora_dropout"), "lora_dropout")
    if modules := reading.texts("lora_modules_to_save"):
        reading.put("task.modules_to_save", modules, "lora_modules_to_save")


def _read_targets(reading: KeyReading) -> None:
    given: Any = reading.value("lora_target_modules")
    # A text is one regular expression, commas and all.
    names = (
        [given] if isinstance(given, str) and given.strip() else reading.texts("lora_target_modules") or []
    )
    if reading.flag("lora_target_linear"):
        reading.hold(
            "lora_target_linear",
            "task.lora_targets",
            "Every linear layer but the head, as here without a list.",
        )
        extra = "Every linear layer has adapters already."
        reading.settle("lora_target_modules", extra)
    elif names:
        reading.put("task.lora_targets", names, "lora_target_modules")
    else:
        reading.say(
            "The file names no modules for adapters, which their program refuses. Here every linear layer but"
            " the head gets them."
        )


def _read_plugins(reading: KeyReading) -> None:
    names = reading.texts("plugins") or []
    kernels = ("liger", "cut_cross_entropy", "kernels", "lm_eval", "swanlab", "llm_compressor", "densemixer")
    others = [name for name in names if not any(word in name for word in kernels)]
    if others:
        reading.leave("plugins", f"They load {', '.join(others)}. Here there are no such plug-ins.")
    reading.settle("plugins", "Kernels and reports; the result is the same but for rounding.")


AXOLOTL: Final = Program(
    name="Axolotl",
    rows=AXOLOTL_ROWS,
    readers=(
        _refuse,
        _read_steps,
        _read_updates,
        _read_curve,
        _read_precision,
        _read_run,
        _read_model,
        read_data,
        _read_rhythm,
        _read_plugins,
    ),
    signs=frozenset(
        {"base_model", "sequence_len", "val_set_size", "datasets", "adapter", "sample_packing", "num_epochs"}
    ),
)
