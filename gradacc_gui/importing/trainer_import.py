"""TrainingArguments of the transformers library: read alone, and inside other programs' files."""

from __future__ import annotations

from typing import Final

from gradacc_gui.importing.key_reading import KeyReading, Program
from gradacc_gui.importing.length_keys import put_batch, put_evaluations, put_length, put_saves
from gradacc_gui.importing.model_keys import leave_remote_code, put_model
from gradacc_gui.importing.optimizer_keys import put_arguments, put_clipping, put_numbers, put_optimizer
from gradacc_gui.importing.schedule_keys import put_schedule, put_warm_up
from gradacc_gui.importing.trainer_keys import SCRIPT_ROWS, TRAINER_ROWS

LONGEST: Final = 131_072
"""What stands for "no limit"."""
USUAL_RATE: Final = 2e-4
"""What stands for a learning rate that a program requires and a file does not give."""


def read_steps(reading: KeyReading) -> None:
    """Batch and length."""
    former = "per_gpu_train_batch_size"
    put_batch(reading, former if reading.has(former) else "per_device_train_batch_size")
    put_length(reading, "num_train_epochs")


def read_updates(reading: KeyReading) -> None:
    """Optimizer, clipping, schedule and warm-up."""
    name = str(reading.value("optim"))
    key = "optim"
    if reading.flag("adafactor"):
        name, key = "adafactor", "adafactor"
    put_updates(reading, key, name)


def put_updates(reading: KeyReading, key: str, name: str, *, scheduler: str = "lr_scheduler_type") -> None:
    """Set the optimizer of that name and the schedule, from the keys that they share."""
    rate = reading.number("learning_rate")
    if rate is None:
        why = "The file gives no learning rate."
        reading.ask("optimizer.learning_rate", why, "learning_rate", stand_in=USUAL_RATE)
    else:
        reading.put("optimizer.learning_rate", rate, "learning_rate")
    ours = put_optimizer(reading, key, name)
    reading.put("optimizer.weight_decay", reading.number("weight_decay"), "weight_decay")
    put_numbers(reading, ours)
    put_arguments(reading, ours)
    put_clipping(reading)
    curve = put_schedule(reading, scheduler, "lr_scheduler_kwargs")
    put_warm_up(reading, curve)


def read_precision(reading: KeyReading) -> None:
    """The switches bf16 and fp16."""
    if reading.flag("bf16"):
        reading.put("run.precision", "bf16", "bf16")
        reading.settle("fp16", "It is off.")
    elif reading.flag("fp16"):
        reading.put("run.precision", "fp16", "fp16")
        reading.settle("bf16", "It is off.")
    else:
        reading.put("run.precision", "fp32", "bf16", "fp16")


def read_run(reading: KeyReading) -> None:
    """Seed, name, device and what else is said of the run."""
    reading.put("run.seed", reading.whole("seed"), "seed")
    if (name := reading.text("run_name")) is not None:
        reading.put("run.name", name, "run_name")
    for to, keys in (
        ("run.compile", ("torch_compile",)),
        ("run.deterministic", ("full_determinism",)),
        ("task.activation_checkpointing", ("activation_checkpointing", "gradient_checkpointing")),
    ):
        is_on = any(reading.flag(key) for key in keys)
        if is_on or any(reading.has(key) for key in keys):
            reading.put(to, is_on, *keys)
    if reading.flag("use_cpu") or reading.flag("no_cuda"):
        reading.put("run.device", "cpu", "use_cpu", "no_cuda")
    if reading.has("dataloader_num_workers"):
        reading.put("data.num_workers", reading.whole("dataloader_num_workers"), "dataloader_num_workers")
    smoothing = reading.number("label_smoothing_factor")
    if smoothing or reading.has("label_smoothing_factor"):
        reading.put("task.label_smoothing", smoothing, "label_smoothing_factor")


def read_order(reading: KeyReading) -> None:
    """In which order samples come."""
    order = str(reading.value("train_sampling_strategy"))
    like_lengths = "They put samples of like length together. Here the order is random."
    if order == "sequential":
        reading.put("data.shuffle", False, "train_sampling_strategy")
    elif order == "random":
        reading.settle("train_sampling_strategy", "Random here too.")
    else:
        reading.leave("train_sampling_strategy", like_lengths)
    if reading.flag("group_by_length"):
        reading.leave("group_by_length", like_lengths)


def evaluation_strategy(reading: KeyReading) -> tuple[str, str]:
    """Their strategy, and the key that says it: it had another name once."""
    former = "evaluation_strategy"
    key = former if reading.has(former) and not reading.has("eval_strategy") else "eval_strategy"
    return str(reading.value(key)).lower().removeprefix("intervalstrategy."), key


def read_rhythm(reading: KeyReading, *, keep: int | None = None) -> bool:
    """Evaluations and checkpoints; gives whether evaluations happen."""
    strategy, key = evaluation_strategy(reading)
    steps = reading.number("eval_steps") or reading.number("logging_steps")
    happen = put_evaluations(reading, strategy=strategy, strategy_key=key, steps=steps)
    save = str(reading.value("save_strategy")).lower().removeprefix("savestrategy.")
    put_saves(reading, strategy=save, keep=keep)
    return happen


def read_data(reading: KeyReading) -> None:
    """Model and data of the example scripts; TrainingArguments alone name neither."""
    happen = read_rhythm(reading)
    reading.put("task.method", "full")
    leave_remote_code(reading)
    if (model := reading.text("model_name_or_path")) is not None:
        put_model(reading, "model_name_or_path", model)
    file, name = reading.text("train_file"), reading.text("dataset_name")
    if file is None and name is None:
        if reading.has("validation_file"):
            reading.put("data.validation_path", reading.text("validation_file"), "validation_file")
        elif happen:
            why = "They evaluate on other data: choose it, or hold out a share (data.validation_fraction)."
            reading.ask("data.validation_path", why)
        reading.put("data.validation_fraction", 0.0, "eval_strategy", note="their data is split elsewhere")
        return
    _read_texts(reading, file, name)


def _read_texts(reading: KeyReading, file: str | None, name: str | None) -> None:
    """Plain texts, put together and cut into blocks, as the example script does."""
    subset = reading.text("dataset_config_name")
    if file is not None:
        reading.put("data.path", file, "train_file")
    else:
        reading.put(
            "data.path", f"{name}:{subset}" if subset else name, "dataset_name", "dataset_config_name"
        )
    if (path := reading.text("validation_file")) is not None:
        reading.put("data.validation_path", path, "validation_file")
        reading.put("data.validation_fraction", 0.0)
    else:
        share = (reading.number("validation_split_percentage") or 0) / 100
        reading.put("data.validation_fraction", share, "validation_split_percentage")
    if (length := reading.whole("block_size")) is not None:
        reading.put("task.max_length", length, "block_size")
    reading.put("task.train_on", "everything")
    reading.say("Their script joins texts and cuts blocks across them. Here a block never mixes two texts.")


def read_named_optimizers(reading: KeyReading) -> None:
    """Say what a launcher's file, which is named only, may hold."""
    if isinstance(reading.value("deepspeed"), str) and reading.is_used("deepspeed"):
        reading.settle(
            "deepspeed", "How state is spread over devices. Import that file too if it sets an optimizer."
        )


TRAINER: Final = Program(
    name="transformers TrainingArguments",
    rows=TRAINER_ROWS | SCRIPT_ROWS,
    readers=(
        read_steps,
        read_updates,
        read_precision,
        read_run,
        read_order,
        read_data,
        read_named_optimizers,
    ),
    signs=frozenset(TRAINER_ROWS)
    - {"seed", "debug", "project", "fsdp", "deepspeed", "use_cpu", "local_rank"},
)
