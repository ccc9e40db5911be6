"""Readings of one accelerator: each metric on its own, so that one that fails takes no other along.

A metric that cannot be read is None from then on, and one `Warned` says why. NVML's sentinels (all
bits set) are no readings. Memory is told apart in three: used by anybody, reserved by the driver,
and what this process holds; torch's own counters come in through a function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from trainer_backend.protocol import Device, DeviceSampled, Scalar, Warned
from trainer_backend.readings.nvml import GONE, Handle, Nvml, reason_of

SENTINELS: Final = frozenset({2**64 - 1, 2**32 - 1})
"""NVML's "not available", in 64 and in 32 bits."""

FOR_GOOD: Final = frozenset(
    {"not-supported", "function-not-found", "no-permission", "invalid-argument", "not-available"}
)
"""Reasons that no later reading mends: the metric is not asked for again."""

HOST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The number of the first PID namespace is fixed in Linux (include/linux/proc_ns.h, PROC_PID_INIT_INO)."""


class TorchMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What torch's allocator says of one device, in bytes; peaks are since their last reset."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None


NO_TORCH_MEMORY: Final = TorchMemory(allocated_bytes=None, reserved_bytes=None)

Warn: TypeAlias = Callable[[Warned], None]
ReadTorchMemory: TypeAlias = Callable[[int], TorchMemory]
"""From the device's index, as torch counts. It may raise RuntimeError, as torch does."""


class MetricUnavailableError(Exception):
    """A metric has no value now; `reason` is a code."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Metrics:
    """Reads metrics by name, remembers those that are off, and warns once of each."""

    def __init__(self, device: int | str, warn: Warn, errors: tuple[type[Exception], ...]) -> None:
        self._device = device
        self._warn = warn
        self._errors = errors
        self._off: set[str] = set()
        self._told: set[str] = set()
        self.gone: str = ""
        """Why the whole device cannot be read any more; empty while it can."""

    def read(self, metric: str, read: Callable[[], float]) -> float | None:
        """The metric's value now, or None, with a warning the first time."""
        if self.gone or metric in self._off:
            return None
        try:
            value = read()
            if value in SENTINELS:
                self.unavailable(metric, "not-available")
                return None
        except self._errors as error:
            self.unavailable(metric, reason_of(error))
            return None
        except MetricUnavailableError as error:
            self.unavailable(metric, error.reason)
            return None
        return value

    def unavailable(self, metric: str, reason: str) -> None:
        """Warn once that `metric` has no value, and stop asking where that is for good."""
        if reason in GONE:
            self.gone = reason
            self._warn(Warned(code="gpu-lost", values=self._values(reason=reason)))
            return
        if reason in FOR_GOOD:
            self._off.add(metric)
        if metric not in self._told:
            self._told.add(metric)
            values = self._values(metric=metric, reason=reason)
            self._warn(Warned(code="metric-not-supported", values=values))

    def _values(self, **values: Scalar) -> dict[str, Scalar]:
        return {"device": self._device, **values}


class DeviceReader:
    """One accelerator: its handle, opened once, and what must be remembered between readings.

    `nvml` and `handle` are None where the driver says nothing (Apple's mps, no NVML): then only what
    torch knows is read.
    """

    def __init__(
        self,
        device: Device,
        *,
        nvml: Nvml | None,
        handle: Handle | None,
        torch_memory: ReadTorchMemory | None,
        warn: Warn,
        pid: int,
        pids_are_global: bool | None = None,
    ) -> None:
        self._device = device
        self._nvml = nvml
        self._handle = handle
        self._read_torch_memory = torch_memory
        self._pid = pid
        self._pids_are_global = pids_are_the_drivers() if pids_are_global is None else pids_are_global
        errors = (nvml.Error,) if nvml is not None else ()
        self._metrics = Metrics(device.index, warn, errors)
        self._energy = EnergyMeter()
        self._memory_is_old = False
        if nvml is not None and handle is not None:
            self._energy_joules(nvml, handle)  # the counter is as old as the driver: this is the attempt's 0

    def sample(self) -> DeviceSampled:
        """One reading of everything that can be read now."""
        torch = self._torch()
        if self._nvml is None or self._handle is None:
            return sampled(self._device, torch)
        nvml, handle = self._nvml, self._handle
        used, reserved, total = self._memory(nvml, handle)
        api, read = nvml.api, self._metrics.read
        return sampled(
            self._device,
            torch,
            memory_used_bytes=used,
            memory_reserved_bytes=reserved,
            memory_total_bytes=total,
            process_memory_bytes=self._process_memory(nvml, handle, torch),
            utilization_percent=read(
                "utilization", lambda: float(api.nvmlDeviceGetUtilizationRates(handle).gpu)
            ),
            temperature_celsius=read(
                "temperature",
                lambda: float(api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU)),
            ),
            power_watts=_scaled(read("power", lambda: int(api.nvmlDeviceGetPowerUsage(handle))), 1e-3),
            energy_joules=self._energy_joules(nvml, handle),
            slowed_by=self._slowed_by(nvml, handle),
        )

    def _torch(self) -> TorchMemory:
        if self._read_torch_memory is None:
            return NO_TORCH_MEMORY
        try:
            return self._read_torch_memory(self._device.index)
        except RuntimeError:  # torch's own, after a device error: the run itself reports that
            self._metrics.unavailable("torch_memory", "runtime-error")
            return NO_TORCH_MEMORY

    def _memory(self, nvml: Nvml, handle: Handle) -> tuple[int | None, int | None, int | None]:
        """Used, reserved and total bytes. The old call counts reserved bytes as used and cannot tell them."""
        api = nvml.api
        try:
            if self._metrics.gone:
                return None, None, None
            if self._memory_is_old:
                memory = api.nvmlDeviceGetMemoryInfo(handle)
            else:
                memory = api.nvmlDeviceGetMemoryInfo(handle, version=api.nvmlMemory_v2)
        except nvml.Error as error:
            reason = reason_of(error)
            if reason in ("function-not-found", "argument-version-mismatch") and not self._memory_is_old:
                self._memory_is_old = True
                self._metrics.unavailable("memory_reserved", reason)
                return self._memory(nvml, handle)
            self._metrics.unavailable("memory", reason)
            return None, None, None
        read = self._metrics.read
        return (
            _whole(read("memory_used", lambda: int(memory.used))),
            None if self._memory_is_old else _whole(read("memory_reserved", lambda: int(memory.reserved))),
            _whole(read("memory_total", lambda: int(memory.total))),
        )

    def _process_memory(self, nvml: Nvml, handle: Handle, torch: TorchMemory) -> int | None:
        return _whole(self._metrics.read("process_memory", lambda: self._find_process(nvml, handle, torch)))

    def _find_process(self, nvml: Nvml, handle: Handle, torch: TorchMemory) -> int:
        """Bytes the driver says this process holds; 0 as long as it holds no context.

        Raises MetricUnavailableError, also where the driver counts processes by other numbers than ours: a
        stranger of the same number must never be shown as this run.
        """
        if not self._pids_are_global:
            raise MetricUnavailableError("pid-namespace")
        # By its versioned name: the unversioned one turns a missing call into an error of another family.
        for process in nvml.api.nvmlDeviceGetComputeRunningProcesses_v3(handle):
            if process.pid == self._pid:
                if process.usedGpuMemory is None:
                    raise MetricUnavailableError("not-available")
                return int(process.usedGpuMemory)
        if torch.reserved_bytes != 0:  # torch holds memory there (or cannot say), and the driver lists nobody
            raise MetricUnavailableError("process-not-listed")
        return 0

    def _slowed_by(self, nvml: Nvml, handle: Handle) -> int | None:
        """Why the clocks are lower than they could be; not every driver tells, and nobody misses it then."""
        if self._metrics.gone:
            return None
        try:
            return int(
                nvml.api.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            )  # its newer name is not in all
        except nvml.Error:
            return None

    def _energy_joules(self, nvml: Nvml, handle: Handle) -> float | None:
        counted_mj = self._metrics.read(
            "energy", lambda: int(nvml.api.nvmlDeviceGetTotalEnergyConsumption(handle))
        )
        return None if counted_mj is None else self._energy.joules(int(counted_mj))


class EnergyMeter:
    """Energy since the first reading, from a counter of millijoules that a driver's reload sets back."""

    def __init__(self) -> None:
        self._before_mj: int | None = None
        self._total_mj = 0

    def joules(self, counted_mj: int) -> float:
        """Take the counter's value; gives joules since the first."""
        if self._before_mj is not None:
            started_again = counted_mj < self._before_mj
            self._total_mj += counted_mj if started_again else counted_mj - self._before_mj
        self._before_mj = counted_mj
        return self._total_mj / 1000


def sampled(  # noqa: PLR0913 - one argument for each field that NVML knows
    device: Device,
    torch: TorchMemory,
    *,
    memory_used_bytes: int | None = None,
    memory_reserved_bytes: int | None = None,
    memory_total_bytes: int | None = None,
    process_memory_bytes: int | None = None,
    utilization_percent: float | None = None,
    temperature_celsius: float | None = None,
    power_watts: float | None = None,
    energy_joules: float | None = None,
    slowed_by: int | None = None,
) -> DeviceSampled:
    """An event from torch's memory and from what NVML could say."""
    return DeviceSampled(
        device=device.index,
        memory_used_bytes=memory_used_bytes,
        memory_reserved_bytes=memory_reserved_bytes,
        memory_total_bytes=memory_total_bytes,
        process_memory_bytes=process_memory_bytes,
        torch_allocated_bytes=torch.allocated_bytes,
        torch_reserved_bytes=torch.reserved_bytes,
        torch_allocated_peak_bytes=torch.allocated_peak_bytes,
        torch_reserved_peak_bytes=torch.reserved_peak_bytes,
        utilization_percent=utilization_percent,
        temperature_celsius=temperature_celsius,
        power_watts=power_watts,
        energy_joules=energy_joules,
        slowed_by=slowed_by,
    )


def pids_are_the_drivers() -> bool:
    """Whether the driver counts processes as this one does: not from inside a container's own namespace."""
    if sys.platform != "linux":
        return True
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == HOST_PID_NAMESPACE
    except OSError:
        return False


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
