"""The sampler's thread, and what it reads of the host, without a GPU."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from trainer_backend.protocol import Device, DeviceSampled, HostSampled, Warned
from trainer_backend.readings import THREAD_NAME, Sampler, TorchMemory
from trainer_backend.readings.device import EnergyMeter, Metrics
from trainer_backend.readings.host import HostReader
from trainer_backend.readings.sampler import ticks

PATIENCE_S = 20.0
MPS = Device(index=0, kind="mps", name="Apple GPU")


def threads() -> list[threading.Thread]:
    """The sampler's threads that run now."""
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


def take(events: queue.Queue[Any], kind: type) -> Any:
    """The next event of this kind."""
    while True:
        event = events.get(timeout=PATIENCE_S)
        if isinstance(event, kind):
            return event


def test_it_reads_in_one_thread_of_a_known_name_and_that_ends() -> None:
    """Starting twice is one thread; `stop` waits for its end, and may be called twice."""
    events: queue.Queue[Any] = queue.Queue()
    sampler = Sampler(events.put, [], 0.01)
    sampler.start()
    sampler.start()
    take(events, HostSampled)
    assert len(threads()) == 1
    sampler.stop()
    sampler.stop()
    assert threads() == []


def test_a_sampler_that_was_never_started_can_be_stopped() -> None:
    """As when the trainer fails before it."""
    Sampler(lambda _: None, [], 0.5).stop()
    assert threads() == []


def test_the_host_is_read_truly() -> None:
    """Against psutil itself, of this very process."""
    reader = HostReader(lambda warned: pytest.fail(f"{warned}"))
    reading = reader.sample()
    assert reading.process_rss_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert reading.host_memory_total_bytes == psutil.virtual_memory().total
    assert reading.host_memory_used_bytes is not None
    assert 0 < reading.host_memory_used_bytes < psutil.virtual_memory().total
    assert (reading.process_cpu_percent, reading.host_cpu_percent) == (None, None)  # too soon to tell


def test_cpu_is_told_once_there_was_time_to_measure_it() -> None:
    """Percentages over a few milliseconds would be noise."""
    events: queue.Queue[Any] = queue.Queue()
    sampler = Sampler(events.put, [], 0.11)
    sampler.start()
    take(events, HostSampled)
    second = take(events, HostSampled)
    sampler.stop()
    assert second.process_cpu_percent >= 0
    assert 0 <= second.host_cpu_percent <= 100


def test_workers_memory_is_that_of_the_children() -> None:
    """They come and go during a run."""

    def told() -> int:
        found = HostReader(lambda warned: pytest.fail(f"{warned}")).sample().workers_rss_bytes
        assert found is not None
        return found

    before = told()  # a resource tracker, say, of an earlier test
    program = "print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == b"up"
        grown = told() - before
        assert grown == pytest.approx(psutil.Process(child.pid).memory_info().rss, rel=0.2)
        child.communicate(b"\n", timeout=PATIENCE_S)
    assert told() == pytest.approx(before, abs=2**20)


def test_workers_are_found_where_the_system_lists_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows: by looking through all processes, seldom."""
    reader = HostReader(lambda warned: pytest.fail(f"{warned}"))
    monkeypatch.setattr(reader._workers, "_child_pids", reader._workers._looked_for)
    before = reader.sample().workers_rss_bytes
    assert before is not None
    reader = HostReader(lambda warned: pytest.fail(f"{warned}"))
    monkeypatch.setattr(reader._workers, "_child_pids", reader._workers._looked_for)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        told = reader.sample().workers_rss_bytes
        assert told is not None
        assert told > before
        child.communicate(b"\n", timeout=PATIENCE_S)
    assert reader.sample().workers_rss_bytes == pytest.approx(before, abs=2**20)


def test_on_apples_gpu_torchs_memory_is_told_and_the_rest_is_said_to_be_unknown() -> None:
    """There is no NVML for it; one sentence is enough."""
    events: queue.Queue[Any] = queue.Queue()
    sampler = Sampler(events.put, [MPS], 0.01, lambda _: TorchMemory(allocated_bytes=5, reserved_bytes=7))
    sampler.start()
    assert take(events, Warned).code == "device-readings-not-available"
    reading = take(events, DeviceSampled)
    sampler.stop()
    assert (reading.torch_allocated_bytes, reading.torch_reserved_bytes) == (5, 7)
    assert (reading.memory_used_bytes, reading.power_watts) == (None, None)


def test_torch_that_cannot_tell_is_one_warning() -> None:
    """After a device error torch raises from everything; the run itself reports that."""

    def broken(_: int) -> TorchMemory:
        raise RuntimeError("CUDA error: device-side assert triggered")

    events: queue.Queue[Any] = queue.Queue()
    sampler = Sampler(events.put, [MPS], 0.01, broken)
    sampler.start()
    for _ in range(3):
        assert take(events, DeviceSampled).torch_allocated_bytes is None
    sampler.stop()


def test_a_fault_of_the_readings_is_said_and_ends_only_the_readings() -> None:
    """Training goes on; nothing is swallowed."""

    def faulty(_: int) -> TorchMemory:
        raise KeyError("a bug")

    events: queue.Queue[Any] = queue.Queue()
    sampler = Sampler(events.put, [MPS], 0.01, faulty)
    sampler.start()
    warned = take(events, Warned)
    while warned.code != "readings-failed":
        warned = take(events, Warned)
    assert warned.values == {"reason": "KeyError('a bug')"}
    sampler.stop()


def test_a_host_metric_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems deny one of them."""
    warned: list[Warned] = []
    reader = HostReader(warned.append)

    def denied() -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "virtual_memory", denied)
    readings = [reader.sample() for _ in range(3)]
    assert {reading.host_memory_used_bytes for reading in readings} == {None}
    assert all(reading.process_rss_bytes for reading in readings)
    assert [event.values for event in warned] == [
        {"device": "host", "metric": "host_memory", "reason": "access-denied"}
    ]


def test_a_passing_failure_is_warned_of_once_and_read_again() -> None:
    """Only what can never work is not asked for again."""
    warned: list[Warned] = []
    metrics = Metrics(0, warned.append, (TimeoutError,))
    answers: Iterator[float | Exception] = iter([TimeoutError(), 5.0, TimeoutError(), 6.0])

    def read() -> float:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert [metrics.read("power", read) for _ in range(4)] == [None, 5.0, None, 6.0]
    assert len(warned) == 1


def test_energy_goes_on_when_a_driver_is_loaded_anew() -> None:
    """Its counter starts at 0 then."""
    meter = EnergyMeter()
    assert [meter.joules(counted) for counted in (9000, 9500, 200, 700)] == [0, 0.5, 0.7, 1.2]


def test_a_late_reading_is_left_out_not_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver call that takes three intervals must not be followed by a burst."""
    now_s = 100.0
    waited: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now_s
            assert timeout is not None
            waited.append(round(timeout, 6))
            now_s += timeout
            return len(waited) > 4

    monkeypatch.setattr("trainer_backend.readings.sampler.time.monotonic", lambda: now_s)
    for number, _ in enumerate(ticks(1.0, Stop())):
        now_s += 3.25 if number == 1 else 0.25
    assert waited == [0.0, 0.75, 0.75, 0.75, 0.75]
