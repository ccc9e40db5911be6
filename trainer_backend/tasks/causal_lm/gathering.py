"""Training and validation data: read, encoded, held out by groups, mixed by weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import torch

from trainer_backend.data.randomness import mixed
from trainer_backend.errors import UsageError
from trainer_backend.kinds.causal_lm import CausalLMData, CausalLMTask
from trainer_backend.tasks.built_in import BuiltIn
from trainer_backend.tasks.causal_lm.encoding import Encoded, Encoder
from trainer_backend.tasks.causal_lm.forms import Reading, Sample
from trainer_backend.tasks.causal_lm.loading import is_offline
from trainer_backend.tasks.causal_lm.records import find_data, sources_of

_MIXING: Final = 3
"""Told apart from other uses of the seed."""
TextTask = BuiltIn[CausalLMTask, CausalLMData]


def read_datasets(task: TextTask, encoder: Encoder) -> tuple[Encoded, Encoded | None]:
    """Training and validation data. Raises UsageError."""
    data = task.data
    named = (
        read_path(task, encoder, data.validation_path, "data.validation_path", "validation")
        if (data.validation_path)
        else None
    )
    parts = _parts(data)
    trained: list[Encoded] = []
    held: list[Encoded] = []
    for path, _ in parts:
        key = "data.path" if path == data.path else "data.mix"
        whole = read_path(task, encoder, path, key, "training")
        if data.validation_path or not data.validation_fraction:
            trained.append(whole)
            continue
        kept, out = held_out(whole, data.validation_fraction, task.seed)
        if not out:
            task.warn("no-validation-data", {"samples": len(whole)})
        else:
            held.append(whole.chosen(out))
        trained.append(whole.chosen(kept))
    validation = named or (joined(held) if held else None)
    if len(parts) == 1:
        return trained[0], validation
    numbers = mixture([len(part) for part in trained], [weight for _, weight in parts], task.seed)
    for (path, weight), chosen in zip(parts, numbers, strict=True):
        task.warn("data-mixed", {"path": path, "weight": weight, "count": len(chosen)})
    return joined([part.chosen(chosen) for part, chosen in zip(trained, numbers, strict=True)]), validation


def _parts(data: CausalLMData) -> list[tuple[str, float]]:
    """Paths and weights."""
    listed = [(part.path, part.weight) for part in data.mix]
    return listed if data.path in [path for path, _ in listed] else [(data.path, 1.0), *listed]


def read_path(task: TextTask, encoder: Encoder, path: str, key: str, what: str) -> Encoded:
    """All samples of one data path. Raises UsageError."""
    return encoder.encode(samples_at(task, path, key), what)


def samples_at(task: TextTask, path: str, key: str) -> Iterator[tuple[Sample, str]]:
    """Samples of one data path as they are read, each with its group. Raises UsageError."""
    found = find_data(task.path(path), path, key)
    if found.texts_passed_over:
        task.warn("texts-passed-over", {"count": found.texts_passed_over, "path": path})
    reading = Reading(task.data)
    for name, items in sources_of(found, offline=is_offline(task.task)):
        yield from reading.samples(name, iter(islice(items, task.most_records)))


def held_out(whole: Encoded, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Numbers of the samples that are kept and that are held out: whole groups, about `share` of them."""
    names, group_of = torch.unique(whole.groups, return_inverse=True)
    if len(names) < 2:
        return list(range(len(whole))), []
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    count = min(max(1, round(len(names) * share)), len(names) - 1)
    is_out = torch.zeros(len(names), dtype=torch.bool)
    is_out[order[:count]] = True
    out = is_out[group_of]
    kept: list[int] = (~out).nonzero().flatten().tolist()
    away: list[int] = out.nonzero().flatten().tolist()
    return kept, away


def mixture(lengths: Sequence[int], weights: Sequence[float], seed: int) -> list[list[int]]:
    """Which samples of each data set an epoch has: as many in all as there are, in shares of the weights.

    A data set that is too small is repeated whole, and the rest of its share is drawn once by the seed, so
    that the same recipe trains on the same samples.
    """
    total, all_weights = sum(lengths), sum(weights)
    chosen = []
    for place, (length, weight) in enumerate(zip(lengths, weights, strict=True)):
        count = max(1, round(total * weight / all_weights))
        generator = torch.Generator().manual_seed(mixed(seed, place, _MIXING))
        rest = torch.randperm(length, generator=generator)[: count % length].sort().values.tolist()
        chosen.append(list(range(length)) * (count // length) + rest)
    return chosen


def joined(parts: Sequence[Encoded]) -> Encoded:
    """Several as one. Groups keep apart, for they are no longer asked for."""
    if not parts:
        raise UsageError("No data was named. Give data.path.")
    files: list[str] = []
    sources = []
    for part in parts:
        moved = part.sources.clone()
        moved[:, 0] += len(files)
        sources.append(moved)
        files += part.files
    starts = [part.starts.diff() for part in parts]
    return Encoded(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.has_loss for part in parts]),
        torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(starts).cumsum(0)]),
        torch.cat([part.groups for part in parts]),
        torch.cat(sources),
        tuple(files),
    )
