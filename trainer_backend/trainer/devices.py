"""Which device and precision a run uses, and what they are called."""

from __future__ import annotations

import os
import platform
from typing import Final

import psutil
import torch

from trainer_backend.config import RunSection
from trainer_backend.engine.memory import keep_freed_memory
from trainer_backend.engine.precision import Precision
from trainer_backend.errors import UsageError
from trainer_backend.protocol import Device

_REMEDY: Final = "Choose run.device = auto or cpu, or an interpreter whose torch was built for it."


def choose_device(asked: str) -> torch.device:
    """The device that `run.device` names. Raises UsageError when it is not there."""
    if asked == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = torch.device(asked)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            message = (
                f"run.device = {asked}: this torch ({torch.__version__}) sees {count} CUDA devices. {_REMEDY}"
            )
            raise UsageError(message)
        return torch.device("cuda", device.index or 0)
    if device.type == "mps" and not torch.backends.mps.is_available():
        message = f"run.device = mps: this machine or this torch ({torch.__version__}) has no mps. {_REMEDY}"
        raise UsageError(message)
    return device


def choose_rank_device(asked: str, local_rank: int) -> torch.device:
    """The device of one of several ranks: the machine's GPU of its number, or the CPU. Raises UsageError."""
    first = choose_device(asked)
    if first.type == "cpu":
        return first
    if first.type == "mps":
        raise UsageError(
            "run.device = mps: several ranks cannot share it. Give run.devices = 1, or device = cpu."
        )
    if ":" in asked:
        message = f"run.device = {asked} names one GPU, but several ranks train. Give run.device = cuda."
        raise UsageError(message)
    return choose_device(f"cuda:{local_rank}")


def choose_precision(asked: str, device: torch.device) -> Precision:
    """`run.precision` with auto decided: bf16 on a GPU that has it, else fp32. Raises UsageError."""
    if asked == "auto":
        return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(False) else "fp32"
    if asked == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        name = torch.cuda.get_device_name(device)
        message = f"run.precision = bf16: {name} does not support it. Use fp16 or fp32."
        raise UsageError(message)
    return "fp16" if asked == "fp16" else "bf16" if asked == "bf16" else "fp32"


def apply_process_settings(run: RunSection, device: torch.device) -> None:
    """Process-wide settings that a run asks for, and that its device is best served by."""
    if device.type == "cpu":
        keep_freed_memory()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if run.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def prepare_environment(run: RunSection) -> None:
    """What CUDA's libraries read when they are loaded."""
    if run.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def describe(device: torch.device) -> Device:
    """The device for `RunStarted`."""
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        uuid = str(getattr(facts, "uuid", "") or "")
        return Device(
            index=device.index or 0,
            kind="cuda",
            name=facts.name,
            uuid=uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",
            memory_total_bytes=facts.total_memory,
        )
    total = psutil.virtual_memory().total
    name = platform.processor() or platform.machine() or "CPU"
    if device.type == "mps":
        return Device(index=0, kind="mps", name=name, memory_total_bytes=total)
    return Device(index=0, kind="cpu", name=name, memory_total_bytes=total)
