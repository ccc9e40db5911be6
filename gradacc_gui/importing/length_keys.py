"""Batch, length of the run, evaluations and checkpoints of other programs: their steps become our samples."""

from __future__ import annotations

import math
from typing import Final

from gradacc_gui.importing.key_reading import KeyReading
from gradacc_gui.importing.schedule_keys import batch_of, steps_note

MICRO: Final = "accumulation.micro_batch_size"
STEPS: Final = "accumulation.gradient_accumulation_steps"
EVALUATE: Final = "evaluation.every_samples"
SAVE: Final = "checkpoint.every_samples"


def put_batch(reading: KeyReading, micro_key: str, steps_key: str = "gradient_accumulation_steps") -> None:
    """Micro-batch and N. Raises UsageError: what follows counts with them."""
    for to, key in ((MICRO, micro_key), (STEPS, steps_key)):
        number = reading.whole(key)
        if number is None or not reading.put(to, number, key):
            reading.wrong(key, reading.value(key), "a whole number from 1")


def put_length(reading: KeyReading, epochs_key: str, steps_key: str = "max_steps") -> None:
    """Optimizer steps where they are given, else epochs; parts of an epoch are asked for in samples."""
    steps, epochs = reading.whole(steps_key), reading.number(epochs_key)
    if steps is not None and steps > 0:
        reading.put("run.max_optimizer_steps", steps, steps_key)
        reading.settle(epochs_key, f"{steps_key} counts instead.")
        return
    reading.settle(steps_key, "It is off.")
    if epochs is None or epochs <= 0:
        reading.wrong(epochs_key, reading.value(epochs_key), "a number above 0")
    if epochs.is_integer():
        reading.put("run.epochs", int(epochs), epochs_key)
        return
    whole = max(1, round(epochs))
    why = (
        f"They train {epochs:g} epochs. Here epochs are whole: replace run.epochs by run.max_samples,"
        f" {epochs:g} times the number of samples."
    )
    reading.ask("run.epochs", why, epochs_key, stand_in=whole)


def put_every(reading: KeyReading, to: str, every: float, key: str, *others: str) -> None:
    """An interval in steps, or as a share of the run (below 1); `others` only say that it counts."""
    total = reading.values.get("run.max_optimizer_steps")
    if 0 < every < 1:
        if total is None:
            why = f"They do it every {every:.3g} of the run, whose length in samples is not known here."
            reading.ask(to, why, key)
            _hold(reading, to, others)
            return
        every = math.ceil(total * every)
    if every >= 1:
        note = steps_note(reading, math.floor(every))
        reading.put(to, math.floor(every) * batch_of(reading), key, note=note)
    _hold(reading, to, others)


def _hold(reading: KeyReading, to: str, keys: tuple[str, ...]) -> None:
    for key in keys:
        reading.hold(key, to, "Counted in samples here.")


def put_saves(reading: KeyReading, *, strategy: str, keep: int | None) -> None:
    """Checkpoints by steps; what counts epochs takes gradacc's own interval, which changes nothing else.

    `keep` is their number of kept checkpoints where the file has none.
    """
    every = reading.number("save_steps") or 0.0
    if strategy == "steps" and every > 0:
        put_every(reading, SAVE, every, "save_steps", "save_strategy")
    elif strategy == "no":
        reading.put(
            "checkpoint.every_minutes", "never", "save_strategy", note="still saved at a stop and the end"
        )
        reading.settle("save_steps", "save_strategy counts instead.")
    else:
        for key in ("save_strategy", "save_steps"):
            reading.settle(key, "gradacc saves every 10 minutes, at a stop and at the end.")
    if reading.has("save_total_limit"):
        reading.put("checkpoint.keep", reading.whole("save_total_limit"), "save_total_limit")
    elif keep is not None:
        reading.put("checkpoint.keep", keep, "save_total_limit")


def put_evaluations(reading: KeyReading, *, strategy: str, strategy_key: str, steps: float | None) -> bool:
    """When the validation data is looked at; False when it never is."""
    if strategy == "steps" and steps:
        put_every(reading, EVALUATE, steps, "eval_steps", strategy_key)
        return True
    if strategy == "epoch":
        why = "They evaluate after every epoch: enter the number of training samples."
        reading.ask(EVALUATE, why, strategy_key)
        reading.settle("eval_steps", f"{strategy_key} counts instead.")
        return True
    reading.settle(strategy_key, "No evaluations.")
    reading.settle("eval_steps", "No evaluations.")
    return False
