"""A save that takes longer than a stop's patience is finished all the same, and says how far it is."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.trainers import Trainer, events, make_run
from trainer_backend.protocol import CheckpointSaved, OptimizerStepMeasured, PhaseEntered, RunStopped, Stop
from trainer_backend.run_directory import checkpoints_in

SAVE_S = 1.5
TASK = f"""
import time
import torch
from trainer_backend.tasks import Datasets, LossTerm
from trainer_backend.trainer import checkpoint, lifecycle

lifecycle.LAST_RESORT_S = lifecycle.LOOK_S = 0.1
write = checkpoint._sha256

def slowly(path):
    time.sleep({SAVE_S} / 3)
    return write(path)

checkpoint._sha256 = slowly

class Task:
    def model(self):
        return torch.nn.Linear(1, 1)
    def datasets(self):
        return Datasets(train=torch.utils.data.TensorDataset(torch.ones(64, 1)))
    def loss(self, model, batch):
        time.sleep(0.005)
        return LossTerm(model(batch[0]).square().sum(), len(batch[0]))
"""
RECIPE = {
    "run": {"device": "cpu", "max_optimizer_steps": 100_000},
    "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
}


@pytest.mark.parametrize("when", ["on the way", "at a stop"])
@pytest.mark.parametrize("how", ["stop now", "signals"])
def test_nothing_that_comes_while_a_checkpoint_is_saved_cuts_it_short(
    tmp_path: Path, when: str, how: str
) -> None:
    """The process ended itself ten seconds after a second Ctrl-C, in the middle of the file."""
    module = tmp_path / "slow_task.py"
    module.write_text(TASK, encoding="utf-8")
    every = {"every_samples": 8} if when == "on the way" else {"every_minutes": "never"}
    run = make_run(tmp_path / "run", RECIPE | {"checkpoint": every}, module=module)
    with Trainer(run) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured)
        if when == "at a stop":
            trainer.ask(Stop())
        trainer.wait_for_kind(PhaseEntered, lambda entered: entered.phase == "saving")
        if how == "stop now":
            trainer.ask(Stop(now=True))
        else:
            for _ in range(3):
                trainer.process.send_signal(signal.SIGTERM)
                trainer.process.send_signal(signal.SIGINT)
        end = trainer.end()
        assert trainer.wait() == 0
    assert isinstance(end, RunStopped)
    assert [saved.step for saved in events(run, CheckpointSaved)][-1] == end.step
    assert list(checkpoints_in(run.checkpoints_path))[-1] == end.step
    done = [entered.done_ratio for entered in events(run, PhaseEntered) if entered.done_ratio is not None]
    assert done
    assert all(0 <= ratio <= 1 for ratio in done)
