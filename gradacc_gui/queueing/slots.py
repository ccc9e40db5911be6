"""Which device a run wants, and which ones live runs have: one run a GPU, and `cpu_runs` on the CPU."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gradacc_gui.session.runs import open_journal
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import Device, RunStarted
from trainer_backend.readings.describe import describe_devices
from trainer_backend.run_directory import RunDirectory, all_runs

CPU: Final = "cpu"


class TakenDevices(msgspec.Struct, frozen=True):
    """A live run, and the devices that it has."""

    run: RunDirectory
    name: str
    devices: tuple[str, ...]


def device_name(device: Device) -> str:
    """A device as recipes name it: cuda:1, mps, cpu."""
    return f"{device.kind}:{device.index}" if device.kind == "cuda" else device.kind


@functools.lru_cache(maxsize=1)
def cuda_devices() -> tuple[str, ...]:
    """The GPUs that a trainer started from here would see; looked up once a process."""
    found = describe_devices()
    count = sum(card.cuda_index is not None for card in found.cards)
    if not found.order_is_known:
        count = len(found.cards)
    if found.mig_uuid:
        count = 1
    return tuple(f"cuda:{index}" for index in range(count))


def wanted(device: object) -> tuple[str, ...]:
    """The devices of which a run with this `run.device` takes the first that is free."""
    match device:
        case "cuda":
            return ("cuda:0",)
        case str() if device not in ("", "auto"):
            return (device,)
        case _:
            return cuda_devices() or (("mps",) if sys.platform == "darwin" else (CPU,))


def taken() -> list[TakenDevices]:
    """Every live run with its devices, queued or not."""
    return [
        TakenDevices(run, run.asked_name or run.id, devices_of(run)) for run in all_runs() if run.is_alive()
    ]


def devices_of(run: RunDirectory) -> tuple[str, ...]:
    """What a live run has: as its trainer told it, else, while it loads, the first that it asks for."""
    try:
        if run.journal_path.is_file():
            with open_journal(run, alive=True) as reader:
                record = reader.newest_fact(RunStarted)
            if record is not None and isinstance(record.event, RunStarted) and record.event.pid == run.pid():
                return tuple(map(device_name, record.event.devices))
    except GradaccError:  # a damaged journal; its trainer still has the device that it asked for
        pass
    return wanted(run.recipe_value("run.device"))[:1]


def free_device(
    asked: Iterable[str], live: Iterable[TakenDevices], *, cpu_runs: int = 1, kept_free: Iterable[str] = ()
) -> str | None:
    """The first of `asked` that is free; None when all are taken."""
    counts = _counts(live)
    kept = set(kept_free)
    for device in asked:
        room = cpu_runs if device == CPU else 1
        if device not in kept and counts.get(device, 0) < room:
            return device
    return None


def in_the_way(asked: Iterable[str], live: Iterable[TakenDevices]) -> TakenDevices | None:
    """A live run that has one of these devices; None when there is none."""
    wanted_devices = set(asked)
    return next((one for one in live if wanted_devices & set(one.devices)), None)


def _counts(live: Iterable[TakenDevices]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for one in live:
        for device in one.devices:
            counts[device] = counts.get(device, 0) + 1
    return counts
