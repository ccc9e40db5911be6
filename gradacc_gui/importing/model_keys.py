"""The model, its adapters and what is said of both: the same questions in every program."""

from __future__ import annotations

import math
import re
from typing import Final, NoReturn

from gradacc_gui.importing.key_reading import KeyReading, RefusedError
from gradacc_gui.importing.key_rows import SUPERVISED_ONLY
from trainer_backend.config_check import show

PICTURE_MODEL: Final = re.compile(
    r"(?:^|[-_/.\d])vlm?(?:$|[-_/.\d])|llava|pixtral|paligemma|internvl|idefics|smolvlm|molmo|florence|vision|omni"
    r"|minicpm[-_](?:v|o)\b",
    re.IGNORECASE,
)
"""Names of models and templates that read pictures, video or sound beside text."""
EVERY_LINEAR: Final = frozenset({"all", "all-linear", "all_linear"})
ATTENTION: Final[dict[str, str]] = {
    "sdpa": "sdpa",
    "eager": "eager",
    "flash_attention_2": "flash_attention_2",
    "flash_attention": "flash_attention_2",
    "fa2": "flash_attention_2",
    "disabled": "eager",
}
"""By what other programs call the kernels."""
OTHER_KERNELS: Final = "Other kernels for the same attention; the result is the same but for rounding."


OTHER_METHODS: Final[dict[str, str]] = {
    "dpo": "tunes by preference (DPO, on preference pairs)",
    "gdpo": "is reinforcement learning with reward functions (GDPO)",
    "ipo": "tunes by preference (IPO, on preference pairs)",
    "kto": "tunes by preference (KTO, on answers judged good or bad)",
    "orpo": "tunes by preference (ORPO, on preference pairs)",
    "simpo": "tunes by preference (SimPO, on preference pairs)",
    "cpo": "tunes by preference (CPO, on preference pairs)",
    "rm": "trains a reward model",
    "ppo": "is reinforcement learning with a reward model (PPO)",
    "grpo": "is reinforcement learning with reward functions (GRPO)",
    "ebft": "is reinforcement learning with rewards from features (EBFT)",
}
"""What other programs train, by the word that asks for it."""


def refuse_method(key: str, value: str) -> NoReturn:
    """Raise RefusedError for a kind of training that gradacc does not do."""
    what = OTHER_METHODS.get(value.lower(), "is a kind of training by preference or reward")
    message = f"{key} = {show(value)} {what}. {SUPERVISED_ONLY}"
    raise RefusedError(message)


def refuse_pictures(key: str, name: str) -> None:
    """Raise RefusedError where a name is that of a model or template for pictures."""
    if PICTURE_MODEL.search(name):
        message = (
            f"{key} = {show(name)} is for pictures (images, video or sound) beside text."
            " gradacc fine-tunes language models on text only, so this file is not imported."
        )
        raise RefusedError(message)


def put_model(reading: KeyReading, key: str, name: str) -> None:
    """Set the model's folder or hub id. Raises RefusedError."""
    refuse_pictures(key, name)
    reading.put("task.model", name, key)


def put_attention(reading: KeyReading, key: str) -> None:
    """Which kernels compute the attention; those that gradacc does not have give the same numbers."""
    name = str(reading.value(key)).lower()
    if name in ATTENTION:
        reading.put("task.attention", ATTENTION[name], key)
    else:
        reading.settle(key, OTHER_KERNELS)


def put_targets(reading: KeyReading, key: str, names: list[str] | None) -> None:
    """Which modules get adapters; every linear layer but the head is what gradacc does without a list."""
    if names is None:
        return
    if not names or set(names) & EVERY_LINEAR:
        reading.hold(key, "task.lora_targets", "Every linear layer but the head, as here without a list.")
    else:
        reading.put("task.lora_targets", names, key)


def put_scale(reading: KeyReading, rank_key: str, alpha_key: str, *, rank_stabilized: str = "") -> None:
    """Rank and alpha. Rank-stabilized LoRA scales by alpha / sqrt(rank): alpha is set to give the same."""
    rank, alpha = reading.whole(rank_key), reading.number(alpha_key)
    if rank is None or rank < 1 or alpha is None:
        reading.wrong(rank_key, reading.value(rank_key), "a whole number from 1")
    reading.put("task.lora_rank", rank, rank_key)
    if not (rank_stabilized and reading.flag(rank_stabilized)):
        put_alpha(reading, alpha_key, alpha)
        return
    wanted = alpha * math.sqrt(rank)
    reading.put("task.lora_alpha", round(wanted), alpha_key, note=f"{alpha:g} x sqrt({rank})")
    if math.isclose(wanted, round(wanted)):
        reading.hold(rank_stabilized, "task.lora_alpha", f"Alpha {round(wanted)} gives the same scale.")
    else:
        words = f"Their scale is alpha / sqrt(rank). Here alpha is whole: {round(wanted)} for {wanted:.4g}."
        reading.leave(rank_stabilized, words, to="task.lora_alpha")


def put_alpha(reading: KeyReading, key: str, alpha: float, note: str = "") -> None:
    """LoRA's alpha, which is whole here."""
    reading.put("task.lora_alpha", round(alpha), key, note=note)
    if not alpha.is_integer():
        words = f"They scale adapters by {alpha:g} / rank. Here alpha is whole: {round(alpha)}."
        reading.leave(key, words, to="task.lora_alpha")


def leave_remote_code(reading: KeyReading, key: str = "trust_remote_code") -> None:
    """Note that a model's own Python is not run because a file of another program says so.

    A model without any trains alike, and one that needs it does not start: nothing differs in silence.
    """
    if reading.flag(key):
        reading.settle(
            key,
            "A model's own Python files are never run because a file says so. Where a model needs them, read"
            " them, then set task.trust_remote_code.",
        )
    else:
        reading.settle(key, "It is off.")
