"""Out of memory: how it is told from other errors, and what can be freed."""

from __future__ import annotations

import gc
from typing import Final

import torch

_CPU_MARKS: Final = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "MPS backend out of memory",
    "could not create a memory object",
    "std::bad_alloc",
)
"""The CPU allocator raises a plain RuntimeError; its words are all that tells it from others."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator refused: of CUDA, of MPS, or of the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in _CPU_MARKS)


def free(device: torch.device) -> None:
    """Give back what is unreachable and cached. Call it outside the `except` that caught the error."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
