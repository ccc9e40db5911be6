"""Readings of GPUs, through the real pynvml and a fake libnvidia-ml.so.1 (tests/support/fake_nvml.c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import LARGE, MIG, SMALL, Run, kinds

GIB = 2**30
MIB = 2**20
TORCH = {
    "allocated_bytes": 100,
    "reserved_bytes": 200,
    "allocated_peak_bytes": 300,
    "reserved_peak_bytes": 400,
}
NO_TORCH = dict.fromkeys(TORCH, 0)
METRICS = {
    "MEMORY": ("memory", ["memory_used_bytes", "memory_reserved_bytes", "memory_total_bytes"]),
    "PROCESSES": ("process_memory", ["process_memory_bytes"]),
    "UTILIZATION": ("utilization", ["utilization_percent"]),
    "TEMPERATURE": ("temperature", ["temperature_celsius"]),
    "POWER": ("power", ["power_watts"]),
    "ENERGY": ("energy", ["energy_joules"]),
}
FIELDS = [field for _, fields in METRICS.values() for field in fields]


def readings(events: list[dict[str, Any]], device: int = 0) -> list[dict[str, Any]]:
    """The readings of one device, in order."""
    return [event for event in kinds(events, "DeviceSampled") if event["device"] == device]


def warnings(events: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Code and values of each warning, in order."""
    return [(event["code"], event["values"]) for event in kinds(events, "Warned")]


def test_each_of_two_cards_is_read_by_its_uuid_though_cuda_counts_them_the_other_way_round(
    sample: Run,
) -> None:
    """CUDA's device 0 is the faster card, NVML's 0 the one with the lower PCI address."""
    events = sample(
        (0, LARGE), (1, SMALL), env={"FAKE_NVML_PID_0": "self", "FAKE_NVML_PID_1": "self"}, torch=TORCH
    )
    large, small = readings(events, 0)[0], readings(events, 1)[0]
    assert (
        large
        | {
            "memory_used_bytes": 3 * GIB,
            "memory_reserved_bytes": 512 * MIB,
            "memory_total_bytes": 24 * GIB,
            "process_memory_bytes": 2048 * MIB,
            "utilization_percent": 88,
            "temperature_celsius": 63,
            "power_watts": 250.5,
            "torch_allocated_bytes": 100,
            "torch_reserved_bytes": 200,
            "torch_allocated_peak_bytes": 300,
            "torch_reserved_peak_bytes": 400,
        }
        == large
    )
    assert (small["memory_total_bytes"], small["power_watts"], small["process_memory_bytes"]) == (
        8 * GIB,
        75,
        700 * MIB,
    )
    assert warnings(events) == []


def test_a_bare_uuid_as_torch_gives_it_finds_the_card(sample: Run) -> None:
    """Torch leaves NVML's "GPU-" away."""
    events = sample((0, LARGE.removeprefix("GPU-")))
    assert readings(events)[0]["memory_total_bytes"] == 24 * GIB


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_that_is_not_supported_is_unknown_with_one_reason_and_the_others_go_on(
    sample: Run, metric: str
) -> None:
    """Each of them may be missing on its own; on the other card it is there."""
    name, fields = METRICS[metric]
    env = {f"FAKE_NVML_{metric}_1": "3", "FAKE_NVML_PID_0": "self", "FAKE_NVML_PID_1": "self"}
    events = sample((0, LARGE), (1, SMALL), env=env, readings=3)
    assert len(readings(events, 0)) >= 3
    for reading in readings(events, 0):
        assert [field for field in FIELDS if reading[field] is None] == fields
    for reading in readings(events, 1):
        assert None not in [reading[field] for field in FIELDS]
    assert warnings(events) == [
        ("metric-not-supported", {"device": 0, "metric": name, "reason": "not-supported"})
    ]


@pytest.mark.parametrize(
    ("word", "value", "metric", "field"),
    [
        ("USED", 2**64 - 1, "memory_used", "memory_used_bytes"),
        ("RESERVED", 2**64 - 1, "memory_reserved", "memory_reserved_bytes"),
        ("TOTAL", 2**64 - 1, "memory_total", "memory_total_bytes"),
        ("PROCESS_USED", 2**64 - 1, "process_memory", "process_memory_bytes"),
        ("POWER", 2**32 - 1, "power", "power_watts"),
        ("TEMPERATURE", 2**32 - 1, "temperature", "temperature_celsius"),
    ],
)
def test_nvmls_sentinel_is_unknown_never_1_8e19(
    sample: Run, word: str, value: int, metric: str, field: str
) -> None:
    """All bits set means "not available"; under WDDM and WSL a process's memory is always so."""
    events = sample((0, LARGE), env={f"FAKE_NVML_SAY_{word}_1": str(value), "FAKE_NVML_PID_1": "self"})
    assert [reading[field] for reading in readings(events)] == [None] * len(readings(events))
    assert warnings(events) == [
        ("metric-not-supported", {"device": 0, "metric": metric, "reason": "not-available"})
    ]


def test_a_stranger_on_the_card_is_not_shown_as_this_process(sample: Run) -> None:
    """The driver lists somebody, but not us, while torch holds memory there."""
    events = sample((0, LARGE), env={"FAKE_NVML_PID_1": "1"}, torch=TORCH)
    assert {reading["process_memory_bytes"] for reading in readings(events)} == {None}
    assert warnings(events) == [
        ("metric-not-supported", {"device": 0, "metric": "process_memory", "reason": "process-not-listed"})
    ]


def test_in_a_container_a_process_of_the_same_number_is_not_shown_as_this_one(sample: Run) -> None:
    """There the driver counts by the host's numbers."""
    events = sample((0, LARGE), env={"FAKE_NVML_PID_1": "self"}, torch=TORCH, global_pids=False)
    assert {reading["process_memory_bytes"] for reading in readings(events)} == {None}
    assert warnings(events) == [
        ("metric-not-supported", {"device": 0, "metric": "process_memory", "reason": "pid-namespace"})
    ]


def test_before_torch_holds_memory_the_process_holds_none(sample: Run) -> None:
    """Not listed and nothing allocated is a true zero, no gap."""
    events = sample((0, LARGE), torch=NO_TORCH)
    assert {reading["process_memory_bytes"] for reading in readings(events)} == {0}
    assert warnings(events) == []


def test_energy_counts_from_the_start_of_the_attempt(sample: Run) -> None:
    """The driver's counter is as old as the driver; the fake's grows by 1.5 J a reading."""
    events = sample((0, LARGE), readings=3)
    assert [reading["energy_joules"] for reading in readings(events)][:3] == [1.5, 3.0, 4.5]


def test_an_old_driver_without_memory_v2_gives_what_it_can(sample: Run, old_nvml: Path) -> None:
    """Its "used" holds what is reserved, which cannot be told apart: reserved is unknown."""
    events = sample((0, LARGE), library=old_nvml)
    first = readings(events)[0]
    assert first["memory_used_bytes"] == 3 * GIB + 512 * MIB
    assert first["memory_total_bytes"] == 24 * GIB
    assert first["memory_reserved_bytes"] is None
    assert sorted(values["metric"] for _, values in warnings(events)) == ["memory_reserved", "process_memory"]


def test_a_mig_device_shows_its_own_memory_and_says_what_it_cannot(sample: Run) -> None:
    """Power and temperature belong to the whole card, which is not this run's."""
    events = sample((0, MIG.removeprefix("MIG-")))
    assert readings(events)[0]["memory_total_bytes"] == 5 * GIB
    assert readings(events)[0]["power_watts"] is None
    assert "power" in [values["metric"] for _, values in warnings(events)]


def test_a_card_that_falls_off_the_bus_becomes_a_gap_with_one_reason(sample: Run, tmp_path: Path) -> None:
    """The other card, the host and torch's own counters go on."""
    lost = tmp_path / "lost"
    env = {"FAKE_NVML_LOST": str(lost), "FAKE_NVML_PID_0": "self", "FAKE_NVML_PID_1": "self"}
    events = sample((0, LARGE), (1, SMALL), env=env, touch=str(lost), readings=4, torch=TORCH)
    last = readings(events, 1)[-1]
    assert [last[field] for field in FIELDS] == [None] * len(FIELDS)
    assert last["torch_reserved_bytes"] == 200
    assert None not in [readings(events, 0)[-1][field] for field in FIELDS]
    assert warnings(events) == [("gpu-lost", {"device": 1, "reason": "gpu-is-lost"})]


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (18, "nvml-driver-mismatch", "lib-rm-version-mismatch"),
        (9, "nvml-driver-not-loaded", "driver-not-loaded"),
        (4, "nvml-no-permission", "no-permission"),
        (999, "nvml-failed", "unknown"),
        (777, "nvml-failed", "error-777"),
    ],
)
def test_a_driver_that_does_not_open_is_one_reason_and_the_rest_goes_on(
    sample: Run, error: int, code: str, reason: str
) -> None:
    """Torch's counters and the host are charted."""
    events = sample((0, LARGE), env={"FAKE_NVML_INIT": str(error)}, torch=TORCH, readings=3)
    assert warnings(events) == [(code, {"reason": reason, "system": "Linux"})]
    assert len(kinds(events, "HostSampled")) >= 3
    assert readings(events)[0]["torch_allocated_bytes"] == 100
    assert [readings(events)[0][field] for field in FIELDS] == [None] * len(FIELDS)


def test_without_a_driver_library_a_run_on_the_cpu_says_so_once_and_reads_the_host(
    sample: Run, tmp_path: Path
) -> None:
    """An empty file stands where the library would be, so that a machine that has one acts the same."""
    (tmp_path / "libnvidia-ml.so.1").touch()
    events = sample(library=tmp_path, readings=3)
    assert warnings(events) == [("nvml-library-missing", {"reason": "library-not-found", "system": "Linux"})]
    assert kinds(events, "DeviceSampled") == []
    assert kinds(events, "HostSampled")[0]["process_rss_bytes"] > MIB


def test_a_card_that_nvml_does_not_know_is_said(sample: Run) -> None:
    """A card hidden from this container, say."""
    events = sample((0, "GPU-dead0000-0000-4000-8000-00000000dead"), torch=TORCH)
    ((code, values),) = warnings(events)
    assert (code, values["reason"]) == ("gpu-not-matched", "not-found")
    assert readings(events)[0]["torch_allocated_bytes"] == 100


@pytest.mark.parametrize(
    ("visible", "order", "expected"),
    [
        ("1,0", "PCI_BUS_ID", [24 * GIB, 8 * GIB]),
        (f"{LARGE},{SMALL}", "", [24 * GIB, 8 * GIB]),
        ("GPU-b,GPU-a", "", [24 * GIB, 8 * GIB]),
        (SMALL, "", [8 * GIB, None]),
        ("1,0", "", [None, None]),
        ("1,1", "PCI_BUS_ID", [None, None]),
        ("-1", "PCI_BUS_ID", [None, None]),
        ("", "PCI_BUS_ID", [None, None]),
        (MIG, "", [5 * GIB, None]),
    ],
)
def test_where_torch_gave_no_uuid_the_environment_decides_or_the_reading_is_unknown(
    sample: Run, visible: str, order: str, expected: list[int | None]
) -> None:
    """A wrong card's readings would be worse than none: unlike cards are told by CUDA's order only."""
    events = sample((0, ""), (1, ""), env={"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order})
    assert [readings(events, i)[0]["memory_total_bytes"] for i in (0, 1)] == expected
    assert len([code for code, _ in warnings(events) if code == "gpu-not-matched"]) == expected.count(None)


def test_nvml_and_its_handles_are_opened_once(sample: Run, tmp_path: Path) -> None:
    """However many readings there are."""
    log = tmp_path / "log"
    sample((0, LARGE), (1, SMALL), env={"FAKE_NVML_LOG": str(log)}, readings=5)
    assert log.read_text("ascii").split() == ["init", "handle", "handle", "shutdown"]
