"""Readings of the machine and of this process, through psutil."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from trainer_backend.protocol import HostSampled
from trainer_backend.readings.device import Metrics, Warn
from trainer_backend.readings.nvml import reason_of

CHILDREN_FOUND_AGAIN_AFTER_S: Final = 5.0
"""Where the system has no cheap list of children, all processes are looked through so seldom."""

SHORTEST_CPU_TIME_S: Final = 0.1
"""The system counts CPU time in hundredths of a second: a percentage of less time than this is noise."""


class HostReader:
    """Memory and CPU of the machine, of this process and of its loader workers."""

    def __init__(self, warn: Warn) -> None:
        self._process = psutil.Process()
        self._workers = Workers(self._process)
        self._metrics = Metrics("host", warn, (psutil.Error, OSError))
        self._cpu()

    def sample(self) -> HostSampled:
        """One reading. Host memory used is what no program could get now: total less available.

        CPU percentages are over the time since the reading before, and None over less than 0.1 s.
        """
        read = self._metrics.read
        memory = self._memory()
        process_cpu, host_cpu = self._cpu() if time.monotonic() >= self._cpu_from_s else (None, None)
        return HostSampled(
            process_rss_bytes=_whole(read("process_rss", lambda: int(self._process.memory_info().rss))),
            workers_rss_bytes=_whole(read("workers_rss", self._workers.rss_bytes)),
            host_memory_used_bytes=None if memory is None else memory[0],
            host_memory_total_bytes=None if memory is None else memory[1],
            process_cpu_percent=process_cpu,
            host_cpu_percent=host_cpu,
        )

    def _cpu(self) -> tuple[float | None, float | None]:
        self._cpu_from_s = time.monotonic() + SHORTEST_CPU_TIME_S
        read = self._metrics.read
        return (
            read("process_cpu", lambda: float(self._process.cpu_percent(None))),
            read("host_cpu", lambda: float(psutil.cpu_percent(None))),
        )

    def _memory(self) -> tuple[int, int] | None:
        try:
            memory = psutil.virtual_memory()
        except (psutil.Error, OSError) as error:
            self._metrics.unavailable("host_memory", reason_of(error))
            return None
        return int(memory.total - memory.available), int(memory.total)


class Workers:
    """This process's children: the data loader's workers."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._found: dict[int, psutil.Process] = {}
        self._looked_at_s = -CHILDREN_FOUND_AGAIN_AFTER_S
        self._children_lists = Path(f"/proc/{process.pid}/task")
        self._child_pids: Callable[[], set[int]] = (
            self._listed
            if (self._children_lists / str(process.pid) / "children").exists()
            else self._looked_for
        )

    def rss_bytes(self) -> int:
        """Resident bytes of all children together; pages that they share are counted in each."""
        pids = self._child_pids()
        self._found = {pid: child for pid, child in self._found.items() if pid in pids}
        total = 0
        for pid in pids:
            try:
                child = self._found.setdefault(pid, psutil.Process(pid))
                total += child.memory_info().rss
            except psutil.Error:  # ended since it was listed
                self._found.pop(pid, None)
        return total

    def _listed(self) -> set[int]:
        """Linux lists the children of each thread; reading that costs microseconds."""
        pids: set[int] = set()
        for thread in os.listdir(self._children_lists):  # noqa: PTH208 - names are all that is needed
            try:
                pids.update(map(int, (self._children_lists / thread / "children").read_text("ascii").split()))
            except OSError:  # a thread that ended since
                continue
        return pids

    def _looked_for(self) -> set[int]:
        now_s = time.monotonic()
        if now_s - self._looked_at_s >= CHILDREN_FOUND_AGAIN_AFTER_S:
            self._looked_at_s = now_s
            return {child.pid for child in self._process.children()}
        return set(self._found)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
