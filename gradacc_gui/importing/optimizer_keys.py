"""Optimizers of other programs by ours: the name, and what it takes with it."""

from __future__ import annotations

from typing import Any, Final

from gradacc_gui.importing.key_reading import KeyReading
from trainer_backend.optimizer_table import OPTIMIZERS

SAME: Final[dict[str, str]] = {
    "adamw": "adamw",
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_torch_xla": "adamw",
    "adamw_torch_npu_fused": "adamw",
    "adamw_hf": "adamw",
    "adamw_apex_fused": "adamw",
    "adamw_bnb_8bit": "adamw-8bit",
    "adamw_8bit": "adamw-8bit",
    "paged_adamw_8bit": "paged-adamw-8bit",
    "sgd": "sgd",
    "lion": "lion",
    "lion_32bit": "lion",
    "muon": "muon",
    "schedule_free_adamw": "schedule-free",
    "lamb": "lamb",
    "lars": "lars",
}
"""By what other programs call them."""
ALIKE: Final[dict[str, tuple[str, str]]] = {
    "paged_adamw_32bit": ("adamw", "The same updates; here the state is not moved to main memory."),
    "paged_adamw": ("adamw", "The same updates; here the state is not moved to main memory."),
    "paged_lion_32bit": ("lion", "The same updates; here the state is not moved to main memory."),
    "adamw_torch_8bit": ("adamw-8bit", "Another library's 8-bit state."),
    "optimi_adamw": ("adamw", "Another library's AdamW."),
    "adamw_anyprecision": ("adamw", "Here the state is in fp32."),
    "flash_adamw": ("adamw", "Another library's AdamW."),
}
"""The same rule in another form: ours, and what differs."""
NEAR: Final[dict[str, tuple[str, str]]] = {
    "adafactor": (
        "adafactor",
        (
            "Their Adafactor takes the learning rate as it is. The one here scales it by each weight's size;"
            " try a rate about 100 times larger."
        ),
    ),
    "lion_8bit": ("lion", "They keep Lion's state in 8 bits. Here it is in fp32."),
    "paged_lion_8bit": ("lion", "They keep Lion's state in 8 bits. Here it is in fp32."),
    "adamw_torch_4bit": ("adamw-8bit", "They keep AdamW's state in 4 bits. Here it is in 8."),
    "ao_adamw_fp8": ("adamw-8bit", "They keep AdamW's state in fp8. Here it is in 8 bits of another form."),
}
"""Ours that comes nearest, and what that means for the run."""


def optimizer_of(name: str) -> tuple[str, str, bool]:
    """Our optimizer for theirs, a sentence on what differs, and whether that changes the run."""
    word = name.strip().lower().removeprefix("optimizernames.")
    if word in SAME:
        return SAME[word], "", False
    if word in ALIKE:
        return *ALIKE[word], False
    if word in NEAR:
        return *NEAR[word], True
    return "adamw", f"They use {name}, which gradacc does not have. Here it is AdamW.", True


def put_optimizer(reading: KeyReading, key: str, name: str) -> str:
    """Set the optimizer's name; gives ours."""
    ours, note, is_change = optimizer_of(name)
    if is_change and reading.has(key):
        reading.values["optimizer.name"] = ours
        reading.leave(key, note, to="optimizer.name")
        return ours
    reading.put("optimizer.name", ours, key, note=note)
    return ours


def put_numbers(reading: KeyReading, ours: str, *, eps: str = "adam_epsilon") -> None:
    """Betas and epsilon, where the optimizer takes them."""
    takes = OPTIMIZERS[ours].keys
    if "betas" in takes:
        betas = [reading.number("adam_beta1"), reading.number("adam_beta2")]
        given = [key for key in ("adam_beta1", "adam_beta2") if reading.has(key)] or ["adam_beta1"]
        reading.put("optimizer.betas", betas, *given)
    if "eps" in takes:
        reading.put("optimizer.eps", reading.number(eps), eps)


def put_clipping(reading: KeyReading, key: str = "max_grad_norm") -> None:
    """Clipping of the gradient's norm; 0 is none, as here without the key."""
    norm = reading.number(key)
    if norm:
        reading.put("optimizer.max_grad_norm", norm, key)
    else:
        reading.settle(key, "No clipping there, and none here.")


def optimizer_arguments(reading: KeyReading, key: str) -> dict[str, str]:
    """`name=value, name=value` as a table; a table as it is."""
    value: Any = reading.value(key)
    if not value:
        return {}
    if isinstance(value, dict):
        return {str(name): str(inner) for name, inner in value.items()}
    pairs = [part.partition("=") for part in str(value).split(",") if part.strip()]
    return {name.strip(): inner.strip() for name, _, inner in pairs}


def put_arguments(reading: KeyReading, ours: str, key: str = "optim_args") -> None:
    """Further arguments of the optimizer: SGD's momentum; others are left out."""
    given = optimizer_arguments(reading, key)
    if not given:
        return
    left = set(given)
    if ours == "sgd" and "momentum" in given:
        reading.put("optimizer.momentum", reading.as_number(key, given["momentum"]), key)
        left.discard("momentum")
        if "nesterov" in given:
            reading.put("optimizer.nesterov", given["nesterov"].lower() in ("true", "1", "yes"), key)
            left.discard("nesterov")
    if left:
        reading.leave(
            key, f"They give the optimizer {', '.join(sorted(left))}. Here it has its own defaults."
        )
