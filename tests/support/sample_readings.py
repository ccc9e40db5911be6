"""Run the real sampler against whatever NVML this process finds, and print what it put, as JSON lines.

    python -m tests.support.sample_readings '{"devices": [[0, "GPU-…"]], "readings": 2}'

`devices` are pairs of torch's index and UUID; `torch` the four numbers of `TorchMemory`, or null;
`touch` a file to make after the first reading; `global_pids` says what the PID namespace is to be.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from trainer_backend.protocol import Device, HostSampled, Record, record_json
from trainer_backend.readings import Sampler, TorchMemory, device

PATIENCE_S = 30.0


def main(order: dict[str, Any]) -> None:
    """Sample until there were as many readings as ordered."""
    device.pids_are_the_drivers = lambda: order.get("global_pids", True)
    events: list[Any] = []
    enough = threading.Event()

    def put(event: Any) -> None:
        events.append(event)
        readings = sum(isinstance(event, HostSampled) for event in events)
        if readings == 1 and "touch" in order:
            Path(order["touch"]).touch()
        if readings > order.get("readings", 2):
            enough.set()

    def torch_memory(_: int) -> TorchMemory:
        return TorchMemory(**order["torch"])

    devices = [Device(index=i, kind="cuda", name=f"card {i}", uuid=uuid) for i, uuid in order["devices"]]
    sampler = Sampler(put, devices, 0.02, torch_memory if order.get("torch") else None)
    sampler.start()
    enough.wait(PATIENCE_S)
    sampler.stop()
    for number, event in enumerate(events):
        print(record_json(Record(number, 1, 0.0, event)).decode())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
