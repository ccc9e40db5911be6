"""Learning-rate schedules of other programs by ours. Theirs count optimizer steps, ours samples."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from gradacc_gui.importing.key_reading import KeyReading


class TheirCurve(NamedTuple):
    """One of their schedules by ours."""

    kind: str
    final_ratio: float | None = None
    has_warm_up: bool = True
    words: str = ""
    """What differs, where it is only the nearest."""


CURVES_BY_NAME: Final[dict[str, TheirCurve]] = {
    "linear": TheirCurve("linear", 0.0),
    "cosine": TheirCurve("cosine", 0.0),
    "cosine_with_restarts": TheirCurve("cosine-restarts", 0.0),
    "cosine_with_min_lr": TheirCurve("cosine", 0.0),
    "cosine_warmup_with_min_lr": TheirCurve("cosine", 0.0),
    "polynomial": TheirCurve("polynomial", 0.0),
    "constant": TheirCurve("constant", has_warm_up=False),
    "constant_with_warmup": TheirCurve("constant"),
    "inverse_sqrt": TheirCurve("inverse-sqrt"),
    "warmup_stable_decay": TheirCurve("wsd", 0.0),
    "reduce_lr_on_plateau": TheirCurve(
        "constant",
        has_warm_up=False,
        words="They lower the rate when evaluations stop improving. Here it stays constant.",
    ),
    "greedy": TheirCurve(
        "constant",
        has_warm_up=False,
        words="They raise and lower the rate by the loss. Here it stays constant.",
    ),
    "one_cycle": TheirCurve(
        "cosine", 0.0, words="They start at 1/25 of the peak and let it fall below that. Here it is a cosine."
    ),
    "rex": TheirCurve("linear", 0.0, words="They use the REX curve, which falls late. Here it is a line."),
}
POLYNOMIAL_END: Final = 1e-7
"""Their polynomial's last rate, where no other is given."""


def put_schedule(reading: KeyReading, key: str, arguments_key: str) -> TheirCurve:
    """Kind, end and shape of the schedule; the warm-up is put apart. Raises UsageError."""
    name = str(reading.value(key)).strip().lower().removeprefix("schedulertype.")
    found = CURVES_BY_NAME.get(name)
    if found is None:
        words = f"They use {name}, which gradacc does not have. Here the rate falls along a cosine."
        found = TheirCurve("cosine", 0.0, words=words)
    reading.put("schedule.kind", found.kind, key)
    if found.words:
        reading.leave(key, found.words, to="schedule.kind")
    if found.final_ratio is not None:
        reading.put("schedule.final_ratio", found.final_ratio, key, note="theirs ends at 0")
    given = reading.table(arguments_key)
    used = _put_arguments(reading, name, given, arguments_key)
    left = sorted(set(given) - used)
    if left:
        words = f"{', '.join(left)} has no counterpart here; the schedule runs without it."
        reading.leave(arguments_key, words)
    return found


def _put_arguments(reading: KeyReading, name: str, given: dict[str, Any], key: str) -> set[str]:
    """Set what their arguments of the schedule mean; gives the names that were used."""
    numbers = {
        word: reading.as_number(f"{key}.{word}", value)
        for word, value in given.items()
        if isinstance(value, (int, float))
        or (isinstance(value, str) and word not in ("decay_type", "warmup_type"))
    }
    match name:
        case "cosine" | "cosine_with_restarts":
            return _cycles(reading, numbers, key)
        case "cosine_with_min_lr" | "cosine_warmup_with_min_lr":
            return _cycles(reading, numbers, key) | _least_rate(reading, numbers, key)
        case "polynomial":
            return _polynomial(reading, numbers, key)
        case "inverse_sqrt":
            if numbers.get("timescale"):
                samples = round(numbers["timescale"] or 0) * batch_of(reading)
                reading.put("schedule.timescale_samples", samples, key)
                return {"timescale"}
        case "warmup_stable_decay":
            return _stable_decay(reading, given, numbers, key)
        case _:
            pass
    return set()


def _cycles(reading: KeyReading, numbers: dict[str, float | None], key: str) -> set[str]:
    if numbers.get("num_cycles") is not None:
        reading.put("schedule.cycles", numbers["num_cycles"], key)
        return {"num_cycles"}
    return set()


def _least_rate(reading: KeyReading, numbers: dict[str, float | None], key: str) -> set[str]:
    rate = reading.values.get("optimizer.learning_rate")
    if numbers.get("min_lr_rate") is not None:
        reading.put("schedule.final_ratio", numbers["min_lr_rate"], key)
        return {"min_lr_rate"}
    if numbers.get("min_lr") is not None and rate:
        reading.put("schedule.final_ratio", (numbers["min_lr"] or 0.0) / rate, key)
        return {"min_lr"}
    return set()


def _polynomial(reading: KeyReading, numbers: dict[str, float | None], key: str) -> set[str]:
    rate = reading.values.get("optimizer.learning_rate")
    end = numbers.get("lr_end")
    if rate:
        reading.put("schedule.final_ratio", (POLYNOMIAL_END if end is None else end) / rate, key)
    if numbers.get("power") is not None:
        reading.put("schedule.power", numbers["power"], key)
    return {"lr_end", "power"}


def _stable_decay(
    reading: KeyReading, given: dict[str, Any], numbers: dict[str, float | None], key: str
) -> set[str]:
    least = numbers.get("min_lr_ratio") or 0.0
    reading.put("schedule.final_ratio", least, key)
    reading.put("schedule.warmup_from_ratio", least, key)
    reading.put("schedule.decay_shape", str(given.get("decay_type", "cosine")), key)
    used = {"min_lr_ratio", "decay_type"}
    if given.get("warmup_type", "linear") == "linear":
        used.add("warmup_type")
    steps, total = numbers.get("num_decay_steps"), reading.values.get("run.max_optimizer_steps")
    if steps and total:
        reading.put("schedule.decay_ratio", min(1.0, steps / total), key)
    elif steps:
        why = f"They decay over the last {steps:g} steps. Here enter them as a share of the run's length."
        reading.ask("schedule.decay_ratio", why, key, stand_in=0.1)
    return used | {"num_decay_steps", "num_stable_steps"}


def batch_of(reading: KeyReading) -> int:
    """Samples of an optimizer step, for keys that count steps."""
    micro: int = reading.values["accumulation.micro_batch_size"]
    steps: int = reading.values["accumulation.gradient_accumulation_steps"]
    return micro * steps


def steps_note(reading: KeyReading, steps: float) -> str:
    """How a number of optimizer steps became samples."""
    return f"{steps:g} steps of {batch_of(reading):,} samples"


def put_warm_up(
    reading: KeyReading, curve: TheirCurve, steps_key: str = "warmup_steps", ratio_key: str = "warmup_ratio"
) -> None:
    """Set the warm-up in samples, or as a share of the run; steps below 1 are a share (transformers 5)."""
    steps, ratio = reading.number(steps_key) or 0.0, reading.number(ratio_key) or 0.0
    if not curve.has_warm_up:
        for key in (steps_key, ratio_key):
            reading.settle(key, "Their schedule has no warm-up.")
        return
    if 0 < steps < 1:
        reading.put("schedule.warmup_ratio", steps, steps_key, note="below 1 it is a share of the run")
        reading.settle(ratio_key, f"{steps_key} counts instead.")
    elif steps:
        whole = math.floor(steps)
        samples = whole * batch_of(reading)
        reading.put("schedule.warmup_samples", samples, steps_key, note=steps_note(reading, whole))
        reading.settle(ratio_key, f"{steps_key} counts instead.")
    elif ratio:
        reading.put("schedule.warmup_ratio", ratio, ratio_key)
