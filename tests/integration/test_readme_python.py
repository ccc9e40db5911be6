"""Every Python block of HOW-IT-WORKS runs as it stands; where it says `trainer`, it is given one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.trainers import events
from trainer_backend.protocol import OptimizerStepMeasured
from trainer_backend.run_directory import all_runs

PAGES = [Path(__file__).parents[2] / name for name in ("README.md", ".github/HOW-IT-WORKS.md")]
BLOCKS: list[str] = [
    block
    for page in PAGES
    for block in re.findall(r"```python\n(.+?)```", page.read_text("utf-8"), flags=re.DOTALL)
]
ALONE = [block for block in BLOCKS if "trainer\n" not in block and "(trainer)" not in block]
WITH_TRAINER = [block for block in BLOCKS if block not in ALONE]


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Eight rows of three classes."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([float(index)]), "labels": torch.tensor(index % 3)}


class Classifier(torch.nn.Module):
    """A model as transformers wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        """Loss and prediction."""
        from transformers.modeling_outputs import SequenceClassifierOutput

        found = self.layer(x)
        return SequenceClassifierOutput(loss=torch.nn.functional.cross_entropy(found, labels), logits=found)


def small_trainer(folder: Path) -> Any:
    """A Trainer of transformers': two micro-batches a step."""
    import transformers

    return transformers.Trainer(
        model=Classifier(),
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            num_train_epochs=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            dataloader_pin_memory=False,
        ),
        train_dataset=Rows(),
    )


def run(block: str, **given: Any) -> dict[str, Any]:
    """What it leaves behind."""
    names: dict[str, Any] = {"__name__": "manual"} | given
    exec(compile(block, "HOW-IT-WORKS.md", "exec"), names)  # noqa: S102 - our own text
    return names


def test_every_block_is_run_here() -> None:
    """A block that is added has to be seen too."""
    assert (len(ALONE), len(WITH_TRAINER)) == (2, 2)


@pytest.mark.parametrize("block", ALONE, ids=range(len(ALONE)))
def test_a_block_that_needs_nothing_runs_as_it_stands(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The sketch of a task has its methods; the loop of one's own trains to the last sample."""
    names = run(block)
    if "Task" in names:
        assert callable(names["Task"]().loss)
    else:
        assert names["accumulator"].samples_seen == 90
        assert len(capsys.readouterr().out.splitlines()) == names["accumulator"].step == 6


@pytest.mark.parametrize("block", WITH_TRAINER, ids=range(len(WITH_TRAINER)))
def test_a_block_beside_a_trainer_runs_with_one(block: str, tmp_path: Path) -> None:
    """Watched before it trains, or audited while it does."""
    trainer = small_trainer(tmp_path)
    names = run(block, trainer=trainer)
    if "audit" in names:
        assert len(names["audit"].windows) == 2
    else:
        trainer.train()
        (watched,) = all_runs()
        assert [step.step for step in events(watched, OptimizerStepMeasured)] == [1, 2]
    assert trainer.state.global_step == 2
