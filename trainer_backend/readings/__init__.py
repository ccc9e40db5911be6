"""What the machine says of itself during a run: memory, utilisation, power, temperature, CPU.

Nothing here imports torch, so that the command line's `doctor` and the window may use it; what torch
knows about its own memory comes in through a function (`TorchMemory`). No process is ever started.
"""

from __future__ import annotations

from trainer_backend.readings.describe import Accelerator, Accelerators, describe_devices
from trainer_backend.readings.device import TorchMemory
from trainer_backend.readings.sampler import THREAD_NAME, Sampler

__all__ = [
    "THREAD_NAME",
    "Accelerator",
    "Accelerators",
    "Sampler",
    "TorchMemory",
    "describe_devices",
]
