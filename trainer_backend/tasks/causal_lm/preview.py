"""What a recipe's text data becomes, before anything starts: refused or said, and the first window's rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice
from typing import Any

from trainer_backend.data.order import epoch_order
from trainer_backend.errors import GradaccError
from trainer_backend.kinds.text_warnings import TEXT_WARNINGS
from trainer_backend.protocol import Scalar
from trainer_backend.recipe import Recipe
from trainer_backend.tasks.causal_lm.layout import EncodedItems
from trainer_backend.tasks.causal_lm.task import CausalLM


@dataclasses.dataclass(frozen=True)
class PreviewRow:
    """One row as the model will see it."""

    source: str
    """`file:line` of its sample; of a packed row, of each."""
    texts: tuple[str, ...]
    """Each token as text."""
    weights: tuple[float, ...]
    """What the loss of predicting each token weighs; 0 for the first of a sample."""
    ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class TextPreview:
    """What `gradacc check` shows of a text recipe."""

    refused: str | None
    """Why the data cannot be used, in a sentence."""
    warnings: tuple[tuple[str, dict[str, Scalar]], ...] = ()
    """What was decided, by code and values."""
    samples: int = 0
    """Rows to train on, after layout."""
    weight: float = 0.0
    """Sum of the loss weights of an epoch."""
    window: tuple[PreviewRow, ...] = ()
    """Rows of the first window."""

    @property
    def said(self) -> tuple[str, ...]:
        """What was decided, in sentences."""
        return tuple(_sentence(code, values) for code, values in self.warnings)


def _sentence(code: str, values: dict[str, Scalar]) -> str:
    known = TEXT_WARNINGS.get(code)
    if known is not None:
        return known.format_map(values)
    return f"{code}: " + ", ".join(f"{key} = {value}" for key, value in values.items())


def preview_text(recipe: Recipe, *, rows: int | None = None) -> TextPreview:
    """Read a causal-lm recipe's data as a run would. `rows`: how many to show; default the first window's."""
    warnings: list[tuple[str, dict[str, Scalar]]] = []
    config = recipe.config
    try:
        task = CausalLM.from_recipe(recipe, lambda code, values: warnings.append((code, values)))
        items: EncodedItems = task.datasets().train
    except GradaccError as error:
        return TextPreview(str(error), tuple(warnings))
    shuffle = bool(getattr(config.data, "shuffle", True))
    order: list[int] = epoch_order(len(items), seed=config.run.seed, epoch=0, shuffle=shuffle).tolist()
    asked = config.effective_batch if rows is None else rows
    by_sample = config.accumulation.normalization == "samples"
    shown = tuple(islice(_rows(task, items, order, by_sample=by_sample), asked))
    weight = float(_weight(items, by_sample=by_sample))
    return TextPreview(None, tuple(warnings), len(items), weight, shown)


def _weight(items: EncodedItems, *, by_sample: bool) -> int:
    encoded = items.encoded
    if by_sample:
        return len(encoded)
    firsts = encoded.starts[:-1]
    return int(encoded.has_loss.sum()) - int(encoded.has_loss[firsts].sum())


def _rows(
    task: Any,  # noqa: ANN401 - a CausalLM
    items: EncodedItems,
    order: list[int],
    *,
    by_sample: bool,
) -> Iterator[PreviewRow]:
    for index in order:
        numbers = [index] if items.groups is None else items.groups[index]
        samples = [_sample(task.tokenizer, items, number, by_sample=by_sample) for number in numbers]
        if task.task.layout == "packing":
            yield PreviewRow(
                ", ".join(row.source for row in samples),
                tuple(text for row in samples for text in row.texts),
                tuple(weight for row in samples for weight in row.weights),
                tuple(number for row in samples for number in row.ids),
            )
        else:
            yield from samples


def _sample(tokenizer: Any, items: EncodedItems, number: int, *, by_sample: bool) -> PreviewRow:  # noqa: ANN401
    tokens, has_loss = items.encoded.sample(number)
    ids: list[int] = tokens.tolist()
    each = 1.0 / max(1, int(has_loss[1:].sum())) if by_sample else 1.0
    weights = [0.0, *(each * float(bit) for bit in has_loss[1:].tolist())]
    texts = tuple(tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in ids)
    return PreviewRow(items.encoded.source(number), texts, tuple(weights), tuple(ids))
