"""The first optimizer step of a recipe: its micro-batches as the run will read them, described row by row."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import torch

from trainer_backend.config import RunConfig
from trainer_backend.data.stream import Stream, make_stream
from trainer_backend.engine import Collated
from trainer_backend.engine.batches import mapped, size
from trainer_backend.kinds import KINDS
from trainer_backend.preflight.findings import AnyRow, FirstWindow, MicroBatchSeen
from trainer_backend.protocol import Scalar
from trainer_backend.recipe import Recipe
from trainer_backend.tasks import Datasets, Task
from trainer_backend.tasks.making import collate_of, datasets_of, make_task, method

Heard: TypeAlias = list[tuple[str, dict[str, Scalar]]]
"""Codes and values that a task warned of."""
MOST_SECONDS: Final = 20.0
"""A window that takes longer to read is shown as far as it came."""
MOST_SAMPLES: Final = 4096
MOST_TRIED: Final = 4
"""Micro-batches that are kept for a trial of the loss."""
DESCRIBERS: Final[Mapping[str, str]] = {
    "causal-lm": "trainer_backend.preflight.token_rows:TokenRows",
    "language-model": "trainer_backend.preflight.token_rows:ByteRows",
    "segmentation": "trainer_backend.preflight.picture_rows:SceneRows",
    "image-classification": "trainer_backend.preflight.picture_rows:LabelledRows",
    "custom": "trainer_backend.preflight.plain_rows:PlainRows",
}
"""`module:class` of what describes a kind's micro-batches; imported only for that kind."""
LIBRARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "causal-lm": ("transformers.models.auto", "transformers.models.auto.tokenization_auto", "torchvision"),
    "language-model": (),
    "segmentation": ("torchvision.transforms.v2", "segmentation_models_pytorch"),
    "image-classification": ("torchvision.transforms.v2", "timm"),
    "custom": (),
}
"""What each kind imports late, and takes seconds."""


class WindowRows(Protocol):
    """Describes the micro-batches of one kind of task."""

    unit: str
    """What the main loss term weighs."""

    def rows(self, batch: Collated, samples: list[Any]) -> tuple[AnyRow, ...]:
        """One row for each of a micro-batch's samples, which were collated to `batch`."""
        ...

    def padding_ratio(self, batch: Collated, rows: tuple[AnyRow, ...]) -> float | None:
        """The share of places that hold nothing; None where there are no such places."""
        ...

    def figures(self) -> dict[str, Any]:
        """Fields of `FirstWindow` that are known of the data as a whole."""
        ...


@dataclasses.dataclass(kw_only=True)
class DataRead:
    """A recipe's data, read as a run reads it."""

    recipe: Recipe
    task: Task
    datasets: Datasets
    stream: Stream
    samples: list[list[Any]]
    """What was collated, micro-batch by micro-batch, before it was collated."""
    describer: WindowRows
    heard: Heard
    batches: list[Collated] = dataclasses.field(default_factory=list)
    """The first micro-batches, for who tries the loss on them."""

    @property
    def config(self) -> RunConfig:
        """The recipe's checked configuration."""
        return self.recipe.config


def read_data(
    recipe: Recipe,
    heard: Heard,
    *,
    most: int | None = None,
    pictures: Path | None = None,
    takes_unknown_ids: bool = False,
) -> DataRead:
    """Read a recipe's data (of each path at most `most` records). Raises what a run would raise.

    `pictures`: a folder for pictures to look at; None: none are written. `takes_unknown_ids`: token ids
    beyond the model's embedding come through, to be shown; a check of its own refuses them then.
    """
    config = recipe.config
    task: Any = make_task(recipe, lambda code, values: heard.append((code, values)), most_records=most)
    if config.kind == "causal-lm":
        task.refuses_unknown_ids = not takes_unknown_ids
    datasets = datasets_of(task)
    samples: list[list[Any]] = []
    collate = method(task, "collate_training") or collate_of(task)

    def keeping(given: list[Any]) -> Any:  # noqa: ANN401 - any batch
        samples.append(list(given))
        return collate(given)

    stream = make_stream(
        datasets.train,
        keeping,
        seed=config.run.seed,
        shuffle=getattr(config.data, "shuffle", True),
        num_workers=0,
        epochs=config.run.epochs,
        max_samples=config.run.max_samples,
        tail=config.accumulation.tail,
        device=torch.device("cpu"),
    )
    return DataRead(
        recipe=recipe,
        task=task,
        datasets=datasets,
        stream=stream,
        samples=samples,
        describer=describer(recipe, task, datasets, pictures),
        heard=heard,
    )


def load_libraries(kind: str) -> None:
    """Import what reading data of a kind needs, nothing of the user's; what is missing is passed over."""
    modules = [DESCRIBERS[kind].partition(":")[0], KINDS[kind].maker.partition(":")[0], *LIBRARIES[kind]]
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def describer(recipe: Recipe, task: Any, datasets: Datasets, pictures: Path | None) -> WindowRows:  # noqa: ANN401
    """What describes micro-batches of the recipe's kind."""
    module, _, name = DESCRIBERS[recipe.config.kind].partition(":")
    made: Callable[..., WindowRows] = getattr(importlib.import_module(module), name)
    return made(recipe.config, task, datasets, pictures)


def first_window(
    data: DataRead, *, most_samples: int = MOST_SAMPLES, most_s: float = MOST_SECONDS, looked_at: int = 0
) -> FirstWindow:
    """The first optimizer step, read up to `most_samples` samples or `most_s` seconds.

    `looked_at`: records that were read, where those are not all.
    """
    config, describer_ = data.config, data.describer
    weigh = method(data.task, "weights")
    began = time.monotonic()
    seen: list[MicroBatchSeen] = []
    totals: Counter[str] = Counter()
    padding: list[tuple[float, int]] = []
    read, cut = 0, False
    for batch in data.stream.window(config.accumulation_steps, config.accumulation.micro_batch_size):
        if seen and (read >= most_samples or time.monotonic() - began > most_s):
            cut = True
            break
        # A data set of tensors is gathered, not collated sample by sample.
        samples = data.samples.pop() if data.samples else []
        rows = describer_.rows(batch, samples)
        weights = {} if weigh is None else weigh(mapped(batch.batch, lambda tensor: tensor))
        totals.update(weights)
        ratio = describer_.padding_ratio(batch, rows)
        count = batch.samples if batch.samples is not None else size(batch.batch)
        if ratio is not None:
            padding.append((ratio, places(batch)))
        if len(data.batches) < MOST_TRIED:
            data.batches.append(batch)
        seen.append(MicroBatchSeen(rows=rows, samples=count, weights=dict(weights), padding_ratio=ratio))
        read += count
    return _window(data, seen, totals, padding, looked_at=looked_at, cut=cut)


def _window(
    data: DataRead,
    seen: list[MicroBatchSeen],
    totals: Counter[str],
    padding: list[tuple[float, int]],
    *,
    looked_at: int,
    cut: bool,
) -> FirstWindow:
    config = data.config
    length = data.stream.samples_per_epoch
    figures = data.describer.figures()
    is_epoch = length is not None and sum(batch.samples for batch in seen) == length
    if is_epoch and totals and "weight" not in figures:
        figures["weight"] = float(next(iter(totals.values())))
    all_places = sum(count for _, count in padding)
    return FirstWindow(
        whole=not looked_at,
        looked_at=looked_at,
        micro_batches=tuple(seen),
        micro_batch_size=config.accumulation.micro_batch_size,
        steps=config.accumulation_steps,
        samples=length,
        unit=data.describer.unit,
        denominators={} if cut else dict(totals),
        padding_ratio=sum(ratio * count for ratio, count in padding) / all_places if all_places else None,
        **figures,
    )


def places(batch: Collated) -> int:
    """Places of a micro-batch's token rows: rows x the longest."""
    tokens = getattr(batch.batch, "tokens", batch.batch)
    return int(tokens.numel()) if isinstance(tokens, torch.Tensor) else 0
