"""Faults injected into real runs: found by the trainer, in its journal, and told without a window."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainers import events, make_run, run_here
from trainer_backend.protocol import AlertRaised, OptimizerStepMeasured, RunFinished

TASK = """
import time

import torch
from trainer_backend.tasks import Datasets, LossTerm


class Data(torch.utils.data.Dataset):
    def __init__(self, spike_at):
        self.spike_at = spike_at
        self.noise = torch.randn(20_000, generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        return 3.0 + 0.1 * self.noise[index] + (5.0 if index // 4 == self.spike_at else 0.0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Linear(1, 1)
        self.unused = torch.nn.Linear(2, 2)


class Task:
    def __init__(self, spike_at=-1, slow_from=-1):
        self.spike_at, self.slow_from, self.seen = spike_at, slow_from, 0

    def model(self):
        return Net()

    def datasets(self):
        return Datasets(train=Data(self.spike_at))

    def loss(self, model, y):
        self.seen += 1
        if 0 <= self.slow_from < self.seen:
            time.sleep(0.01)
        x = model.w(torch.zeros(len(y), 1)).squeeze(1)
        return LossTerm(((y + 0 * x).abs() + 1e-9 * x * x).sum(), weight=len(y))
"""


def run_of(folder: Path, windows: int, **options: int) -> dict[str, Any]:
    """A recipe of `windows` windows of four samples, which tells by a command."""
    (folder / "watched_task.py").write_text(TASK)
    tell = folder / "tell.py"
    tell.write_text(
        "import os, pathlib, sys\n"
        f"with pathlib.Path({str(folder / 'told.jsonl')!r}).open('a') as file:\n"
        "    file.write(sys.stdin.read() + '\\n')\n"
    )
    return {
        "run": {"device": "cpu", "precision": "fp32", "max_optimizer_steps": windows,
                "gradient_norm_every": 50},
        "task": {"kind": "custom", "entry": "watched_task:Task", "options": options},
        "data": {"shuffle": False},
        "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
        "optimizer": {"name": "sgd", "learning_rate": 1e-6},
        "notify": {"command": f'"{sys.executable}" "{tell}"', "on": ["alert", "finished"]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "code", "step"),
    [({"spike_at": 1900}, "loss-spike", 1901), ({"slow_from": 3600}, "step-time-drift", 1800)],
)
def test_an_injected_fault_is_found_recorded_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, int], code: str, step: int
) -> None:
    """A spike in the data, and a loss that grows slow; beside them, two parameters without a gradient."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "watched_task", raising=False)
    run = make_run(tmp_path, run_of(tmp_path, 2000, **options))
    assert run_here(run) == 0
    assert events(run, RunFinished)
    assert len(events(run, OptimizerStepMeasured)) == 2000
    alerts = {alert.code: alert for alert in events(run, AlertRaised)}
    assert alerts["no-gradient"].values == {"count": 2, "of": 4, "first": "unused.weight"}
    assert abs(alerts[code].since_step - step) <= 60
    told = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines() if line]
    assert [message["occasion"] for message in told][-1] == "finished"
    assert {message["code"] for message in told if message["occasion"] == "alert"} == set(alerts)
