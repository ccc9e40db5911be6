"""`gradacc new` and `gradacc import`: commands that write a recipe."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Final

from gradacc_gui.importing.account import one_line, words_of
from gradacc_gui.importing.programs import import_config
from trainer_backend.errors import UsageError


def import_file(arguments: argparse.Namespace) -> int:
    """Write the recipe, and print what became of every key. With --json it is written only to --output."""
    if arguments.json:
        return _import_as_json(arguments)
    source = Path(arguments.file)
    imported = import_config(source)  # before its name is used: "" has none to change
    target = Path(arguments.output) if arguments.output else source.with_suffix(".toml")
    _write(target, imported.recipe_text(), force=arguments.force)
    for line in (*imported.lines, *imported.defaults):
        print(words_of(line))
    for sentence in imported.said:
        print(one_line(sentence))
    for asked in imported.open:
        print(one_line(f"To be filled in: {asked.key}. {asked.why}"))
    print(
        one_line(
            f"{target} written from {imported.source}. Open it in the window: what it lacks is marked there."
        )
    )
    return 0


def _import_as_json(arguments: argparse.Namespace) -> int:
    try:
        imported = import_config(Path(arguments.file))
        if arguments.output:
            _write(Path(arguments.output), imported.recipe_text(), force=arguments.force)
    except UsageError as error:
        nothing: dict[str, object] = {"recipe": {}, "account": [], "defaults": [], "open": [], "said": []}
        print(json.dumps({"refused": str(error), "source": None} | nothing))
        return error.exit_code
    print(json.dumps(imported.as_json()))
    return 0


def _write(target: Path, text: str, *, force: bool) -> None:
    if os.path.lexists(target) and not force:
        message = f"{target} already exists. Give another name with --output, or --force to overwrite it."
        raise UsageError(message)
    try:
        target.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        message = f"{target} cannot be written: {error.strerror}. Give another place with --output."
        raise UsageError(message) from error


TASK: Final = '''"""A task for gradacc: the model, the data and the loss that are trained.

Run it with `gradacc run {recipe}`, or open {recipe} in the window.
"""

import torch
from torch import nn
from torch.nn import functional

from trainer_backend.tasks import Datasets, LossTerm


class Task:
    """`[task.options]` of the recipe become the keyword arguments here."""

    def __init__(self, width: int = 64) -> None:
        self.width = width

    def model(self) -> nn.Module:
        """The module to train, on the CPU; gradacc moves it."""
        return nn.Sequential(nn.Linear(2, self.width), nn.GELU(), nn.Linear(self.width, 2))

    def datasets(self) -> Datasets:
        """Map-style (__len__ and __getitem__) or iterable; validation may be left out."""
        return Datasets(train=Rings(4096, seed=0), validation=Rings(512, seed=1))

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> LossTerm:
        """A *sum* over the batch and its denominator, never a mean: so that N micro-batches
        give exactly the gradient of one large batch.
        """
        points, labels = batch
        total = functional.cross_entropy(model(points).float(), labels, reduction="sum")
        return LossTerm(total, weight=len(labels))


class Rings(torch.utils.data.Dataset):
    """Points of two rings, to be told apart."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(2, (count,), generator=generator)
        angle = torch.rand(count, generator=generator) * 2 * torch.pi
        radius = 1 + self.labels + 0.3 * torch.randn(count, generator=generator)
        self.points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.points[index], self.labels[index]
'''

RECIPE: Final = """# A recipe for gradacc. The window explains every key; HOW-IT-WORKS.md lists them.

[run]
name = "{name}"
epochs = 10

[task]
kind = "custom"
entry = "{name}:Task"

[task.options]
width = 64

[accumulation]
micro_batch_size = 16
gradient_accumulation_steps = 4 # the effective batch is 16 x 4 = 64
normalization = "samples"

[optimizer]
name = "adamw"
learning_rate = 3e-3
max_grad_norm = 1.0

[schedule]
kind = "cosine"

[evaluation]
every_samples = 4096
"""


def new(arguments: argparse.Namespace) -> int:
    """Write the task and its recipe; never over a file that is there. Raises UsageError."""
    task = Path(arguments.path)
    if not task.name:
        raise UsageError("The path names no file. Give one, such as my_task.py.")
    if task.suffix != ".py":
        task = task.with_name(f"{task.name}.py")
    if not task.stem.isidentifier():
        message = f"{task.name} cannot be imported: {task.stem!r} is not a Python name. Try my_task.py."
        raise UsageError(message)
    recipe = task.with_suffix(".toml")
    texts = {
        task: TASK.format(recipe=recipe.name),
        recipe: RECIPE.format(name=task.stem),
    }
    for path in texts:
        if os.path.lexists(path):
            message = f"{path} already exists. Choose another name."
            raise UsageError(message)
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror}."
            raise UsageError(message) from error
    print(f"{task}: the model, the data and the loss\n{recipe}: the recipe\nNext: gradacc run {recipe}")
    return 0
