"""DeepSpeed's JSON, also inside accelerate's file. "auto" is what transformers' Trainer fills in."""

from __future__ import annotations

from typing import Any, Final

from gradacc_gui.importing.key_reading import AUTO, KeyReading, Program
from gradacc_gui.importing.key_rows import KeyRows, changes, harmless, read
from gradacc_gui.importing.length_keys import MICRO, STEPS
from gradacc_gui.importing.schedule_keys import batch_of
from gradacc_gui.importing.trainer_keys import FIELD_ROWS
from trainer_backend.errors import UsageError
from trainer_backend.optimizer_table import OPTIMIZERS

DEEPSPEED_ROWS: Final[KeyRows] = (
    read(
        train_batch_size=None,
        train_micro_batch_size_per_gpu=None,
        gradient_accumulation_steps=None,
        gradient_clipping=1.0,
        optimizer=None,
        scheduler=None,
        bf16=None,
        bfloat16=None,
        fp16=None,
        amp=None,
        torch_autocast=None,
        seed=None,
    )
    | changes(
        "They begin with short samples (curriculum). Here the order is random.", curriculum_learning=None
    )
    | changes("They sample and route data so. Here each sample counts alike.", data_efficiency=None)
    | changes(
        "They compress the model while it trains. Here it stays as it is.",
        compression_training=None,
        quantize_training=None,
    )
    | changes("They leave out layers on the way. Here all layers train.", progressive_layer_drop=None)
    | changes("They attend to some tokens only. Here to all earlier ones.", sparse_attention=None)
    | changes("They choose the batch by the number of devices. Here it is fixed.", elasticity=None)
    | harmless(
        "Concerns how state and work are spread over devices.",
        """
        zero_optimization zero_allow_untested_optimizer zero_force_ds_cpu_optimizer communication_data_type
        prescale_gradients gradient_predivide_factor sparse_gradients seq_parallel_communication_data_type
        disable_allgather communications pipeline tensor_parallel sequence_parallel mics_shard_size
        use_data_before_expert_parallelism hybrid_engine inference
        """,
    )
    | harmless(
        "Concerns speed, memory or what is logged; the result is the same but for rounding.",
        """
        _comment comms_config monitor_config
        activation_checkpointing aio autotuning checkpoint comms_logger comet csv_monitor wandb tensorboard
        data_types grad_accum_dtype dump_state flops_profiler memory_breakdown wall_clock_breakdown
        steps_per_print timers eigenvalue nebula compile dataloader_drop_last load_universal_checkpoint
        checkpoint_tag_validation graph_harvesting weight_quantization zenflow torch_profiler
        """,
    )
)
NAMES: Final[dict[str, str]] = {
    "adam": "adamw",
    "adamw": "adamw",
    "cpuadam": "adamw",
    "fusedadam": "adamw",
    "sgd": "sgd",
    "lamb": "lamb",
    "lion": "lion",
    "muon": "muon",
}
"""Their optimizers by ours. Their Adam decays as AdamW does unless adam_w_mode is false."""
KINDS_OF_SCHEDULE: Final[dict[str, str]] = {
    "WarmupLR": "constant",
    "WarmupDecayLR": "linear",
    "WarmupCosineLR": "cosine",
}
WARM_UP_STEPS: Final = 1000
LEAST_WARM_UP: Final = 2
"""Steps that they make of a shorter warm-up."""
DECAY_PEAK: Final = 1e-3
"""The peak of WarmupDecayLR where none is given, whatever the optimizer's rate is."""


def trainers(field: str) -> Any:  # noqa: ANN401 - YAML
    """The default of transformers' Trainer, which "auto" takes."""
    return FIELD_ROWS[field].default


def is_auto(reading: KeyReading, key: str) -> bool:
    """Whether a key of the file is "auto"."""
    return reading.given.get(key) == AUTO


def batch_equation(total: Any, micro: Any, steps: Any) -> tuple[int, int, int]:  # noqa: ANN401 - JSON
    """(micro-batch, N, world) from what is given of total = micro x N x world. Raises UsageError."""
    given = {"train_batch_size": total, "micro-batch": micro, "N": steps}
    for name, value in given.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            message = f"{name} = {value!r} is not a whole number from 1. Correct it in the file."
            raise UsageError(message)
    if total is None:
        return micro or 1, steps or 1, 1
    if micro is None and steps is None:
        return total, 1, 1
    if micro is None or steps is None:
        known = micro or steps
        if total % known:
            message = f"train_batch_size = {total} is not a multiple of {known}. Correct the file."
            raise UsageError(message)
        rest = total // known
        return (known, rest, 1) if steps is None else (rest, known, 1)
    if total % (micro * steps):
        message = (
            f"train_batch_size = {total} is not micro-batch {micro} x N {steps} x a number of devices."
            " One of the three is wrong: correct the file."
        )
        raise UsageError(message)
    return micro, steps, total // (micro * steps)


def _read_batch(reading: KeyReading) -> None:
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    given: list[Any] = [reading.given.get(key) if reading.has(key) else None for key in keys]
    automatic = [key for key in keys if is_auto(reading, key)]
    if automatic and given[1] is None and given[0] is None:
        given[1] = trainers("per_device_train_batch_size")
    if automatic and given[2] is None and given[0] is None:
        given[2] = trainers("gradient_accumulation_steps")
    micro, steps, world = batch_equation(*given)
    spread = f"x {world} devices, so that the effective batch of {micro * steps * world} stays on one"
    notes = dict.fromkeys(automatic, "auto: their Trainer's default")
    reading.put(MICRO, micro, keys[1], note=notes.get(keys[1], ""))
    reading.put(STEPS, steps * world, keys[2], note=spread if world > 1 else notes.get(keys[2], ""))
    reading.hold(keys[0], MICRO, f"{micro} x {steps} x {world} = {micro * steps * world}, checked")
    if automatic:
        reading.say(
            f'{", ".join(automatic)}: "auto" is filled in by the script that starts the run. Here it is the'
            f" Trainer's default: micro-batch {micro}, N {steps * world}. Change it if the script differs."
        )
    reading.ask("run.epochs", "The file does not say how long to train.", stand_in=1)


def _number(reading: KeyReading, key: str, value: Any, field: str, default: float) -> float:  # noqa: ANN401
    """A number inside a table: given, "auto" (the Trainer's), or DeepSpeed's own default."""
    if value == AUTO:
        return float(trainers(field))
    number = reading.as_number(key, value)
    return default if number is None else number


def _read_optimizer(reading: KeyReading) -> None:
    table = reading.table("optimizer")
    if not table:
        reading.ask(
            "optimizer.learning_rate",
            "The file names no optimizer.",
            "optimizer",
            stand_in=trainers("learning_rate"),
        )
        reading.put("optimizer.name", "adamw", "optimizer", note="the Trainer's default")
        reading.put("optimizer.betas", [trainers("adam_beta1"), trainers("adam_beta2")])
        return
    name = str(table.get("type", "AdamW"))
    params = table.get("params") if isinstance(table.get("params"), dict) else {}
    assert isinstance(params, dict)
    ours = NAMES.get(name.lower(), "adamw")
    reading.put("optimizer.name", ours, "optimizer")
    numbers = {
        "learning_rate": _number(reading, "optimizer.params.lr", params.get("lr"), "learning_rate", 1e-3),
        "weight_decay": _number(
            reading, "optimizer.params.weight_decay", params.get("weight_decay"), "weight_decay", 0.0
        ),
    }
    if "eps" in OPTIMIZERS[ours].keys:
        numbers["eps"] = _number(reading, "optimizer.params.eps", params.get("eps"), "adam_epsilon", 1e-8)
    for key, value in numbers.items():
        reading.put(f"optimizer.{key}", value, "optimizer")
    if "betas" in OPTIMIZERS[ours].keys:
        reading.put("optimizer.betas", _betas(reading, params.get("betas")), "optimizer")
    if "momentum" in params and ours == "sgd":
        reading.put("optimizer.momentum", reading.as_number("optimizer.params.momentum", params["momentum"]))
    if name.lower() not in NAMES:
        words = f"They use {name}, which gradacc does not have. Here it is AdamW with these numbers."
        reading.leave("optimizer", words, to="optimizer.name")
    elif name.lower() == "adam" and params.get("adam_w_mode") is False:
        words = "Their Adam adds decay to the gradient. Here AdamW takes it from the weights."
        reading.leave("optimizer", words, to="optimizer.name")
    if any(value == AUTO for value in params.values()):
        reading.say('"auto" in optimizer is filled in by the script. Here it is the Trainer\'s default.')


def _betas(reading: KeyReading, given: Any) -> list[float | None]:  # noqa: ANN401 - JSON
    if given == AUTO or given is None:
        return [trainers("adam_beta1"), trainers("adam_beta2")]
    if not isinstance(given, list) or len(given) != 2:
        reading.wrong("optimizer.params.betas", given, "a list of two numbers")
    return [reading.as_number("optimizer.params.betas", one) for one in given]


def _read_schedule(reading: KeyReading) -> None:
    table = reading.table("scheduler")
    if not table:
        reading.put("schedule.kind", "constant", "scheduler")
        return
    name = str(table.get("type"))
    given = table.get("params") if isinstance(table.get("params"), dict) else {}
    assert isinstance(given, dict)
    automatic = [key for key, value in given.items() if value == AUTO]
    params = {key: value for key, value in given.items() if value not in (AUTO, None)}
    kind = KINDS_OF_SCHEDULE.get(name, "constant")
    reading.put("schedule.kind", kind, "scheduler")
    if name not in KINDS_OF_SCHEDULE:
        words = f"They use the schedule {name}, which gradacc does not have. Here the rate is constant."
        reading.leave("scheduler", words, to="schedule.kind")
        return
    if kind == "linear":
        reading.put("schedule.final_ratio", 0.0)
    if kind == "cosine":
        final = reading.as_number("scheduler.params.cos_min_ratio", params.get("cos_min_ratio", 1e-4))
        reading.put("schedule.final_ratio", final)
    if name == "WarmupDecayLR" and "warmup_max_lr" not in given:
        params["warmup_max_lr"] = DECAY_PEAK
    _read_peak(reading, params)
    _read_lengths(reading, params, automatic)
    if automatic:
        listed = ", ".join(automatic)
        reading.say(
            f'{listed} in scheduler: "auto" is filled in by the script. Here it is the Trainer\'s default.'
        )
    if params.get("warmup_type", "log") == "log" and reading.values.get("schedule.warmup_samples"):
        words = "Their warm-up rises with the logarithm of the step (warmup_type log). Here it is a line."
        reading.leave("scheduler", words, to="schedule.kind")


def _read_peak(reading: KeyReading, params: dict[str, Any]) -> None:
    peak = reading.as_number("scheduler.params.warmup_max_lr", params.get("warmup_max_lr"))
    if peak is not None:
        reading.put("optimizer.learning_rate", peak)
    least = reading.as_number("scheduler.params.warmup_min_lr", params.get("warmup_min_lr"))
    rate = reading.values.get("optimizer.learning_rate")
    if least is None and "warmup_min_ratio" in params:
        ratio = reading.as_number("scheduler.params.warmup_min_ratio", params["warmup_min_ratio"])
        reading.put("schedule.warmup_from_ratio", ratio)
    elif least and rate:
        reading.put("schedule.warmup_from_ratio", least / rate)


def _read_lengths(reading: KeyReading, params: dict[str, Any], automatic: list[str]) -> None:
    key = "scheduler.params.warmup_num_steps"
    default = 0 if "warmup_num_steps" in automatic else WARM_UP_STEPS
    warm_up = reading.as_number(key, params.get("warmup_num_steps", default)) or 0
    steps = max(int(warm_up), LEAST_WARM_UP) if warm_up else 0
    reading.put("schedule.warmup_samples", steps * batch_of(reading), "scheduler")
    total = reading.as_number("scheduler.params.total_num_steps", params.get("total_num_steps"))
    if total:
        reading.values.pop("run.epochs", None)
        reading.forget("run.epochs")
        reading.put("run.max_optimizer_steps", int(total))
    elif reading.values["schedule.kind"] != "constant" and "total_num_steps" not in automatic:
        reading.say("total_num_steps is missing: the rate falls until the end of the run.")


def _read_precision(reading: KeyReading) -> None:
    chosen = None
    for key in ("bf16", "bfloat16", "fp16", "amp"):
        table = reading.value(key)
        is_on = table.get("enabled") if isinstance(table, dict) else table
        if is_on in (True, "true"):
            chosen = chosen or key
        elif is_on == AUTO:
            reading.say(
                f'{key}: "auto" is filled in by the script. Here it is off; set run.precision if it is not.'
            )
    cast = reading.value("torch_autocast")
    if chosen is None and isinstance(cast, dict) and cast.get("enabled") is True:
        chosen = "torch_autocast"
        precision = (
            "fp16" if "16" in str(cast.get("dtype")) and "bf" not in str(cast.get("dtype")) else "bf16"
        )
    else:
        precision = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "amp": "fp16"}.get(
            chosen or "", "fp32"
        )
    others = [key for key in ("bf16", "bfloat16", "fp16", "amp", "torch_autocast") if key in reading.given]
    reading.put("run.precision", precision, *([chosen] if chosen else others or ["bf16"]))
    for key in others:
        reading.settle(key, "It is off.")


def _read_rest(reading: KeyReading) -> None:
    if is_auto(reading, "gradient_clipping"):
        reading.put(
            "optimizer.max_grad_norm",
            trainers("max_grad_norm"),
            "gradient_clipping",
            note="auto: their Trainer's default",
        )
    elif clip := reading.number("gradient_clipping"):
        reading.put("optimizer.max_grad_norm", clip, "gradient_clipping")
        if not reading.has("gradient_clipping"):
            reading.say(
                "The file says nothing of clipping: DeepSpeed clips at 1.0 since version 0.19.3, and not at"
                " all before. Leave optimizer.max_grad_norm out for an older one."
            )
    else:
        reading.settle("gradient_clipping", "No clipping there, and none here.")
    if reading.has("seed"):
        reading.put("run.seed", reading.whole("seed"), "seed")


DEEPSPEED: Final = Program(
    name="DeepSpeed",
    rows=DEEPSPEED_ROWS,
    readers=(_read_batch, _read_optimizer, _read_schedule, _read_precision, _read_rest),
    signs=frozenset({"train_micro_batch_size_per_gpu", "zero_optimization", "train_batch_size"}),
)
