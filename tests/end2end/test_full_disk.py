"""The disk is full while a run trains: it trains on, the window says why, and what is lost is a gap.

Where a small file system may be mounted (Linux, root) the disk is really full; elsewhere SQLite's own
error is raised where the journal writes, and the window is told that no room is left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from gradacc_gui.window.main_window import MainWindow
from tests.end2end.hand import Hand
from tests.support.trainers import Trainer, events, make_run, records
from trainer_backend.protocol import (
    MeasurementsLost,
    MicroBatchMeasured,
    OptimizerStepMeasured,
    RunFinished,
    RunStarted,
)

HELD = 60
"""Measurements that this trainer's journal keeps in memory; so few, that soon some are lost."""
DISK_BYTES = 4 << 20
# Prints too: user code's own words meet the full disk in trainer.log.
TASK = """
import os, sqlite3, time
from pathlib import Path
import torch
from trainer_backend import journal
from trainer_backend.tasks import Datasets, LossTerm

journal.HELD_MEASUREMENTS = HELD
here = Path(__file__).parent
write = journal.JournalWriter._write

def refused(self, events):
    if (here / "refuse").exists():
        raise sqlite3.OperationalError("database or disk is full")
    write(self, events)

journal.JournalWriter._write = refused

class Task:
    count = 0
    def model(self):
        return torch.nn.Linear(1, 1)
    def datasets(self):
        return Datasets(train=torch.utils.data.TensorDataset(torch.ones(100_000, 1)))
    def loss(self, model, batch):
        time.sleep(0.005)
        self.count += 1
        print("micro-batch", self.count, "x" * 200, flush=True)
        with (here / "count").open("ab") as file:
            file.write(b".")
        return LossTerm(model(batch[0]).square().sum(), len(batch[0]))
"""


class Disk:
    """The disk that runs lie on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        self.refuse = folder.parent / "source" / "refuse"
        folder.mkdir()
        self.is_real = sys.platform == "linux" and os.getuid() == 0 and self._mount()

    def _mount(self) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.folder)]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def fill(self) -> None:
        """No byte more."""
        if self.is_real:
            with (self.folder / "filler").open("wb", buffering=0) as file:
                while True:
                    try:
                        file.write(bytes(4096))
                    except OSError:
                        return
        self.refuse.touch()
        usage = shutil.disk_usage(self.folder)
        self._monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))

    def free(self) -> None:
        """Room again."""
        if self.is_real:
            (self.folder / "filler").unlink()
        else:
            self.refuse.unlink()
            self._monkeypatch.undo()

    def give_back(self) -> None:
        """Unmounted."""
        if self.is_real:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """GRADACC_HOME lies on it."""
    with pytest.MonkeyPatch.context() as own:
        disk = Disk(tmp_path / "disk", own)
        monkeypatch.setenv("GRADACC_HOME", str(disk.folder / "home"))
        yield disk
    disk.give_back()


def test_a_full_disk_stops_no_training_is_said_and_leaves_a_gap(
    disk: Disk, qtbot: QtBot, make_window: Callable[[], MainWindow], tmp_path: Path
) -> None:
    """Full ▸ the banner, and micro-batches go on ▸ free ▸ the banner goes, steps come, a gap is drawn."""
    source = tmp_path / "source"
    source.mkdir()
    module = tmp_path / "disk_task.py"
    module.write_text(TASK.replace("HELD\n", f"{HELD}\n"), encoding="utf-8")
    recipe: dict[str, Any] = {
        "run": {"device": "cpu", "max_optimizer_steps": 100_000},
        "accumulation": {"micro_batch_size": 1, "gradient_accumulation_steps": 4},
    }
    run = make_run(source, recipe, module=module)
    count = source / "count"
    with Trainer(run) as trainer:
        hand = Hand(qtbot, make_window())
        hand.window.open_run(run)
        hand.wait_for_state("running")
        hand.wait_for_steps(2)
        hand.window.live.ensure_charts()
        disk.fill()
        notice = hand.window.live.notices.disk
        hand.wait(notice.isVisible)
        assert "is full" in notice.sentence.text()
        goal = count.stat().st_size + 5 * HELD
        hand.wait(lambda: count.stat().st_size > goal)
        assert trainer.process.poll() is None
        assert hand.window.run is not None
        assert hand.window.run.state == "running"

        disk.free()
        hand.wait(notice.isHidden)
        hand.wait(lambda: bool(events(run, MeasurementsLost)))
        hand.wait_for_steps(2)
        assert any("measurements lost" in line for line in hand.log())
        lost = events(run, MeasurementsLost)[0]
        store = hand.window.run.store
        (mark, *_) = store.markers.lost
        assert mark.begin.on("steps") < mark.end.on("steps")
        hand.wait(lambda: any(card.view.lost for card in hand.window.live.charts.cards))

        hand.window.live.side.buttons.stop_clean.trigger()
        hand.wait_for_state("stopped")
        trainer.wait()
    assert lost.last - lost.first > HELD
    assert len(events(run, RunStarted)) == 1
    seen = {record.seq for record in records(run) if isinstance(record.event, MicroBatchMeasured)}
    assert not seen & set(range(lost.first, lost.last + 1))
    last = events(run, OptimizerStepMeasured)[-1]
    assert last.samples_seen == 4 * last.step, "training itself lost nothing"
    assert events(run, RunFinished) == []
