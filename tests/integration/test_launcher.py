"""torchrun, unmodified, as the launcher of a run: `devices = 2` on a CPU, as anybody can try it."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.trainers import Trainer, events, make_probe
from trainer_backend.protocol import (
    CheckpointSaved,
    OptimizerStepMeasured,
    RunFailed,
    RunStarted,
    RunStopped,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in Linux's way")


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@pytest.mark.timeout(240)
def test_a_killed_rank_is_started_again_and_a_terminated_launcher_leaves_nothing(tmp_path: Path) -> None:
    """The same windows as undisturbed, in two attempts of one journal; nothing listens beyond loopback."""
    run = make_probe(
        tmp_path,
        {"run": {"devices": 2, "max_optimizer_steps": 100_000}, "checkpoint": {"every_samples": 8}},
        {"accumulation": {"gradient_accumulation_steps": 2}},
        length=11, duration_s=0.02,
    )  # fmt: skip
    with Trainer(run, cold=True) as trainer:
        first = trainer.wait_for_kind(RunStarted)
        trainer.wait_for_kind(CheckpointSaved)
        processes = tree(trainer.process.pid)
        assert len(processes) >= 3
        listening = [
            each.laddr.ip
            for process in processes
            for each in process.net_connections("inet")
            if each.status == psutil.CONN_LISTEN
        ]
        assert set(listening) <= {"127.0.0.1", "::1"}
        psutil.Process(first.pid).kill()
        second = trainer.wait_for_kind(RunStarted, lambda fact: fact.generation == 1)
        assert (second.launcher, second.micro_batches) == (first.launcher, 4)
        trainer.wait_for_kind(OptimizerStepMeasured, lambda row: row.step > second.from_step + 2)
        processes = tree(trainer.process.pid)
        trainer.process.send_signal(signal.SIGTERM)
        stopped = trainer.wait_for_kind(RunStopped)
        assert stopped.reason == "signal"
        trainer.wait()
        deadline = time.monotonic() + 10
        while any(process.is_running() for process in processes) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not [process for process in processes if process.is_running()]
    assert not events(run, RunFailed)
    of_step = {
        row.step: round((row.gradient_norm or 0.0) * row.samples)
        for row in events(run, OptimizerStepMeasured)
    }
    wanted = [1111, 1111_0000, 111_0000_0000]
    assert list(of_step.values()) == [wanted[(step - 1) % 3] for step in of_step]
    assert list(of_step) == list(range(1, len(of_step) + 1))
