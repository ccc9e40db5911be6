"""The door to NVML, NVIDIA's management library, through pynvml (nvidia-ml-py).

Errors come out as codes, since a person reads them in words made elsewhere. Both the import and the
opening of the library may fail on machines that train perfectly well on their CPU.
"""

from __future__ import annotations

import importlib
import platform
import re
from types import ModuleType
from typing import Any, Final, TypeAlias

from trainer_backend.protocol import Warned
from trainer_backend.readings.visible import GPU_PREFIX, MIG_PREFIX

Handle: TypeAlias = Any
"""pynvml's opaque pointer to a device."""

OPENING: Final = {
    "library-not-found": "nvml-library-missing",
    "driver-not-loaded": "nvml-driver-not-loaded",
    "lib-rm-version-mismatch": "nvml-driver-mismatch",
    "no-permission": "nvml-no-permission",
    "operating-system": "nvml-no-permission",
    "gpu-is-lost": "gpu-lost",
}
"""Codes of `Warned` for what NVML says when it is opened; anything else is `nvml-failed`."""

GONE: Final = frozenset({"gpu-is-lost", "reset-required", "uninitialized", "driver-not-loaded"})
"""After one of these nothing more can be read from a device."""

BINDING_MISSING: Final = "nvml-binding-missing"


class NvmlUnavailableError(Exception):
    """NVML cannot be used; `warned` says why."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(code)
        self.warned = Warned(code=code, values={"reason": reason, "system": platform.system()})


class Nvml:
    """NVML, opened. Raises NvmlUnavailableError."""

    def __init__(self) -> None:
        try:
            self.api: ModuleType = importlib.import_module("pynvml")
        except ImportError as error:
            raise NvmlUnavailableError(BINDING_MISSING, str(error)) from error
        self.Error: type[Exception] = self.api.NVMLError
        try:
            self.api.nvmlInit()
        except self.Error as error:
            reason = reason_of(error)
            raise NvmlUnavailableError(OPENING.get(reason, "nvml-failed"), reason) from error

    def close(self) -> None:
        """Give NVML back; what it says then changes nothing."""
        try:
            self.api.nvmlShutdown()
        except self.Error:  # a lost card or an unloaded driver: there is nothing left to give back
            return

    def handle(self, uuid: str) -> Handle:
        """The device with this UUID, with or without its prefix. Raises pynvml's NVMLError."""
        if uuid.startswith((GPU_PREFIX, MIG_PREFIX)):
            return self.api.nvmlDeviceGetHandleByUUID(uuid)
        try:
            return self.api.nvmlDeviceGetHandleByUUID(GPU_PREFIX + uuid)
        except self.Error as error:
            # torch gives the bare UUID of a MIG device too.
            try:
                return self.api.nvmlDeviceGetHandleByUUID(MIG_PREFIX + uuid)
            except self.Error:
                raise error from None

    def handles(self) -> list[Handle]:
        """Every card, in the order of their PCI addresses (which need not be CUDA's)."""
        return [self.api.nvmlDeviceGetHandleByIndex(i) for i in range(self.api.nvmlDeviceGetCount())]


def reason_of(error: Exception) -> str:
    """A code for one of pynvml's errors: NVMLError_NotSupported gives "not-supported"."""
    name = type(error).__name__.removeprefix("NVMLError_")
    if name in ("NVMLError", ""):  # a code younger than the binding
        return f"error-{getattr(error, 'value', 'unknown')}"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
