"""Out of memory: how it is told from other errors, and what can be freed."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
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


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt(3)."""
KEPT_BYTES: Final = 256 << 20
"""Freed memory that a process on the CPU keeps for its next window."""
MAPPED_BYTES: Final = 32 << 20
"""Blocks beyond it are the system's own: the most that glibc comes to by itself."""


def keep_freed_memory() -> None:
    """Let glibc keep what a window frees, for the next one; no other allocator is touched.

    By default it gives the end of its heap back and fetches it again, window by window, where what is
    freed happens to lie there: in one process of three or so, which then trains up to a tenth slower. Who
    has set MALLOC_TRIM_THRESHOLD_ or MALLOC_MMAP_THRESHOLD_ is not overruled.
    """
    if os.environ.keys() & {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}:
        return
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)


def _of_glibc(name: str) -> ctypes._NamedFuncPointer | None:
    """A function that only glibc has; None elsewhere."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def free(device: torch.device) -> None:
    """Give back what is unreachable and cached. Call it outside the `except` that caught the error."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    elif (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)
