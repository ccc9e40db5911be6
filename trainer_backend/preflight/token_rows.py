"""Rows of tokens as the model will see them: each token's text and what its loss weighs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trainer_backend.config import RunConfig
from trainer_backend.engine import Collated
from trainer_backend.preflight.findings import AnyRow, TokenRow
from trainer_backend.tasks import Datasets


class TokenRows:
    """Rows of the kind "causal-lm"."""

    unit = "tokens"

    def __init__(self, config: RunConfig, task: Any, datasets: Datasets, pictures: Path | None) -> None:  # noqa: ANN401
        del pictures
        self._task, self._items = task, datasets.train
        self._by_sample = config.accumulation.normalization == "samples"
        self.unit = "samples" if self._by_sample else "tokens"
        tokenizer = task.tokenizer
        self._special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})}
        self._rows: int | None = task.embedding_rows()
        self._texts: dict[int, str] = {}
        """Of ids that were seen; an id is one text wherever it stands."""

    def rows(self, batch: Collated, samples: list[Any]) -> tuple[AnyRow, ...]:
        """A sample a row; packed samples share one."""
        del samples
        rows: list[AnyRow] = []
        for index in batch.indices:
            numbers = [index] if self._items.groups is None else self._items.groups[index]
            parts = [self._sample(number) for number in numbers]
            rows += [_joined(parts)] if self._task.task.layout == "packing" else parts
        return tuple(rows)

    def _sample(self, number: int) -> TokenRow:
        encoded = self._items.encoded
        tokens, has_loss = encoded.sample(number)
        ids: list[int] = tokens.tolist()
        # The first token is predicted by nothing.
        learnt = [False, *has_loss[1:].tolist()]
        each = 1.0 / max(1, sum(learnt)) if self._by_sample else 1.0
        return TokenRow(
            source=encoded.source(number),
            texts=tuple(self._text(number) for number in ids),
            weights=tuple(each * bit for bit in learnt),
            ids=tuple(ids),
            special=tuple(place for place, token in enumerate(ids) if token in self._special),
            outside=tuple(
                place for place, token in enumerate(ids) if self._rows is not None and token >= self._rows
            ),
        )

    def _text(self, number: int) -> str:
        """One token as text, space before it included."""
        if number not in self._texts:
            self._texts[number] = self._task.tokenizer.decode([number], clean_up_tokenization_spaces=False)
        return self._texts[number]

    def padding_ratio(self, batch: Collated, rows: tuple[AnyRow, ...]) -> float | None:
        """Places without a token, of all places."""
        filled = sum(len(row.texts) for row in rows if isinstance(row, TokenRow))
        return 1 - filled / max(1, int(batch.batch.tokens.numel()))

    def figures(self) -> dict[str, Any]:
        """The epoch's weight, the longest sample, and what the samples were made of."""
        encoded = self._items.encoded
        firsts = encoded.starts[:-1]
        tokens = int(encoded.has_loss.sum()) - int(encoded.has_loss[firsts].sum())
        task = self._task
        return {
            "weight": float(len(encoded) if self._by_sample else tokens),
            "longest": max(encoded.lengths()),
            "longest_allowed": task.task.max_length,
            "records": task.encoder.read["records"],
        }


def _joined(parts: list[TokenRow]) -> TokenRow:
    """Samples of one packed row, end to end."""
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + len(part.texts))
    return TokenRow(
        source=", ".join(part.source for part in parts),
        texts=tuple(text for part in parts for text in part.texts),
        weights=tuple(weight for part in parts for weight in part.weights),
        ids=tuple(number for part in parts for number in part.ids),
        special=tuple(
            start + place for start, part in zip(starts, parts, strict=False) for place in part.special
        ),
        outside=tuple(
            start + place for start, part in zip(starts, parts, strict=False) for place in part.outside
        ),
    )


class ByteRows:
    """Rows of the kind "language-model": a byte is a token."""

    def __init__(self, config: RunConfig, task: Any, datasets: Datasets, pictures: Path | None) -> None:  # noqa: ANN401
        del pictures
        self._train = datasets.train
        self._length: int = task.task.context_length
        self._by_sample = config.accumulation.normalization == "samples"
        self.unit = "samples" if self._by_sample else "tokens"

    def rows(self, batch: Collated, samples: list[Any]) -> tuple[AnyRow, ...]:
        """One context a row; every byte but the first is predicted."""
        each = 1.0 / self._length if self._by_sample else 1.0
        return tuple(
            self._row(index, sample, each) for index, sample in zip(batch.indices, samples, strict=True)
        )

    def _row(self, index: int, sample: torch.Tensor, each: float) -> TokenRow:
        ids: list[int] = sample.tolist()
        return TokenRow(
            source=self._train.source(index),
            texts=tuple(_byte(value) for value in ids),
            weights=(0.0, *(each for _ in ids[1:])),
            ids=tuple(ids),
            special=tuple(place for place, value in enumerate(ids) if value == 0),
        )

    def padding_ratio(self, batch: Collated, rows: tuple[AnyRow, ...]) -> float | None:
        """Every context is full."""
        del batch, rows
        return 0.0

    def figures(self) -> dict[str, Any]:
        """All of an epoch is predicted."""
        count = len(self._train)
        return {
            "weight": float(count if self._by_sample else count * self._length),
            "longest": self._length,
            "longest_allowed": self._length,
        }


def _byte(value: int) -> str:
    """A byte as a character, or its number where it is none by itself."""
    return chr(value) if 32 <= value < 127 or value in (9, 10, 13) else f"\\x{value:02x}"
