"""One thread that reads the machine at a steady pace and puts what it read into the event queue."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from trainer_backend.protocol import Device, DeviceSampled, HostSampled, Scalar, Warned
from trainer_backend.readings.describe import cuda_uuid
from trainer_backend.readings.device import DeviceReader, ReadTorchMemory
from trainer_backend.readings.host import HostReader
from trainer_backend.readings.nvml import Handle, Nvml, NvmlUnavailableError, reason_of

THREAD_NAME: Final = "gradacc-readings"

JOIN_TIMEOUT_S: Final = 5.0
"""A driver call that hangs must not keep a finished run from ending; the thread is a daemon."""

Put: TypeAlias = Callable[[DeviceSampled | HostSampled | Warned], None]


class Sampler:
    """Puts a `DeviceSampled` for each device and a `HostSampled` every `interval_s` seconds.

    `devices` are those of the run, with their UUIDs as torch gives them; a CPU among them is passed over.
    `torch_memory(index)` tells torch's own counters (`TorchMemory`); it is called in the sampler's thread.
    NVML is opened in that thread, once. Whatever cannot be read is one `Warned`, and the rest goes on.
    """

    def __init__(
        self,
        put: Put,
        devices: Sequence[Device],
        interval_s: float,
        torch_memory: ReadTorchMemory | None = None,
    ) -> None:
        self._put_event = put
        self._devices = [device for device in devices if device.kind != "cpu"]
        self._interval_s = interval_s
        self._torch_memory = torch_memory
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; the first reading is taken at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End, and wait for the thread. Nothing is put after this has returned. May be called again."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._sample_until_stopped()
        except Exception as error:  # noqa: BLE001 - a fault in what only watches must never end a run; it is said
            self._put(Warned(code="readings-failed", values={"reason": repr(error)}))

    def _sample_until_stopped(self) -> None:
        host = HostReader(self._put)
        nvml, opened = self._open()
        try:
            readers = [self._reader(device, nvml, opened.get(device.index)) for device in self._devices]
            for _ in ticks(self._interval_s, self._stop):
                self._put(host.sample())
                for reader in readers:
                    self._put(reader.sample())
        finally:
            if nvml is not None:
                nvml.close()

    def _reader(self, device: Device, nvml: Nvml | None, handle: Handle | None) -> DeviceReader:
        return DeviceReader(
            device,
            nvml=nvml if handle is not None else None,
            handle=handle,
            torch_memory=self._torch_memory,
            warn=self._put,
            pid=os.getpid(),
        )

    def _open(self) -> tuple[Nvml | None, dict[int, Handle]]:
        """NVML and the handles of the run's devices, by torch's index; a warning for each that has none."""
        if any(device.kind == "mps" for device in self._devices):
            self._put(Warned(code="device-readings-not-available", values={"kind": "mps"}))
        try:
            nvml = Nvml()
        except NvmlUnavailableError as error:
            if not any(device.kind == "mps" for device in self._devices):
                self._put(error.warned)
            return None, {}
        found = {d.index: self._match(nvml, d) for d in self._devices if d.kind == "cuda"}
        return nvml, {index: handle for index, handle in found.items() if handle is not None}

    def _match(self, nvml: Nvml, device: Device) -> Handle | None:
        try:
            return nvml.handle(device.uuid or cuda_uuid(nvml, device.index))
        except nvml.Error as error:
            reason = reason_of(error)
        except LookupError as error:
            reason = str(error)
        values: dict[str, Scalar] = {"device": device.index, "uuid": device.uuid, "reason": reason}
        self._put(Warned(code="gpu-not-matched", values=values))
        return None

    def _put(self, event: DeviceSampled | HostSampled | Warned) -> None:
        if not self._stop.is_set():
            self._put_event(event)


def ticks(interval_s: float, stop: threading.Event) -> Iterator[None]:
    """Yield at a steady pace until `stop` is set; ticks that were missed are left out, not made up for."""
    next_s = time.monotonic()
    while not stop.wait(max(0.0, next_s - time.monotonic())):
        yield
        missed = max(0.0, time.monotonic() - next_s) // interval_s
        next_s += interval_s * (1 + missed)
